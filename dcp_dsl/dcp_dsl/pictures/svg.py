"""Write a matrix of tokens as SVG, with title, axes and legend, for light and for dark pages.

A mask is one polygon per slab, or shaded cells where that would be too many. A slab whose ends move
is drawn as stairs on short samples, where a token can be seen, and with straight sides on long
ones. All coordinates inside the matrix are tokens; the browser scales them.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.conversion import square_slabs
from dcp_dsl.forms.form import CrossForm, Form, num_keys
from dcp_dsl.forms.parts import keys_of
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.pictures.frame import (
    DARK,
    LIGHT,
    PictureFrame,
    Stripe,
    Theme,
    condense,
    lay_out_legend,
    levels,
    measure_coverage,
)

SIDE = 320  # pixels across the matrix
LOWEST, HIGHEST = 40, 640  # pixels down, where there are more keys than queries, or fewer
MARGIN = 12
BAR = 10  # thickness of the stripes
LINE = 18  # height of a line of text
CHARACTER = 7.0  # pixels of a character of the font size 12, on average
LEFT, TOP = MARGIN + BAR + 4, MARGIN + 2 * LINE + BAR + 8
MAX_STRIPES = 256
MAX_BORDERS = 48  # more would be a grey area
MAX_LEGEND = 32


def write_svg(frame: PictureFrame, shapes: Iterable[str], zoom: int = 1) -> str:
    """Write one SVG element around shapes in tokens; their class ``dcp-k3`` has the fourth colour.

    With a `zoom` of 1 the matrix is 320 pixels wide.
    """
    size, keys = frame.size, frame.width
    beside = condense(frame.stripes, size, MAX_STRIPES)
    above = condense(frame.above, keys, MAX_STRIPES)
    side = max(LOWEST, min(HIGHEST, round(SIDE * size / keys))) if keys else SIDE
    index = {kind: i for i, kind in enumerate(frame.colours)}
    legend = list(index.items())[:MAX_LEGEND]
    places = lay_out_legend([28 + CHARACTER * len(kind) for kind, _ in legend], SIDE + BAR)
    below = TOP + side + 8
    height = below + (places[-1][1] + 1 if places else 0) * LINE + MARGIN
    width = LEFT + SIDE + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dcp-mask" width="{zoom * width}" '
        f'height="{zoom * height}" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(frame.title)}: {escape(frame.summary)}</title>",
        _style(frame),
        rect(0, 0, width, height, 'class="dcp-paper" rx="6"'),
        f'<text class="dcp-name" x="{MARGIN}" y="{MARGIN + 12}">{_shorten(frame.title)}</text>',
        f'<text x="{MARGIN}" y="{MARGIN + 12 + LINE}">{_shorten(frame.note)}</text>',
        rect(LEFT, TOP, SIDE, side, 'class="dcp-empty"'),
    ]
    # both axes and the matrix are SVGs of their own, with tokens as units, which the browser scales
    if size and keys:
        parts.append(_nested((LEFT, TOP - BAR - 4, SIDE, BAR), f"0 0 {keys} 1"))
        parts += [_stripe(s, index, (s.start, 0, s.end - s.start, 1)) for s in above]
        parts += ["</svg>", _nested((MARGIN, TOP, BAR, side), f"0 0 1 {size}")]
        parts += [_stripe(s, index, (0, s.start, 1, s.end - s.start)) for s in beside]
        parts += ["</svg>", _nested((LEFT, TOP, SIDE, side), f"0 0 {keys} {size}"), *shapes]
        parts.append("</svg>")
    parts.append(f'<g transform="translate({MARGIN} {below})">')
    for (kind, i), (x, line) in zip(legend, places, strict=True):
        parts.append(rect(f"{x:g}", line * LINE, 11, 11, f'class="dcp-k{i}"'))
        parts.append(f'<text x="{x + 15:g}" y="{line * LINE + 10}">{escape(kind)}</text>')
    return "\n".join([*parts, "</g>", "</svg>"])


def rect(x: object, y: object, width: object, height: object, attributes: str) -> str:
    """Write a rectangle; attributes such as ``class="dcp-k0"`` are taken as they are."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {attributes}/>'


def grid_lines(frame: PictureFrame) -> Iterator[str]:
    """Yield the borders between parts, and between tokens where people can see single tokens."""
    down, across = _borders(frame.above, frame.width), _borders(frame.stripes, frame.size)
    # one path holds the line down and the line across at the same token
    for at in sorted(down | across):
        line = f"M{at} 0V{frame.size}" if at in down else ""
        line += f"M0 {at}H{frame.width}" if at in across else ""
        yield f'<path class="dcp-line" d="{line}"/>'


def _borders(stripes: Sequence[Stripe], size: int) -> set[int]:
    places = set(range(1, size)) if size <= MAX_BORDERS else set()
    if len(stripes) <= MAX_BORDERS:
        places |= {stripe.start for stripe in stripes} - {0}
    return places


def _stripe(stripe: Stripe, index: dict[str, int], box: tuple[int, int, int, int]) -> str:
    odd = " dcp-odd" if stripe.number % 2 else ""  # paler, so that neighbours differ
    shape = rect(*box, f'class="dcp-k{index[stripe.kind]}{odd}"').removesuffix("/>")
    return f"{shape}><title>{escape(stripe.kind)} {stripe.number}</title></rect>"


def _nested(box: tuple[int, int, int, int], view: str) -> str:
    x, y, width, height = box
    return (
        f'<svg x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{view}" '
        f'preserveAspectRatio="none">'
    )


def _style(frame: PictureFrame) -> str:
    """Return the style sheet; every class begins with `dcp-`, so it changes nothing of a page."""
    colours = "".join(
        f".dcp-mask .dcp-k{i}{{fill:{colour}}}" for i, colour in enumerate(frame.colours.values())
    )
    return (
        "<style>.dcp-mask text{font:12px system-ui,sans-serif}"
        ".dcp-mask .dcp-name{font-weight:600}.dcp-mask .dcp-odd{opacity:.55}"
        ".dcp-mask .dcp-line{stroke-width:1;vector-effect:non-scaling-stroke;opacity:.25}"
        ".dcp-mask .dcp-long{stroke-width:.7;vector-effect:non-scaling-stroke}"
        f"{colours}{_rules(LIGHT)}@media (prefers-color-scheme:dark){{{_rules(DARK)}}}</style>"
    )


def _rules(theme: Theme) -> str:
    return (
        f".dcp-mask text{{fill:{theme.ink}}}.dcp-mask .dcp-line{{stroke:{theme.ink}}}"
        f".dcp-mask .dcp-paper{{fill:{theme.paper}}}.dcp-mask .dcp-empty{{fill:{theme.empty}}}"
        f".dcp-mask .dcp-see{{fill:{theme.visible}}}.dcp-mask .dcp-long{{stroke:{theme.visible}}}"
    )


def _shorten(text: str) -> str:
    most = int((SIDE + BAR) / CHARACTER)
    return escape(text if len(text) <= most else text[: most - 1] + "…")


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
    """Return slabs to draw, those of the keys if a form is seen from there; None if too many."""
    keys = keys_of(form)
    if isinstance(keys, Slabs):
        slabs = keys
    else:
        square = form.square if isinstance(form, CrossForm) else form
        if not isinstance(square, Slabs) and square.num_tokens > MAX_CONVERTED:
            return None
        try:
            slabs = square_slabs(form, MAX_POLYGONS)
        except DatasetError:
            return None
    return slabs if len(slabs) <= MAX_POLYGONS else None


def _points(outline: list[tuple[int, int]], form: Form) -> str:
    # x is the key; slabs of a form seen from the keys have queries in its place
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
    """Yield rectangles, darker where more pairs are visible; equal neighbours are joined."""
    cell = -(-max(form.num_tokens, num_keys(form)) // CELLS)
    shades = levels(measure_coverage(form, cell, cell), SHADES)
    for row, line in enumerate(shades.tolist()):
        for shade, run in groupby(enumerate(line), key=lambda item: item[1]):
            columns = [column for column, _ in run]
            if shade:
                box = (columns[0] * cell, row * cell, len(columns) * cell, cell)
                yield rect(*box, f'fill-opacity="{shade / SHADES:g}"')
