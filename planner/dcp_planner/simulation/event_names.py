"""Names of events for people; programs read the columns of a `Trace` instead."""

from dcp_dsl.arrays import Bytes, Indices
from dcp_planner.tables.plan import TransferKind


def message_names(kind: Bytes, block: Indices, groups: int, num_blocks: int) -> list[str]:
    """Name messages of an expanded plan for traces: ``"kv 12"``, of several groups ``"kv 12.3"``.

    Args:
        kind: uint8 ``[X]``, `TransferKind`.
        block: int32 ``[X]``, rows of the expanded plan's blocks.
        groups: head groups G.
        num_blocks: token blocks D of the plan before that.

    >>> import numpy as np
    >>> message_names(np.array([0, 2]), np.array([5, 6]), 2, 4)
    ['kv 1.1', 'out 2.1']
    """
    labels = [name.name.lower() for name in TransferKind]
    places = zip(kind.tolist(), block.tolist(), strict=True)
    if groups == 1:
        return [f"{labels[k]} {b}" for k, b in places]
    return [f"{labels[k]} {b % num_blocks}.{b // num_blocks}" for k, b in places]


def wait_name(division: int, *, is_result: bool) -> str:
    """Name the wait for the messages of a division: its inputs, or its results.

    >>> wait_name(3, is_result=False)
    'wait for inputs 3'
    """
    return f"wait for {'results' if is_result else 'inputs'} {division}"
