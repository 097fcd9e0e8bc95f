"""Errors of planning, with messages fit to print."""

from collections.abc import Iterable

from dcp_dsl import DCPError, did_you_mean


class PlanError(DCPError):
    """A plan that cannot be made, or that breaks one of its invariants."""


class InvariantError(PlanError):
    """A row of a plan that breaks an invariant.

    Attributes:
        invariant: the sentence that is not true.
        where: the row, for example ``tile 3 (q_block 1, kv_block 0)``.
    """

    def __init__(self, invariant: str, where: str) -> None:
        self.invariant, self.where = invariant, where
        super().__init__(f"{invariant}: broken at {where}")


class BufferLimitError(PlanError):
    """A plan that needs more memory than it may."""


class PlanFileError(DCPError):
    """A .dcpplan file that cannot be read or written."""


class ClusterError(PlanError, ValueError):
    """An invalid cluster file, name or constant; `key` names the constant."""

    def __init__(self, text: str, key: str = "") -> None:
        self.key = key
        super().__init__(text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the name that was probably meant, as the end of a sentence that refuses another.

    >>> nearest("zigzag", ["static:ring", "static:zigzag"])
    '; did you mean `static:zigzag`?'
    """
    hint = did_you_mean(name, tuple(known))
    return f"; {hint}" if hint else ""
