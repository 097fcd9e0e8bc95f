"""Whether a plan file holds a plan that keeps every invariant, as a value to print."""

from dataclasses import dataclass
from typing import Any, Literal

from dcp_planner.errors import PlanError, PlanFileError
from dcp_planner.plan.file import read_plan

_BROKEN_AT = ": broken at "


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check of one file found.

    Attributes:
        file: its path.
        status: ``valid``, ``broken`` (an invariant does not hold) or ``unreadable``.
        invariant: the sentence that is not true; empty unless broken.
        where: the row that shows it, for example ``tile 3 (q_block 1, kv_block 0)``; may be empty.
        message: everything there is to say; empty if valid.
    """

    file: str
    status: Literal["valid", "broken", "unreadable"]
    invariant: str = ""
    where: str = ""
    message: str = ""

    @property
    def exit_code(self) -> int:
        """0 valid, 1 broken, 2 unreadable."""
        return ("valid", "broken", "unreadable").index(self.status)

    def to_json(self) -> dict[str, Any]:
        """Give a JSON object; `Any`: texts."""
        return {name: getattr(self, name) for name in self.__slots__}

    def to_text(self) -> str:
        """Give a line for people."""
        if self.status == "valid":
            return f"{self.file}: valid"
        if self.status == "unreadable":
            return self.message
        return f"{self.file}: broken: {self.invariant}" + (f"; at {self.where}" * bool(self.where))


def check_file(path: str) -> Verdict:
    """Read a plan file and check its plan; never raises for what the file holds."""
    try:
        read_plan(path)
    except PlanFileError as error:
        broken = _cause(error)
        if broken is None:
            return Verdict(path, "unreadable", message=str(error))
        invariant, found, where = str(broken).partition(_BROKEN_AT)
        if not found:
            return Verdict(path, "broken", invariant=invariant, message=str(error))
        return Verdict(path, "broken", invariant, where, str(error))
    return Verdict(path, "valid")


def _cause(error: BaseException) -> PlanError | None:
    """Give the broken invariant behind an error of the file, if that is the reason."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, PlanError):
        cause = cause.__cause__
    return cause
