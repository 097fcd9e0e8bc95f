from .bounds import bound_ratios
from .causes import CAUSE_RULE, Explanation, TimeParts, explain_difference, split_time
from .comparison import Difference, compare_figures
from .figures import BatchFigures, figures_of
from .static_rivals import best_static, over_caps

__all__ = [
    "CAUSE_RULE",
    "BatchFigures",
    "Difference",
    "Explanation",
    "TimeParts",
    "best_static",
    "bound_ratios",
    "compare_figures",
    "explain_difference",
    "figures_of",
    "over_caps",
    "split_time",
]
