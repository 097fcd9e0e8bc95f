from .event_tables import StreamPorts, streams_of
from .fair_rates import (
    NEVER_NS,
    Streams,
    end_stream,
    first_ended,
    next_end,
    start_stream,
)
from .simulator import Clocks, PlanModel, Prices, clocks_of
from .trace import EVENT_KINDS, EventKind, message_names, wait_name

__all__ = [
    "EVENT_KINDS",
    "NEVER_NS",
    "Clocks",
    "EventKind",
    "PlanModel",
    "Prices",
    "StreamPorts",
    "Streams",
    "clocks_of",
    "end_stream",
    "first_ended",
    "message_names",
    "next_end",
    "start_stream",
    "streams_of",
    "wait_name",
]
