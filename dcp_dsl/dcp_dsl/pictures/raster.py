"""Measure how much of each cell of a grid a mask covers: the base of every picture."""

import numpy as np

from dcp_dsl.arrays import Bytes, Floats
from dcp_dsl.forms.blocks import block_sparsity
from dcp_dsl.forms.form import Form


def measure_coverage(form: Form, rows: int, columns: int) -> Floats:
    """Measure cells of ``rows`` times ``columns`` tokens; exact, no token is visited.

    Returns:
        float64 ``[ceil(T / rows), ceil(T / columns)]``: visible pairs over pairs, 0 to 1.

    >>> from dcp_dsl import Slabs
    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> measure_coverage(causal, 2, 2).tolist()
    [[0.75, 0.0], [1.0, 0.75]]
    """
    blocks = block_sparsity([form], rows, columns)
    heights, widths = np.diff(blocks.q_bounds), np.diff(blocks.kv_bounds)
    part = np.zeros((len(heights), len(widths)))
    row, column = blocks.row_idx, blocks.col_idx
    part[row, column] = blocks.pairs / (heights[row] * widths[column])
    return part


def levels(part: Floats, most: int) -> Bytes:
    """Round coverage to 0 (nothing visible), `most` (everything) and equal steps in between.

    >>> levels(np.array([0, 0.01, 0.5, 0.99, 1]), 4).tolist()
    [0, 1, 2, 3, 4]
    """
    between = 1 + np.floor((most - 1) * part)
    return np.where(part <= 0, 0, np.where(part >= 1, most, between)).astype(np.uint8)
