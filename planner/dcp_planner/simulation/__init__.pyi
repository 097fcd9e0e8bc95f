from .trace import EVENT_KINDS, EventKind, message_names, wait_name

__all__ = [
    "EVENT_KINDS",
    "EventKind",
    "message_names",
    "wait_name",
]
