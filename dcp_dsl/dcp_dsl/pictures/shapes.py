"""Shapes of a mask for SVG: one polygon per slab, or shaded cells where that would be too many.

A slab whose ends move is drawn as stairs on short samples, where a token can be seen, and with
straight sides on long ones.
"""

from collections.abc import Iterator
from itertools import groupby

from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.conversion import as_slabs
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.parts import keys_of
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.pictures.raster import levels, measure_coverage
from dcp_dsl.pictures.svg import rect

MAX_STAIRS = 256  # tokens up to which single tokens are drawn
MAX_POLYGONS = 20_000  # more take a browser seconds
MAX_CONVERTED = 4096  # tokens up to which other forms are turned into slabs for a picture
CELLS = 256  # along a side, where cells are shaded
SHADES = 8


def draw_shapes(form: Form) -> Iterator[str]:
    """Yield SVG elements that cover the visible pairs of a mask, in tokens."""
    slabs = _slabs_of(form)
    if slabs is None:
        yield '<g class="dcp-see">'
        yield from _shaded(form)
    elif form.num_tokens <= MAX_STAIRS:
        yield '<g class="dcp-see" shape-rendering="crispEdges">'
        yield from (f"<polygon {_points(_stairs(*row), form)}/>" for row in slabs.table().tolist())
    else:
        yield '<g class="dcp-see">'
        # A thin outline keeps a sink of 64 tokens among 131,072 from vanishing between two pixels.
        yield from (
            f'<polygon class="dcp-long" {_points(_straight(*row), form)}/>'
            for row in slabs.table().tolist()
        )
    yield "</g>"


def _slabs_of(form: Form) -> Slabs | None:
    """Return the slabs of a form, queries and keys swapped if it has them so; None if too many."""
    keys = keys_of(form)
    if isinstance(keys, Slabs):
        slabs = keys
    elif not isinstance(form, Slabs) and form.num_tokens > MAX_CONVERTED:
        return None
    else:
        try:
            slabs = as_slabs(form, MAX_POLYGONS)
        except DatasetError:
            return None
    return slabs if len(slabs) <= MAX_POLYGONS else None


def _points(outline: list[tuple[int, int]], form: Form) -> str:
    is_swapped = isinstance(keys_of(form), Slabs)
    pairs = (f"{q},{k}" if is_swapped else f"{k},{q}" for k, q in outline)
    return f'points="{" ".join(pairs)}"'


def _straight(q0: int, q1: int, k0: int, k1: int, a: int, b: int) -> list[tuple[int, int]]:
    rows = q1 - q0
    return [(k0, q0), (k1, q0), (k1 + b * rows, q1), (k0 + a * rows, q1)]


def _stairs(q0: int, q1: int, k0: int, k1: int, a: int, b: int) -> list[tuple[int, int]]:
    """Return the outline: down along the right ends of all rows, then up along the left ones."""
    if a == b == 0:
        return _straight(q0, q1, k0, k1, a, b)
    down, up = [], []
    for row in range(q1 - q0):
        right, left = k1 + b * row, k0 + a * row
        down += [(right, q0 + row), (right, q0 + row + 1)]
        up += [(left, q0 + row), (left, q0 + row + 1)]
    return down + up[::-1]


def _shaded(form: Form) -> Iterator[str]:
    """Yield rectangles, darker where more pairs are visible; equal neighbours are one."""
    cell = -(-form.num_tokens // CELLS)
    shades = levels(measure_coverage(form, cell, cell), SHADES)
    for row, line in enumerate(shades.tolist()):
        for shade, run in groupby(enumerate(line), key=lambda item: item[1]):
            columns = [column for column, _ in run]
            if shade:
                box = (columns[0] * cell, row * cell, len(columns) * cell, cell)
                yield rect(*box, f'fill-opacity="{shade / SHADES:g}"')
