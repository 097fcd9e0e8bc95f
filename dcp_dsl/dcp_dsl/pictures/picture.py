"""Draw a mask on a sample, declared or made up: in a terminal, as SVG, as PNG and in notebooks."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from dcp_dsl.arrays import Bytes, Floats
from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.columns import Column
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample, declared_sample, layout_lengths
from dcp_dsl.elaboration.programs import column_depths, parent_columns
from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.form import CrossForm, Form, num_keys
from dcp_dsl.pictures.frame import (
    LIGHT,
    PictureFrame,
    Stripe,
    condense,
    find_stripes,
    kind_colours,
    lay_out_legend,
    levels,
    measure_coverage,
)
from dcp_dsl.pictures.svg import draw_shapes, grid_lines, write_svg
from dcp_dsl.syntax.diagnostics import SpecError
from dcp_dsl.syntax.trees import mentioned_names

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw


MAX_TOKENS = 4096  # a longer sample is no example
PLAIN_TOKENS = 16  # of a mask without columns whose text has no sample


def example_samples(mask: Mask) -> Iterator[Sample]:
    """Yield samples with the columns of a mask, which may still not fit it.

    First those declared in the text of the mask and in the files of the library that it uses, then
    small ones made up from the layouts; 16 tokens for a mask that reads no columns.
    """
    for scope in read_scopes(mask.expression, mask.scope):
        for definition in scope.samples.values():
            try:
                sample = declared_sample(definition, scope)
            except DatasetError:
                continue
            if mask.columns <= sample.columns.keys() and 0 < sample.length <= MAX_TOKENS:
                yield Sample({c: sample.columns[c] for c in mask.columns}, sample.length)
    if mask.columns:
        yield from _made_up(mask)
    else:
        yield Sample(length=PLAIN_TOKENS)


def _made_up(mask: Mask) -> Iterator[Sample]:
    """Yield a sample with two instances of all that repeats, if layouts know the columns."""
    shapes: dict[str, int] = {}
    scopes = list(read_scopes(mask.expression, mask.scope))
    layouts = [pair for scope in scopes for pair in scope.layouts()]
    for _, layout in layouts:
        shapes |= column_depths(layout)
    if mask.columns <= shapes.keys():
        columns = {column: _lengths(shapes[column], 3) for column in sorted(mask.columns)}
        for name in {name for _, layout in layouts for name in parent_columns(layout)}:
            if name in columns:
                columns[name] = _parents(shapes[name])
        try:
            own = [pair for scope in scopes for pair in scope.sample_layouts()]
            found = dict(layout_lengths(columns, own))
        except DatasetError:
            return
        for length in found.values() or (PLAIN_TOKENS,):
            yield Sample(columns, length)


def _lengths(depth: int, size: int) -> Column:
    return size if depth == 0 else [_lengths(depth - 1, size - i) for i in range(2)]


def _parents(depth: int) -> Column:
    return [-1, 0] if depth == 1 else [_parents(depth - 1) for _ in range(2)]


def read_scopes(expression: object, scope: Scope) -> Iterator[Scope]:
    """Yield the texts whose names an expression uses, through all masks it calls; its own first."""
    yield scope
    seen: set[tuple[int, str]] = set()
    given = [scope]
    todo: list[tuple[object, Scope]] = [(expression, scope)]
    while todo:
        node, at = todo.pop()
        for name, is_attribute in mentioned_names(node):
            found = None if is_attribute else at.find_mask(name)
            if found is None or (id(at), name) in seen:
                continue
            seen.add((id(at), name))
            todo.append(found)
            if found[1] not in given:
                given.append(found[1])
                yield found[1]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A mask on a sample that draws itself: as text, as SVG, as PNG, and in notebooks.

    Attributes:
        title: what the mask is called.
        bound: the mask on the sample, in any exact form.
        stripes: kinds of tokens in the order of the sample; empty if there is no layout.
        key_stripes: those of keys that are another sequence; None for the same.

    >>> from dcp_dsl import Spec
    >>> spec = Spec.from_text("segment doc = [lens]*  mask a = causal per doc")
    >>> print(Picture.of(spec.mask("a"), Sample({"lens": [3, 3]}, 6)).text())
    a: 6 tokens, 12 of 36 pairs (33.3 %)
        dddDDD
       ┌──────┐
    dd │█▄    │
    dD │▀▀▀▄  │
    DD │   ██▄│
       └──────┘
        d doc
    """

    title: str
    bound: Form
    stripes: tuple[Stripe, ...] = ()
    key_stripes: tuple[Stripe, ...] | None = None

    @classmethod
    def of(cls, mask: Mask, sample: Sample) -> "Picture":
        """Bind a mask to a sample and find the kinds of its tokens.

        Raises:
            DatasetError: if the sample lacks a column or does not fit the layout.
            SpecError: if the mask cannot be bound.
        """
        form = mask.compile(sample, may_cross=True)
        return cls(mask.call, form, *find_stripes(mask, sample))

    @property
    def summary(self) -> str:
        """Tokens and density, for example ``6 tokens, 12 of 36 pairs (33 %)``."""
        pairs, area = self.bound.num_pairs, self._area
        share = f" ({100 * pairs / area:.3g} %)" if area else ""
        return f"{self._length}, {pairs:,} of {area:,} pairs{share}"

    @property
    def frame(self) -> PictureFrame:
        """Title, figures, stripes and legend around the drawn matrix."""
        size, width, area = self.bound.num_tokens, num_keys(self.bound), self._area
        share = f", {100 * self.bound.num_pairs / area:.3g} % of all pairs" if area else ""
        above = self.stripes if self.key_stripes is None else self.key_stripes
        colours = kind_colours(self.stripes + above)
        note = self._length + share
        return PictureFrame(
            self.title, self.summary, note, size, width, self.stripes, above, colours
        )

    @property
    def _area(self) -> int:
        return self.bound.num_tokens * num_keys(self.bound)

    @property
    def _length(self) -> str:
        tokens, is_cross = self.bound.num_tokens, isinstance(self.bound, CrossForm)
        word = ("query" if tokens == 1 else "queries") if is_cross else "token"
        words = f"{tokens:,} {word}{'' if is_cross or tokens == 1 else 's'}"
        return f"{words}, {num_keys(self.bound):,} keys" if is_cross else words

    def text(self, columns: int = 64, *, is_ascii: bool = False, has_colour: bool = False) -> str:
        """Draw with characters: two rows in each up to `columns` tokens, else shaded blocks.

        Args:
            columns: widest matrix, in characters.
            is_ascii: draw for a terminal that knows ASCII only.
            has_colour: colour the kinds along the axes.
        """
        return draw_text(self.bound, self.frame, columns, is_ascii=is_ascii, has_colour=has_colour)

    def svg(self) -> str:
        """Draw as SVG: one polygon per slab where the mask has slabs, for light and dark pages."""
        frame = self.frame
        return write_svg(frame, [*draw_shapes(self.bound), *grid_lines(frame)])

    def png(self, side: int = 512) -> bytes:
        """Draw as PNG with a matrix of about `side` pixels."""
        return draw_png(self.bound, self.frame, side)

    def shares(self, cell: int) -> Bytes:
        """Measure cells of `cell` times `cell` tokens: 0 for no visible pair, 255 for all of them.

        Returns:
            uint8 ``[ceil(T / cell), ceil(T / cell)]``; O(pieces + cells).
        """
        return levels(measure_coverage(self.bound, cell, cell), 255)

    def _repr_svg_(self) -> str:
        return self.svg()


def preview(mask: Mask) -> Picture | None:
    """Draw a mask on the first declared sample that fits it.

    Where no sample fits, one is made up from the layouts.

    Returns:
        The picture, or None if nothing says what the columns of the mask look like.

    >>> from dcp_dsl import Spec
    >>> preview(Spec.from_text("").mask("grpo")).summary
    '13 tokens, 42 of 169 pairs (24.9 %)'
    """
    return next((picture for _, picture in _previews(mask)), None)


def preview_sample(mask: Mask) -> Sample | None:
    """Return the sample that `preview` draws, or None."""
    return next((sample for sample, _ in _previews(mask)), None)


def _previews(mask: Mask) -> Iterator[tuple[Sample, Picture]]:
    for sample in example_samples(mask):
        with suppress(DatasetError, SpecError):  # a sample made for another mask
            yield sample, Picture.of(mask, sample)


_HALVES = {(0, 0): " ", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}
_SHADES = " ░▒▓█"
_ASCII = str.maketrans("▀▄█░▒▓┌┐└┘│─", "',#-+*++++|-")
_ANSI = (34, 33, 32, 35, 36, 31)  # blue, yellow, green, magenta, cyan, red


def draw_text(
    form: Form, frame: PictureFrame, columns: int, *, is_ascii: bool, has_colour: bool
) -> str:
    """Draw a mask with characters; see `Picture.text`."""
    lines = [f"{frame.title}: {frame.summary}"]
    if frame.size == 0 or frame.width == 0:
        return lines[0]
    cell = -(-max(frame.size, frame.width) // max(1, columns))
    # A character is twice as high as it is wide, so either way a pair is square.
    part = measure_coverage(form, cell if cell == 1 else 2 * cell, cell)
    if cell == 1:
        rows = _halves(part)
    else:
        rows = ["".join(_SHADES[level] for level in row) for row in levels(part, 4).tolist()]
    letters = _letters(frame.colours)
    # there may be more kinds than colours
    colours = dict(zip(letters, _ANSI * len(letters), strict=False)) if has_colour else {}
    sides = (frame.above, frame.width), (frame.stripes, frame.size)
    axis, down = (
        [_coloured(*mark, colours) for mark in _axis(*side, cell, letters)] for side in sides
    )
    if frame.above:
        lines.append("    " + "".join(axis))
    lines.append(f"   ┌{'─' * len(axis)}┐")
    for index, row in enumerate(rows):
        # an odd number of tokens leaves one letter for the last line
        beside = "".join([*down[2 * index : 2 * index + 2], " "][:2])
        lines.append(f"{beside} │{row}│")
    lines.append(f"   └{'─' * len(axis)}┘")
    if letters:
        legend = (f"{_coloured(letter, kind, colours)} {kind}" for kind, letter in letters.items())
        lines.append("    " + "  ".join(legend))
    if cell > 1:
        lines.append(f"one character: {2 * cell} queries by {cell} keys; {_SHADES[1:]}")
    text = "\n".join(lines)
    return text.translate(_ASCII) if is_ascii else text


def _halves(part: Floats) -> list[str]:
    seen = [*(part > 0).astype(int).tolist(), [0] * part.shape[1]]  # the last row may stand alone
    return [
        "".join(_HALVES[pair] for pair in zip(upper, lower, strict=True))
        for upper, lower in zip(seen[:-1:2], seen[1::2], strict=True)
    ]


def _letters(kinds: Iterable[str]) -> dict[str, str]:
    """Choose a letter for every kind, of its name if one is free.

    >>> _letters(["question", "answer", "again"])
    {'question': 'q', 'answer': 'a', 'again': 'g'}
    """
    given: dict[str, str] = {}
    for kind in kinds:
        wanted = [c for c in kind.lower() + "abcdefghijklmnopqrstuvwxyz" if c.isalpha()]
        given[kind] = next((c for c in wanted if c not in given.values()), "?")
    return given


def _axis(
    stripes: Sequence[Stripe], size: int, cell: int, letters: dict[str, str]
) -> list[tuple[str, str]]:
    """Return (letter, kind) of each column; every second instance of a kind has a capital."""
    columns = -(-size // cell)
    axis = [(" ", "")] * columns
    for stripe in condense(stripes, size, columns):
        letter = letters[stripe.kind]
        letter = letter.upper() if stripe.number % 2 else letter
        for column in range(stripe.start // cell, -(-stripe.end // cell)):
            if cell == 1 or stripe.start <= column * cell + cell // 2:
                axis[column] = letter, stripe.kind
    return axis


def _coloured(text: str, kind: str, colours: dict[str, int]) -> str:
    return f"\x1b[{colours[kind]}m{text}\x1b[0m" if kind in colours else text


MARGIN = 14  # of a PNG; these are its pixels
BAR = 12
LINE = 20
LEFT, TOP = MARGIN + BAR + 4, MARGIN + 2 * LINE + 4 + BAR + 4


def draw_png(form: Form, frame: PictureFrame, side: int) -> bytes:
    """Draw a mask with a matrix of about `side` pixels; see `Picture.png`."""
    from PIL import Image, ImageDraw, ImageFont  # an extra, so loaded on use

    matrix = _matrix(form, side)
    side = max(matrix.shape[1], 240)  # room for the words
    below = TOP + len(matrix) + 8
    legend = lay_out_legend([30 + 8 * len(kind) for kind in frame.colours], side)
    lines = legend[-1][1] + 1 if legend else 0
    image = Image.new("RGB", (LEFT + side + MARGIN, below + LINE * lines + MARGIN), LIGHT.paper)
    image.paste(Image.fromarray(matrix), (LEFT, TOP))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(13)
    draw.text((MARGIN, MARGIN), frame.title, LIGHT.ink, ImageFont.load_default(15))
    draw.text((MARGIN, MARGIN + LINE), frame.summary, LIGHT.ink, font)
    _draw_stripes(draw, frame, matrix.shape)
    for (kind, colour), (place, line) in zip(frame.colours.items(), legend, strict=True):
        x, y = MARGIN + place, below + LINE * line
        draw.rectangle((x, y + 2, x + 11, y + 13), colour)
        draw.text((x + 16, y), kind, LIGHT.ink, font)
    buffer = BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _matrix(form: Form, side: int) -> Bytes:
    """Return the pixels ``[P, P, 3]``: tokens as squares, or several tokens to a pixel."""
    from PIL.ImageColor import getrgb

    tokens = form.num_tokens, num_keys(form)
    cell = -(-max(1, *tokens) // side)
    coverage = measure_coverage(form, cell, cell) if min(tokens) else np.zeros((1, 1))
    empty, visible = (np.array(getrgb(c)) for c in (LIGHT.empty, LIGHT.visible))
    # The root keeps thin lines of long samples, such as a sink, from fading away.
    strength = np.sqrt(coverage)[..., None]
    pixels: Bytes = np.round(empty + (visible - empty) * strength).astype(np.uint8)
    scale = max(1, side // max(pixels.shape[:2]))
    return np.repeat(np.repeat(pixels, scale, axis=0), scale, axis=1)


def _draw_stripes(draw: "ImageDraw", frame: PictureFrame, shape: tuple[int, ...]) -> None:
    from PIL.ImageColor import getrgb

    axes = (frame.above, frame.width, shape[1]), (frame.stripes, frame.size, shape[0])
    for is_beside, (stripes, size, side) in enumerate(axes):
        scale = side / max(1, size)
        for stripe in condense(stripes, size, side):
            colour: tuple[int, ...] = getrgb(frame.colours[stripe.kind])
            if stripe.number % 2:
                colour = tuple((part + 255) // 2 for part in colour)
            first, last = round(stripe.start * scale), round(stripe.end * scale) - 1
            box = (LEFT + first, TOP - 4 - BAR, LEFT + last, TOP - 5)
            if is_beside:
                box = (LEFT - 4 - BAR, TOP + first, LEFT - 5, TOP + last)
            if last >= first:
                draw.rectangle(box, colour)
