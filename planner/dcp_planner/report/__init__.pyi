from .bounds import bound_ratios
from .figures import (
    BatchFigures,
    Difference,
    Rival,
    Scope,
    best_static,
    compare_figures,
    figures_of,
    over_caps,
)

__all__ = [
    "BatchFigures",
    "Difference",
    "Rival",
    "Scope",
    "best_static",
    "bound_ratios",
    "compare_figures",
    "figures_of",
    "over_caps",
]
