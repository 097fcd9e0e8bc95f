"""What all ranks must agree on before blocks travel: the plan, and the tensors it runs on.

A rank that cannot go on says so here, so that all ranks raise and stand at the same place: what was
wrong can be mended and tried again, and nobody waits for a message that never comes.
"""

from collections import Counter
from collections.abc import Callable

from dcp_runtime.errors import RunError
from dcp_runtime.transport import Transport

_ERROR = "error: "


class DisagreementError(RunError):
    """Ranks hold different plans or tensors, or one of them is wrong; all ranks raise."""


def agree(transport: Transport, what: str, place: str, find: Callable[[], str]) -> None:
    """Compare a value with that of every other rank; collective, a few store round trips.

    Args:
        transport: ranks that must agree.
        what: how the message calls the value, for example ``"plan digest"``.
        place: the step, for example ``"prepare"``.
        find: gives this rank's value, or raises a `RunError` that all ranks should hear of.

    Raises:
        RunError: what `find` raised; on the other ranks a `DisagreementError` that quotes it, or
            says which rank differs from most; or names a rank that does not come.
    """
    if transport.size == 1:
        find()
        return
    try:
        value = find()
    except RunError as error:
        transport.meet(f"{_ERROR}{error}", place)
        raise
    values = transport.meet(value, place)
    for rank, other in enumerate(values):
        if other.startswith(_ERROR):
            text = f"rank {rank} failed in {place}: {other.removeprefix(_ERROR)}"
            raise DisagreementError(text, rank=rank, division=0)
    counts = Counter(values)
    if len(counts) == 1:
        return
    # Most ranks are right; of two equal halves, the one with rank 0.
    common = max(counts, key=lambda v: (counts[v], -values.index(v)))
    odd = next(rank for rank, v in enumerate(values) if v != common)
    raise DisagreementError(
        f"rank {odd} has another {what} than rank {values.index(common)} in {place}: expected "
        f"{common}, got {values[odd]}; give every rank the same plan and tensors of the same kind",
        rank=odd,
        division=0,
    )
