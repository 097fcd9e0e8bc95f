from .simulator import Clocks, clocks_of
from .trace import EVENT_KINDS, EventKind, message_names, wait_name

__all__ = [
    "EVENT_KINDS",
    "Clocks",
    "EventKind",
    "clocks_of",
    "message_names",
    "wait_name",
]
