"""The contents of a picture: a mask, the kinds of its tokens, its visible part cell by cell."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dcp_dsl.arrays import Floats, Record
from dcp_dsl.forms.blocks import block_sparsity
from dcp_dsl.forms.form import Form
from dcp_dsl.pictures.axes import Stripe


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A mask on a sample and the kinds of its tokens: all that a drawing function needs.

    Attributes:
        title: what the mask is called.
        bound: the mask on the sample, in any exact form.
        stripes: kinds of tokens in the order of the sample; empty if there is no layout.
    """

    title: str
    bound: Form
    stripes: tuple[Stripe, ...] = ()

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


def _count(tokens: int) -> str:
    return f"{tokens:,} token{'' if tokens == 1 else 's'}"


@dataclass(frozen=True, slots=True, eq=False)
class Coverage(Record):
    """Covered parts of the cells of a grid.

    Attributes:
        rows, columns: tokens per cell; the last row and column may be short.
        part: float64 ``[ceil(T / rows), ceil(T / columns)]``, visible pairs / pairs, 0 to 1.
    """

    rows: int
    columns: int
    part: Annotated[Floats, "R", "C"]


def measure_coverage(form: Form, rows: int, columns: int) -> Coverage:
    """Measure cells of ``rows`` times ``columns`` tokens; exact, no token is visited.

    >>> from dcp_dsl import Slabs
    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> measure_coverage(causal, 2, 2).part.tolist()
    [[0.75, 0.0], [1.0, 0.75]]
    """
    blocks = block_sparsity([form], rows, columns)
    heights, widths = np.diff(blocks.q_bounds), np.diff(blocks.kv_bounds)
    part = np.zeros((len(heights), len(widths)))
    row, column = blocks.row_idx, blocks.col_idx
    part[row, column] = blocks.pairs / (heights[row] * widths[column])
    return Coverage(rows, columns, part)
