"""Errors of planning, with messages fit to print."""

from collections.abc import Iterable

from dcp_dsl import DCPError, did_you_mean


class PlanError(DCPError):
    """A plan that cannot be made, or that breaks one of its invariants."""


class InvariantError(PlanError):
    """A row of a plan that breaks an invariant.

    Attributes:
        invariant: the rule, as a sentence that this row contradicts.
        where: the row, for example ``tile 3 (q_block 1, kv_block 0)``.
    """

    def __init__(self, invariant: str, where: str) -> None:
        self.invariant, self.where = invariant, where
        super().__init__(f"{invariant}: broken at {where}")


class BufferLimitError(PlanError):
    """A plan that needs more memory than it may; `least` bytes would be enough."""

    def __init__(self, direction: str, limit: int, least: int) -> None:
        self.least = least
        super().__init__(
            f"memory_limit_bytes: expected at least {least:,}, got {limit:,}: so many bytes one "
            f"device needs in {direction}, for what it receives and for partial results, however "
            f"blocks are streamed; allow {least:,} or more, use smaller blocks, more devices, or "
            "another partitioner"
        )


class PlanFileError(DCPError):
    """A .dcpplan file that cannot be read or written."""


class ClusterError(PlanError, ValueError):
    """An invalid cluster file, name or constant, or invalid heads; `key` names the constant."""

    def __init__(self, text: str, key: str = "") -> None:
        self.key = key
        super().__init__(text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that was probably meant, as the end of an error message.

    >>> nearest("zigzag", ["static:ring", "static:zigzag"])
    '; did you mean `static:zigzag`?'
    """
    hint = did_you_mean(name, tuple(known))
    return f"; {hint}" if hint else ""
