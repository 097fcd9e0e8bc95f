"""The frame of a drawn matrix: title, kinds of tokens along the axes, legend; and its coverage."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Bytes, Floats
from dcp_dsl.core.layout import bind_layout
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Rectangle, Sample
from dcp_dsl.elaboration.programs import layout_columns
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.sparsity import block_sparsity
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import walk_parts


@dataclass(frozen=True, slots=True)
class Stripe:
    """An instance of a segment: the tokens ``[start, end)`` are of this kind.

    `number` counts the instances of the kind from 0; drawings make odd ones look different.
    """

    kind: str
    start: int
    end: int
    number: int


def find_stripes(
    mask: Mask, sample: Sample
) -> tuple[tuple[Stripe, ...], tuple[Stripe, ...] | None]:
    """Return the parts of the first layout that the mask reads: of queries, and of keys if others.

    Empty if it reads none. Parts without tokens are left out.
    """
    own: tuple[Stripe, ...] = ()
    of_keys = None
    if mask.keys is not None:
        found = Rectangle.of(mask.core, mask.keys, sample.columns, sample.length)
        of_keys = _lay_out(mask.keys.statement, sample, found.num_kv)
    for segment, layout in mask.layouts:
        if not own and sample.columns.keys() >= set(layout_columns(layout)):
            own = _lay_out(segment, sample, sample.length)
    return own, of_keys


def _lay_out(segment: ast.Segment, sample: Sample, length: int) -> tuple[Stripe, ...]:
    layout = segment.source
    assert isinstance(layout, ast.Layout), "a segment with parts"
    instances, _ = bind_layout(segment, layout, sample.columns, length)
    leaves = [p.part for p in walk_parts(layout.parts) if isinstance(p.part, ast.Leaf)]
    names = dict.fromkeys(leaf.name.text for leaf in leaves if leaf.name is not None)
    found = []
    for name in names or [segment.name.text]:
        spans = zip(instances[name].start.tolist(), instances[name].end.tolist(), strict=True)
        found += [Stripe(name, a, b, i) for i, (a, b) in enumerate(spans) if b > a]
    return tuple(sorted(found, key=lambda stripe: stripe.start))


def condense(stripes: Sequence[Stripe], num_tokens: int, limit: int) -> tuple[Stripe, ...]:
    """Return at most `limit` stripes; if there are more, equal stretches show the kind amid them.

    >>> many = [Stripe("ab"[i % 2], i, i + 1, 0) for i in range(6)]
    >>> [(s.kind, s.start, s.end) for s in condense(many, 6, 2)]
    [('b', 0, 3), ('a', 3, 6)]
    """
    if len(stripes) <= limit:
        return tuple(stripes)
    ends = [stripe.end for stripe in stripes]
    bins: list[Stripe] = []
    for index in range(limit):
        start, end = index * num_tokens // limit, (index + 1) * num_tokens // limit
        at = bisect_right(ends, (start + end) // 2)
        # left out: no part covers the middle, or the stretch holds no token
        if at == len(stripes) or stripes[at].start > (start + end) // 2 or start == end:
            continue
        bins.append(Stripe(stripes[at].kind, start, end, stripes[at].number))
    return tuple(bins)


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
    """Everything around a matrix.

    `note` is the summary, short enough to stand below the title. `size` and `width` are queries,
    tokens down the side, and keys, tokens along the top; `stripes` and `above` their kinds.
    """

    title: str
    summary: str
    note: str
    size: int
    width: int
    stripes: Sequence[Stripe]
    above: Sequence[Stripe]
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


def measure_coverage(form: Form, rows: int, columns: int) -> Floats:
    """Return visible pairs over pairs of cells, float64 ``[ceil(T / rows), ceil(T / columns)]``.

    >>> from dcp_dsl import Slabs
    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> measure_coverage(causal, 2, 2).tolist()
    [[0.75, 0.0], [1.0, 0.75]]
    """
    blocks = block_sparsity([form], rows, columns)
    heights, widths = np.diff(blocks.q_bounds), np.diff(blocks.kv_bounds)
    part = np.zeros((len(heights), len(widths)))
    row, column = blocks.row_idx, blocks.col_idx
    part[row, column] = blocks.pairs / (heights[row] * widths[column])
    return part


def levels(part: Floats, most: int) -> Bytes:
    """Round coverage to 0 (nothing visible), `most` (everything) and equal steps in between.

    >>> levels(np.array([0, 0.01, 0.5, 0.99, 1]), 4).tolist()
    [0, 1, 2, 3, 4]
    """
    # any visible pair makes 1 at least, any hidden one less than `most`
    between = 1 + np.floor((most - 1) * part)
    return np.where(part <= 0, 0, np.where(part >= 1, most, between)).astype(np.uint8)
