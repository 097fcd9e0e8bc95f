"""Name causes, events of a critical path and shares of time in sentences."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from dcp_planner.causes.diagnosis import Name

TimeText: TypeAlias = Callable[[float], str]
ShareText: TypeAlias = Callable[[float], str]

NOUNS: Mapping[Name, str] = {
    "balance": "uneven compute",
    "waves": "kernels that leave multiprocessors idle",
    "tiles": "pairs that kernels compute but nobody sees",
    "links": "bytes on links",
    "latency": "latency of messages",
    "launches": "launches",
    "idle": "devices that compute nothing",
    "order": "waiting for what others do first",
    "memory": "giving buffers back early",
}
"""What time is lost to."""

CONDITIONS: Mapping[Name, str] = {
    "balance": "with compute shared evenly",
    "waves": "if kernels kept all multiprocessors busy",
    "tiles": "if kernels computed visible pairs only",
    "links": "with infinitely fast links",
    "latency": "without latency",
    "launches": "without launches",
    "idle": "if idle devices took their share",
    "order": "if nobody waited for what others do first",
    "memory": "without a limit of memory",
}
"""What is imagined instead."""


def joined(parts: list[str]) -> str:
    """List parts as a sentence does.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.1234)
    '12.3%'
    """
    return f"{share:.1%}"
