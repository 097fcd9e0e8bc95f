"""How much of every cell of a picture is visible: the mask seen through a coarse grid."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import readonly
from dcp_dsl.forms.blocks import block_sparsity
from dcp_dsl.forms.form import Form


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """Covered parts of the cells of a grid.

    Attributes:
        rows, columns: tokens per cell; the last row and column may be short.
        part: float64 ``[ceil(T / rows), ceil(T / columns)]``, visible pairs / pairs, 0 to 1.
    """

    rows: int
    columns: int
    part: NDArray[np.float64]

    def __post_init__(self) -> None:
        part = readonly("Coverage.part", self.part, np.float64, (None, None))
        object.__setattr__(self, "part", part)


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
