"""Plans whose heads are placed in groups: which heads a group has, and the tiles of one group.

Every tile is in such a plan once per group, so a picture of a mask shows one group at a time.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_planner import Plan


def group_labels(plan: Plan) -> list[str]:
    """Give the query heads of every group, counted from 1: ``["1-2", "3-4"]``, ``["1", "2"]``."""
    return head_labels(plan.shape.q_heads, plan.head_groups)


def head_labels(heads: int, groups: int) -> list[str]:
    """Give the heads of each of some groups of the same size, counted from 1.

    >>> head_labels(4, 2), head_labels(2, 2)
    (['1-2', '3-4'], ['1', '2'])
    """
    each = heads // groups
    return [
        f"{group * each + 1}-{(group + 1) * each}" if each > 1 else str(group + 1)
        for group in range(groups)
    ]


def tiles_of_group(plan: Plan, group: int) -> NDArray[np.intp]:
    """Give the rows of `plan.tiles` of one group, all of them in a plan of one group; O(W)."""
    if plan.tiles.group is None:
        return np.arange(len(plan.tiles))
    return np.flatnonzero(plan.tiles.group == group)


def caption_of_first_group(plan: Plan) -> str:
    """Say which heads a still picture shows, nothing if there is one group."""
    if plan.head_groups == 1:
        return ""
    word = "heads" if plan.head_groups < plan.shape.q_heads else "head"
    return (
        f"{word} {group_labels(plan)[0]} of {plan.shape.q_heads}, "
        f"the first of {plan.head_groups} groups"
    )
