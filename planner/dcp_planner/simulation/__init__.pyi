from .event_names import message_names, wait_name
from .trace import EVENT_KINDS, EventKind, Lane

__all__ = [
    "EVENT_KINDS",
    "EventKind",
    "Lane",
    "message_names",
    "wait_name",
]
