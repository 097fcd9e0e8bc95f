"""Draw one mask on one sample; `preview` chooses the sample itself.

`preview` takes the first sample of the text or the library that fits, or makes one up.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dcp_dsl.checks.columns import layout_columns
from dcp_dsl.core.layout import Column
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.core.sample_statement import declared_sample, layout_lengths
from dcp_dsl.errors import DatasetError
from dcp_dsl.pictures.axes import find_stripes, read_scopes
from dcp_dsl.pictures.drawing import Drawing
from dcp_dsl.pictures.svg import draw_svg
from dcp_dsl.pictures.text import draw_text
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError


@dataclass(frozen=True, slots=True, eq=False)
class Picture(Drawing):
    """A mask on a sample that draws itself: as text, as SVG, as PNG, and in notebooks.

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

    @classmethod
    def of(cls, mask: Mask, sample: Sample) -> "Picture":
        """Bind a mask to a sample and find the kinds of its tokens.

        Raises:
            DatasetError: if the sample lacks a column or does not fit the layout.
            SpecError: if the mask cannot be bound.
        """
        return cls(mask.call, mask.compile(sample), find_stripes(mask, sample))

    def text(self, columns: int = 64, *, is_ascii: bool = False, has_colour: bool = False) -> str:
        """Draw with characters: two rows in each up to `columns` tokens, else shaded blocks.

        Args:
            columns: widest matrix, in characters.
            is_ascii: draw for a terminal that knows ASCII only.
            has_colour: colour the kinds along the axes.
        """
        return draw_text(self, columns, is_ascii=is_ascii, has_colour=has_colour)

    def svg(self) -> str:
        """Draw as SVG: one polygon per slab where the mask has slabs, for light and dark pages."""
        return draw_svg(self)

    def png(self, side: int = 512) -> bytes:
        """Draw as PNG with a matrix of about `side` pixels."""
        from dcp_dsl.pictures.png import draw_png  # Pillow is loaded on use

        return draw_png(self, side)

    def _repr_svg_(self) -> str:
        return self.svg()


MAX_TOKENS = 4096  # a longer sample is no example
PLAIN_TOKENS = 16  # of a mask without columns whose text has no sample


def preview(mask: Mask) -> Picture | None:
    """Draw a mask on the first declared sample that fits it.

    Looked for in the text of the mask, then in the library's files it uses; where they have none,
    a small sample is made up from the layouts, or from 16 tokens for a mask that reads no columns.

    Returns:
        The picture, or None if nothing says what the mask's columns look like.

    >>> from dcp_dsl import Spec
    >>> preview(Spec.from_text("").mask("grpo")).summary
    '13 tokens, 42 of 169 pairs (24.9 %)'
    """
    for sample in _samples(mask):
        try:
            return Picture.of(mask, sample)
        except (DatasetError, SpecError):  # made for another mask
            continue
    return None


def preview_sample(mask: Mask) -> Sample | None:
    """Return the sample that `preview` draws, or None."""
    for sample in _samples(mask):
        try:
            mask.bind(sample)
        except (DatasetError, SpecError):
            continue
        return sample
    return None


def _samples(mask: Mask) -> Iterator[Sample]:
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
    scopes = read_scopes(mask.expression, mask.scope)
    layouts = [pair for scope in scopes for pair in scope.layouts()]
    for _, layout in layouts:
        _collect_shapes(layout.parts, 0, shapes)
    if mask.columns <= shapes.keys():
        columns = {column: _lengths(shapes[column], 3) for column in sorted(mask.columns)}
        try:
            found = dict(layout_lengths(columns, layouts))
        except DatasetError:
            return
        for length in found.values() or (PLAIN_TOKENS,):
            yield Sample(columns, length)


def _collect_shapes(
    parts: tuple[ast.Leaf | ast.Group, ...], depth: int, shapes: dict[str, int]
) -> None:
    """Note how deeply the lists of every column are nested."""
    for part in parts:
        if isinstance(part, ast.Group):
            _collect_shapes(part.parts, depth + part.is_repeated, shapes)
        elif part.length is not None:
            for name in layout_columns(ast.Layout((part,))):
                shapes[name] = depth + part.is_repeated


def _lengths(depth: int, size: int) -> Column:
    return size if depth == 0 else [_lengths(depth - 1, size - i) for i in range(2)]
