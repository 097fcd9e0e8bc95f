"""A transport that overlaps nothing: what a run gains by overlap is the difference.

Messages start when their rank next waits, and it then waits for all that are under way. Plans order
launches and waits in one way for all devices, so no two ranks can wait for each other here either.
"""

from collections.abc import Sequence

from dcp_planner import Direction
from dcp_runtime.transport.clock import Timeline
from dcp_runtime.transport.recorder import Recorder
from dcp_runtime.transport.transport import Parcel, Transport


class NoOverlapTransport:
    """Holds messages back until this rank waits.

    Args:
        inner: moves them.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size
        self._held: list[Parcel] = []

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Keep the parcels for the next wait."""
        self._held.extend(parcels)

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Start all that was kept and wait for all of it."""
        held, self._held = self._held, []
        self._inner.start(held)
        self._inner.wait(held, direction)  # of `parcels`, those not held were waited for before

    def report(self, place: str, division: int, error: Exception) -> None:
        """Tell the other ranks that this one cannot go on."""
        self._inner.report(place, division, error)

    def meet(self, note: str, place: str) -> list[str]:
        """Give the notes of all ranks in rank order; collective."""
        return self._inner.meet(note, place)

    def gather_timeline(self, recorder: Recorder) -> Timeline | None:
        """Give the events of all ranks on one clock to rank 0, ``None`` to others; collective."""
        return self._inner.gather_timeline(recorder)

    def close(self) -> None:
        """End what runs beside the program."""
        self._inner.close()
