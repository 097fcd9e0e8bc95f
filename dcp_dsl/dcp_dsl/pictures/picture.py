"""A picture of one mask on one sample, whatever it is drawn with."""

from dataclasses import dataclass

from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.forms.form import Form
from dcp_dsl.pictures.axes import Stripe, find_stripes


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """What there is to draw: the visible pairs, and the kinds of tokens along the axes.

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
        return f"{_count(tokens)}, {pairs:,} of {tokens**2:,} pairs{share}"

    @property
    def density(self) -> str:
        """Tokens and density in few words, for example ``6 tokens, 33 % of all pairs``."""
        tokens, pairs = self.bound.num_tokens, self.bound.num_pairs
        share = f", {100 * pairs / tokens**2:.3g} % of all pairs" if tokens else ""
        return f"{_count(tokens)}{share}"

    def text(self, columns: int = 64, *, is_ascii: bool = False, has_colour: bool = False) -> str:
        """Draw with characters: two rows in each up to `columns` tokens, else shaded blocks.

        Args:
            columns: widest matrix, in characters.
            is_ascii: draw for a terminal that knows ASCII only.
            has_colour: colour the kinds along the axes.
        """
        from dcp_dsl.pictures.text import draw_text

        return draw_text(self, columns, is_ascii=is_ascii, has_colour=has_colour)

    def svg(self) -> str:
        """Draw as SVG: one polygon per slab where the mask has slabs, for light and dark pages."""
        from dcp_dsl.pictures.svg import draw_svg

        return draw_svg(self)

    def png(self, side: int = 512) -> bytes:
        """Draw as PNG with a matrix of about `side` pixels."""
        from dcp_dsl.pictures.png import draw_png

        return draw_png(self, side)

    def _repr_svg_(self) -> str:
        return self.svg()


def _count(tokens: int) -> str:
    return f"{tokens:,} token{'' if tokens == 1 else 's'}"
