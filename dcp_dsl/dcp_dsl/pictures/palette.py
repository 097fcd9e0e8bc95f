"""Colours of the kinds along the axes and of visible pairs, for light and for dark pages."""

KIND_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a94a3")
"""Okabe & Ito (2008): can be told apart by everybody."""

VISIBLE = "#2f5d8a"
VISIBLE_DARK = "#7fb2e5"
INK, INK_DARK = "#1d2430", "#e6e9ee"
PAPER, PAPER_DARK = "#ffffff", "#161a20"
EMPTY, EMPTY_DARK = "#eef1f5", "#242a33"


def kind_colour(index: int) -> str:
    """Return the colour of the i-th kind; they repeat."""
    return KIND_COLOURS[index % len(KIND_COLOURS)]
