from .bounds import bound_ratios
from .figures import (
    SCOPES,
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
    "SCOPES",
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
