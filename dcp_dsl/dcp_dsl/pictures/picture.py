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
from dcp_dsl.elaboration.programs import column_depths, fork_columns, parent_columns
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


MAX_TOKENS = 4096  # of a declared sample that serves as an example
PLAIN_TOKENS = 16  # of the example for a mask without columns

MARGIN = 14  # of a PNG, in pixels, as all of these
BAR = 12  # thickness of the stripes
LINE = 20  # height of a line of text
LEFT, TOP = MARGIN + BAR + 4, MARGIN + 2 * LINE + 4 + BAR + 4


def example_samples(mask: Mask) -> Iterator[Sample]:
    """Yield samples that have the columns of a mask; a sample may still not fit the mask.

    Declared samples come first, from the text of the mask and the library's files that it uses;
    then small ones made up from the layouts. For a mask without columns that is one of 16 tokens.
    """
    yield from declared_samples(mask)
    if mask.columns:
        yield from _made_up(mask)
    else:
        yield Sample(length=PLAIN_TOKENS)


def declared_samples(mask: Mask) -> Iterator[Sample]:
    """Yield the declared samples among these."""
    for scope in read_scopes(mask.expression, mask.scope):
        for definition in scope.samples.values():
            try:
                sample = declared_sample(definition, scope)
            except DatasetError:
                continue
            if mask.columns <= sample.columns.keys() and 0 < sample.length <= MAX_TOKENS:
                yield Sample({c: sample.columns[c] for c in mask.columns}, sample.length)


def _made_up(mask: Mask) -> Iterator[Sample]:
    """Yield samples with two instances of every repeated part, if layouts have all columns."""
    shapes: dict[str, int] = {}
    scopes = list(read_scopes(mask.expression, mask.scope))
    layouts = [pair for scope in scopes for pair in scope.layouts()]
    for _, layout in layouts:
        shapes |= column_depths(layout)
    if mask.columns <= shapes.keys():
        columns = {column: _lengths(shapes[column], 3) for column in sorted(mask.columns)}
        # Columns of parents hold no lengths: the second branch goes on from the first, a fork from
        # the second token of the row.
        forks = {name for _, layout in layouts for name in fork_columns(layout)}
        for name in {name for _, layout in layouts for name in parent_columns(layout)}:
            if name in columns:
                columns[name] = _parents(shapes[name], 1 if name in forks else 0)
        # of each length that a layout gives; where layouts differ, a sample fits some masks only
        try:
            own = [pair for scope in scopes for pair in scope.sample_layouts()]
            found = dict(layout_lengths(columns, own))
        except DatasetError:
            return
        for length in found.values() or (PLAIN_TOKENS,):
            yield Sample(columns, length)


def _lengths(depth: int, size: int) -> Column:
    return size if depth == 0 else [_lengths(depth - 1, size - i) for i in range(2)]


def _parents(depth: int, second: int) -> Column:
    # The forks of the second group would be other tokens: in groups none is drawn.
    inner = -1 if second else second
    return [-1, second] if depth == 1 else [_parents(depth - 1, inner) for _ in range(2)]


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
        title: name of the mask.
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
        one, many = ("query", "queries") if is_cross else ("token", "tokens")
        words = f"{tokens:,} {one if tokens == 1 else many}"
        return f"{words}, {num_keys(self.bound):,} keys" if is_cross else words

    def text(self, columns: int = 64, *, is_ascii: bool = False, has_colour: bool = False) -> str:
        """Draw with characters: two rows in each up to `columns` tokens, else shaded blocks.

        Args:
            columns: widest matrix, in characters.
            is_ascii: draw for a terminal that knows ASCII only.
            has_colour: colour the kinds along the axes.
        """
        frame = self.frame
        lines = [f"{frame.title}: {frame.summary}"]
        if frame.size == 0 or frame.width == 0:
            return lines[0]
        cell = -(-max(frame.size, frame.width) // max(1, columns))
        # A character is twice as high as it is wide: it shows two rows of tokens, or one cell that
        # is twice as high.
        part = measure_coverage(self.bound, cell if cell == 1 else 2 * cell, cell)
        if cell == 1:
            rows = _halves(part)
        else:
            rows = ["".join(_SHADES[level] for level in row) for row in levels(part, 4).tolist()]
        letters = _letters(frame.colours)
        # repeated, since there may be more kinds than colours
        colours = dict(zip(letters, _ANSI * len(letters), strict=False)) if has_colour else {}
        sides = (frame.above, frame.width), (frame.stripes, frame.size)
        axis, down = (
            [_coloured(*mark, colours) for mark in _axis(*side, cell, letters)] for side in sides
        )
        if frame.above:
            lines.append("    " + "".join(axis))
        lines.append(f"   ┌{'─' * len(axis)}┐")
        for index, row in enumerate(rows):
            # two letters stand beside a line; the last line of an odd number of tokens has one
            beside = "".join([*down[2 * index : 2 * index + 2], " "][:2])
            lines.append(f"{beside} │{row}│")
        lines.append(f"   └{'─' * len(axis)}┘")
        if letters:
            legend = (
                f"{_coloured(letter, kind, colours)} {kind}" for kind, letter in letters.items()
            )
            lines.append("    " + "  ".join(legend))
        if cell > 1:
            lines.append(f"one character: {2 * cell} queries by {cell} keys; {_SHADES[1:]}")
        text = "\n".join(lines)
        return text.translate(_ASCII) if is_ascii else text

    def svg(self) -> str:
        """Draw as SVG: one polygon per slab where the mask has slabs, for light and dark pages."""
        frame = self.frame
        return write_svg(frame, [*draw_shapes(self.bound), *grid_lines(frame)])

    def png(self, side: int = 512) -> bytes:
        """Draw as PNG with a matrix of about `side` pixels."""
        from PIL import Image, ImageDraw, ImageFont  # an extra, so loaded on use

        frame, matrix = self.frame, _matrix(self.bound, side)
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


def _halves(part: Floats) -> list[str]:
    # each line draws two rows; an empty row joins the last one of an odd number
    seen = [*(part > 0).astype(int).tolist(), [0] * part.shape[1]]
    return [
        "".join(_HALVES[pair] for pair in zip(upper, lower, strict=True))
        for upper, lower in zip(seen[:-1:2], seen[1::2], strict=True)
    ]


def _letters(kinds: Iterable[str]) -> dict[str, str]:
    """Choose a letter for every kind: the first free one of its name, else of the alphabet.

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
            # a column shows the last stripe that begins at or before its middle
            if cell == 1 or stripe.start <= column * cell + cell // 2:
                axis[column] = letter, stripe.kind
    return axis


def _coloured(text: str, kind: str, colours: dict[str, int]) -> str:
    return f"\x1b[{colours[kind]}m{text}\x1b[0m" if kind in colours else text


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
            if stripe.number % 2:  # half way to white
                colour = tuple((part + 255) // 2 for part in colour)
            first, last = round(stripe.start * scale), round(stripe.end * scale) - 1
            box = (LEFT + first, TOP - 4 - BAR, LEFT + last, TOP - 5)
            if is_beside:
                box = (LEFT - 4 - BAR, TOP + first, LEFT - 5, TOP + last)
            if last >= first:
                draw.rectangle(box, colour)
