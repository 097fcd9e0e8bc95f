"""The frame of a drawn matrix: words above it, stripes along both axes, a legend below."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dcp_dsl.pictures.axes import Stripe

KIND_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a94a3")
"""Okabe & Ito (2008): colours that everybody can tell apart."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of text, of the page, and of hidden and visible pairs."""

    ink: str
    paper: str
    empty: str
    visible: str


LIGHT = Theme("#1d2430", "#ffffff", "#eef1f5", "#2f5d8a")
DARK = Theme("#e6e9ee", "#161a20", "#242a33", "#7fb2e5")


@dataclass(frozen=True, slots=True)
class PictureFrame:
    """The surroundings of a matrix of ``size`` times ``size`` tokens.

    Attributes:
        title: what is drawn.
        summary: its figures in one sentence.
        note: the same, short enough to stand below the title.
        size: tokens along a side.
        stripes: kinds of tokens along both axes.
        colours: the colour of every kind, in the order of the legend.
    """

    title: str
    summary: str
    note: str
    size: int
    stripes: Sequence[Stripe]
    colours: Mapping[str, str]


def kind_colours(stripes: Sequence[Stripe]) -> dict[str, str]:
    """Return a colour for every kind, in the order of their first tokens; colours repeat."""
    kinds = dict.fromkeys(stripe.kind for stripe in stripes)
    return {kind: KIND_COLOURS[i % len(KIND_COLOURS)] for i, kind in enumerate(kinds)}


def lay_out_legend(widths: Sequence[float], room: float) -> list[tuple[float, int]]:
    """Return the place and the line of every entry, side by side in lines of `room`.

    >>> lay_out_legend([30, 40, 50], 80)
    [(0.0, 0), (30.0, 0), (0.0, 1)]
    """
    places, x, line = [], 0.0, 0
    for width in widths:
        if x and x + width > room:
            x, line = 0.0, line + 1
        places.append((x, line))
        x += width
    return places
