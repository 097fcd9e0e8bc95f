from .bounds import bound_ratios
from .comparison import Difference, compare_figures
from .figures import BatchFigures, best_static, figures_of, over_caps

__all__ = [
    "BatchFigures",
    "Difference",
    "best_static",
    "bound_ratios",
    "compare_figures",
    "figures_of",
    "over_caps",
]
