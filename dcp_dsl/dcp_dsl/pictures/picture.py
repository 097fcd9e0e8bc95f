"""Draw a mask on a sample: in a terminal, as SVG, as PNG and in notebooks."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from dcp_dsl.arrays import Bytes
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.form import Form
from dcp_dsl.pictures.axes import Stripe, find_stripes
from dcp_dsl.pictures.frame import PictureFrame, kind_colours
from dcp_dsl.pictures.raster import levels, measure_coverage
from dcp_dsl.pictures.samples import example_samples
from dcp_dsl.pictures.shapes import draw_shapes
from dcp_dsl.pictures.svg import grid_lines, write_svg
from dcp_dsl.pictures.text import draw_text
from dcp_dsl.syntax.diagnostics import SpecError


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A mask on a sample that draws itself: as text, as SVG, as PNG, and in notebooks.

    Attributes:
        title: what the mask is called.
        bound: the mask on the sample, in any exact form.
        stripes: kinds of tokens in the order of the sample; empty if there is no layout.

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

    @classmethod
    def of(cls, mask: Mask, sample: Sample) -> "Picture":
        """Bind a mask to a sample and find the kinds of its tokens.

        Raises:
            DatasetError: if the sample lacks a column or does not fit the layout.
            SpecError: if the mask cannot be bound.
        """
        return cls(mask.call, mask.compile(sample), find_stripes(mask, sample))

    @property
    def summary(self) -> str:
        """Tokens and density, for example ``6 tokens, 12 of 36 pairs (33 %)``."""
        tokens, pairs = self.bound.num_tokens, self.bound.num_pairs
        share = f" ({100 * pairs / tokens**2:.3g} %)" if tokens else ""
        return f"{self._length}, {pairs:,} of {tokens**2:,} pairs{share}"

    @property
    def frame(self) -> PictureFrame:
        """Title, figures, stripes and legend around the drawn matrix."""
        tokens = self.bound.num_tokens
        share = f", {100 * self.bound.num_pairs / tokens**2:.3g} % of all pairs" if tokens else ""
        note, colours = self._length + share, kind_colours(self.stripes)
        return PictureFrame(self.title, self.summary, note, tokens, self.stripes, colours)

    @property
    def _length(self) -> str:
        tokens = self.bound.num_tokens
        return f"{tokens:,} token{'' if tokens == 1 else 's'}"

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
        lines = grid_lines(self.stripes, self.bound.num_tokens)
        return write_svg(self.frame, [*draw_shapes(self.bound), *lines])

    def png(self, side: int = 512) -> bytes:
        """Draw as PNG with a matrix of about `side` pixels."""
        from dcp_dsl.pictures.png import draw_png  # Pillow is loaded on use

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
