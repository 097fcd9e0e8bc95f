"""Words for what moves and when."""

from collections.abc import Mapping
from types import MappingProxyType

from dcp_planner import Direction, Source, TransferKind

SOURCE_LABELS: Mapping[Source, str] = MappingProxyType(
    {"simulated": "Predicted", "measured": "Measured"}
)

TIMES = "\u00d7"

KIND_WORDS: Mapping[TransferKind, str] = MappingProxyType(
    {
        TransferKind.KV: "Keys and values",
        TransferKind.Q: "Queries",
        TransferKind.OUT: "Partial outputs",
        TransferKind.DQ: "Gradients of queries",
        TransferKind.DKV: "Gradients of keys and values",
    }
)


def direction_word(is_backward: bool) -> Direction:
    """Give the direction.

    >>> direction_word(True)
    'backward'
    """
    return "backward" if is_backward else "forward"
