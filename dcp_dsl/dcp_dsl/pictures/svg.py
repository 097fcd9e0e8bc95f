"""Draw pictures as SVG: one polygon per slab, whatever the length of the sample.

A slab whose ends move is drawn as stairs on short samples, where a token can be seen, and with
straight sides on long ones. All coordinates are tokens; the browser scales them.
"""

from collections.abc import Iterator, Sequence
from html import escape

from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.conversion import as_slabs
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.rows import Columns
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.pictures import palette
from dcp_dsl.pictures.axes import Stripe, condense, kinds
from dcp_dsl.pictures.drawing import Drawing, measure_coverage

SIDE = 320  # pixels of the matrix
MARGIN = 12
BAR = 10  # thickness of the stripes
LINE = 18  # height of a line of text
CHARACTER = 7.0  # about the width of one at 12 pixels
MAX_STAIRS = 256  # tokens up to which single tokens are drawn
MAX_POLYGONS = 20_000  # more take a browser seconds; then cells of a grid are shaded instead
MAX_CONVERTED = 4096  # tokens up to which other forms are turned into slabs for a picture
MAX_STRIPES = 256
MAX_GRID = 48  # tokens up to which there is a line between any two
_SHADES = 8


def draw_svg(drawing: Drawing) -> str:
    """Draw a mask as one SVG element; see `Picture.svg`."""
    size = drawing.bound.num_tokens
    stripes = condense(drawing.stripes, size, MAX_STRIPES)
    names = kinds(drawing.stripes)
    legend, legend_height = _legend(names)
    top = MARGIN + 2 * LINE + 4
    height = top + BAR + 4 + SIDE + 8 + legend_height + MARGIN
    width = 2 * MARGIN + BAR + 4 + SIDE
    left = MARGIN + BAR + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dcp-mask" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(drawing.title)}: {escape(drawing.summary)}</title>",
        _style(names),
        f'<rect class="dcp-paper" width="{width}" height="{height}" rx="6"/>',
        f'<text class="dcp-name" x="{MARGIN}" y="{MARGIN + 12}">{_shorten(drawing.title)}</text>',
        f'<text x="{MARGIN}" y="{MARGIN + 12 + LINE}">{drawing.density}</text>',
        f'<rect class="dcp-empty" x="{left}" y="{top + BAR + 4}" width="{SIDE}" height="{SIDE}"/>',
    ]
    if size:
        parts += _axes(stripes, names, size, left, top)
        parts.append(_nested(left, top + BAR + 4, SIDE, SIDE, f"0 0 {size} {size}"))
        parts += [*_matrix(drawing.bound), *_lines(stripes, size), "</svg>"]
    parts.append(f'<g transform="translate({MARGIN} {top + BAR + 4 + SIDE + 8})">')
    return "\n".join([*parts, *legend, "</g>", "</svg>"])


def _style(names: Sequence[str]) -> str:
    """Return the style sheet; every class begins with `dcp-`, so it changes nothing of a page."""
    colours = "".join(
        f".dcp-mask .dcp-k{i}{{fill:{palette.kind_colour(i)}}}" for i in range(len(names))
    )
    light = _theme(palette.INK, palette.PAPER, palette.EMPTY, palette.VISIBLE)
    dark = _theme(palette.INK_DARK, palette.PAPER_DARK, palette.EMPTY_DARK, palette.VISIBLE_DARK)
    return (
        "<style>.dcp-mask text{font:12px system-ui,sans-serif}"
        ".dcp-mask .dcp-name{font-weight:600}.dcp-mask .dcp-odd{opacity:.55}"
        ".dcp-mask .dcp-line{stroke-width:1;vector-effect:non-scaling-stroke;opacity:.25}"
        ".dcp-mask .dcp-long{stroke-width:.7;vector-effect:non-scaling-stroke}"
        f"{colours}{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"
    )


def _theme(ink: str, paper: str, empty: str, visible: str) -> str:
    return (
        f".dcp-mask text{{fill:{ink}}}.dcp-mask .dcp-line{{stroke:{ink}}}"
        f".dcp-mask .dcp-paper{{fill:{paper}}}.dcp-mask .dcp-empty{{fill:{empty}}}"
        f".dcp-mask .dcp-see{{fill:{visible}}}.dcp-mask .dcp-long{{stroke:{visible}}}"
    )


def _nested(x: float, y: float, width: float, height: float, box: str) -> str:
    return (
        f'<svg x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{box}" '
        f'preserveAspectRatio="none">'
    )


def _matrix(form: Form) -> Iterator[str]:
    size = form.num_tokens
    table = _slab_table(form)
    if table is None:
        yield from _shaded(form)
        return
    slabs, is_transposed = table
    if size <= MAX_STAIRS:
        yield '<g class="dcp-see" shape-rendering="crispEdges">'
    else:
        yield '<g class="dcp-see">'
    # A thin outline keeps a sink of 64 tokens among 131,072 from vanishing between two pixels.
    shape = "<polygon" if size <= MAX_STAIRS else '<polygon class="dcp-long"'
    for row in slabs:
        points = _stairs(*row) if size <= MAX_STAIRS else _straight(*row)
        points = [(y, x) for x, y in points] if is_transposed else points
        yield f'{shape} points="' + " ".join(f"{x},{y}" for x, y in points) + '"/>'
    yield "</g>"


def _slab_table(form: Form) -> tuple[list[list[int]], bool] | None:
    """Return the slabs of a form, and whether queries and keys are swapped; None if too many."""
    if isinstance(form, Columns) and isinstance(form.keys, Slabs):
        return (form.keys.table().tolist(), True) if len(form.keys) <= MAX_POLYGONS else None
    if not isinstance(form, Slabs) and form.num_tokens > MAX_CONVERTED:
        return None
    try:
        slabs = as_slabs(form, MAX_POLYGONS)
    except DatasetError:
        return None
    return (slabs.table().tolist(), False) if len(slabs) <= MAX_POLYGONS else None


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
    """Yield rectangles of a 256 x 256 grid, darker where more pairs are visible."""
    cell = -(-form.num_tokens // 256)
    coverage = measure_coverage(form, cell, cell)
    yield '<g class="dcp-see">'
    for row, parts in enumerate(coverage.part.tolist()):
        levels = [0 if p <= 0 else max(1, round(_SHADES * p)) for p in parts]
        column = 0
        while column < len(levels):
            end = column
            while end < len(levels) and levels[end] == levels[column]:
                end += 1
            if levels[column]:
                yield (
                    f'<rect x="{column * cell}" y="{row * cell}" width="{(end - column) * cell}" '
                    f'height="{cell}" fill-opacity="{levels[column] / _SHADES:g}"/>'
                )
            column = end
    yield "</g>"


def _axes(
    stripes: Sequence[Stripe], names: Sequence[str], size: int, left: int, top: int
) -> Iterator[str]:
    if not stripes:
        return
    for is_row in (False, True):
        x, y = (MARGIN, top + BAR + 4) if is_row else (left, top)
        width, height = (BAR, SIDE) if is_row else (SIDE, BAR)
        yield _nested(x, y, width, height, f"0 0 1 {size}" if is_row else f"0 0 {size} 1")
        for stripe in stripes:
            odd = " dcp-odd" if stripe.number % 2 else ""
            span = stripe.end - stripe.start
            place = (
                f'y="{stripe.start}" width="1" height="{span}"'
                if is_row
                else f'x="{stripe.start}" width="{span}" height="1"'
            )
            label = f"<title>{escape(stripe.kind)} {stripe.number}</title>"
            yield f'<rect class="dcp-k{names.index(stripe.kind)}{odd}" {place}>{label}</rect>'
        yield "</svg>"


def _lines(stripes: Sequence[Stripe], size: int) -> Iterator[str]:
    """Yield the borders between parts, and between tokens where these can be seen."""
    places = set(range(1, size)) if size <= MAX_GRID else set()
    if len(stripes) <= MAX_GRID:
        places |= {stripe.start for stripe in stripes} - {0}
    for at in sorted(places):
        yield f'<path class="dcp-line" d="M{at} 0V{size}M0 {at}H{size}"/>'


def _legend(names: Sequence[str]) -> tuple[list[str], int]:
    """Return a coloured square and a name for every kind, in lines of the picture's width."""
    parts, x, line = [], 0.0, 0
    for index, name in enumerate(names):
        width = 28 + CHARACTER * len(name)
        if x and x + width > SIDE + BAR:
            x, line = 0.0, line + 1
        parts.append(
            f'<rect class="dcp-k{index}" x="{x:g}" y="{line * LINE}" width="11" height="11"/>'
            f'<text x="{x + 15:g}" y="{line * LINE + 10}">{escape(name)}</text>'
        )
        x += width
    return parts, (line + 1) * LINE if names else 0


def _shorten(text: str) -> str:
    most = int((SIDE + BAR) / CHARACTER)
    return escape(text if len(text) <= most else text[: most - 1] + "…")
