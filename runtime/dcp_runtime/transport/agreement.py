"""All ranks agree on the plan, and on the tensors it runs on, before blocks travel.

A rank that cannot go on says so here, so that all ranks raise an error at the same place. A person
can then mend the cause and try again, and no rank waits for a message that never comes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from dcp_runtime.errors import RunError
from dcp_runtime.transport.transport import Transport

_ERROR = "error: "
_Value = TypeVar("_Value")


class Topic(NamedTuple):
    """Something that ranks must agree on: its name in messages, and what to do when they differ."""

    what: str
    way_out: str


_STEP = Topic("step", "all ranks prepare the same plans and run the same layers in the same order")


def agree(
    transport: Transport,
    topics: Sequence[Topic],
    place: str,
    propose: Callable[[], tuple[Sequence[str], _Value]],
) -> _Value:
    """Compare notes with those of every other rank; collective, a few store round trips.

    Args:
        transport: ranks that must agree.
        topics: what is compared; the first that differs is named.
        place: the step, for example ``"prepare"``.
        propose: returns this rank's value of each topic, one line each and empty where it cannot
            know it, and what the rank goes on with once all agree; or raises a `RunError` that all
            ranks should hear of.

    Raises:
        RunError: what `propose` raised; on the other ranks an error that quotes it, or
            says which rank differs from most; or names a rank that does not come.
    """
    if transport.size == 1:
        return propose()[1]
    try:
        values, result = propose()
    except RunError as error:
        transport.exchange_notes(f"{_ERROR}{error}", place)
        raise
    notes = transport.exchange_notes(note_of(place, values), place)
    for rank, other in enumerate(notes):
        if other.startswith(_ERROR):
            text = f"rank {rank} failed in {place}: {other.removeprefix(_ERROR)}"
            raise RunError(text, rank=rank, division=0)
    # Ranks that stand at different steps have other topics: the first comparison ends there.
    for number, topic in enumerate((_STEP, *topics)):
        _compare(topic, [other.split("\n")[number] for other in notes], place)
    return result


def note_of(place: str, values: Sequence[str]) -> str:
    """Return the note that carries a rank's values to the others."""
    return "\n".join((place, *values))


def _compare(topic: Topic, values: list[str], place: str) -> None:
    counts = Counter(value for value in values if value)
    if len(counts) <= 1:
        return
    # Most ranks are right; of two equal halves, the one with the first rank.
    common = max(counts, key=lambda v: (counts[v], -values.index(v)))
    odd = next(rank for rank, v in enumerate(values) if v not in ("", common))
    raise RunError(
        f"rank {odd} has another {topic.what} than rank {values.index(common)} in {place}: "
        f"expected {common}, got {values[odd]}; {topic.way_out}",
        rank=odd,
        division=0,
    )
