"""The exceptions of the runtime. Their messages are for users, to be printed as they are."""

from dcp_dsl import DCPError


class RunError(DCPError):
    """A plan that cannot be run as asked, or a rank that died, stalled or failed.

    Attributes:
        rank: the rank to blame, or ``None`` if the cause is no single rank.
        division: the division in which the rank was missed, or ``None``.
    """

    def __init__(
        self, message: str, *, rank: int | None = None, division: int | None = None
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.division = division


class PeerError(RunError):
    """Another rank died, stalled or failed; every rank of the world raises the same message."""
