"""Where two masks on the same sample differ."""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.conversion import slabs_of
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.runs import region_of


@dataclass(frozen=True, slots=True)
class MaskDifference:
    """How many pairs only one of two masks sees, and the first of them in reading order.

    Attributes:
        only_left, only_right: pairs.
        query, key: the first pair that differs.
        is_left: whether the left mask sees it.
    """

    only_left: int
    only_right: int
    query: int
    key: int
    is_left: bool


def find_difference(left: Slabs, right: Slabs) -> MaskDifference | None:
    """Compare two masks exactly, or give ``None`` if they see the same pairs.

    Raises:
        ExchangeError: if they have different numbers of tokens.

    >>> causal = Slabs(3, [0], [3], [0], [1], [0], [1])
    >>> find_difference(causal, Slabs(3, [0], [3], [0], [3], [0], [0]))
    MaskDifference(only_left=0, only_right=3, query=0, key=1, is_left=False)
    """
    if left.num_tokens != right.num_tokens:
        raise ExchangeError(
            f"expected masks of as many tokens, got {left.num_tokens} and {right.num_tokens}; "
            f"compare on a sample of {left.num_tokens}"
        )
    if np.array_equal(left.table(), right.table()):
        return None
    a, b = region_of(left), region_of(right)
    sides = [slabs_of(a - b), slabs_of(b - a)]
    firsts = [
        (int(s.q_start[0]), int(s.kv_start[0]), i == 0) for i, s in enumerate(sides) if len(s)
    ]
    if not firsts:
        return None
    query, key, is_left = min(firsts)
    return MaskDifference(sides[0].num_pairs, sides[1].num_pairs, query, key, is_left)
