"""A picture of one mask on one sample, whatever it is drawn with."""

from dataclasses import dataclass

from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.pictures.axes import find_stripes
from dcp_dsl.pictures.drawing import Drawing
from dcp_dsl.pictures.svg import draw_svg
from dcp_dsl.pictures.text import draw_text


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
