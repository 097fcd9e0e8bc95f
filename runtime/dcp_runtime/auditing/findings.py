"""`AuditFinding`: one thing that an audit says, and the line that mends it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["data", "labels", "loss", "norm", "parameters", "ranks"]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that an audit says.

    Attributes:
        part: what it is about.
        kind: a short name of it, such as "averaged"; "right" where nothing is wrong.
        says: what was expected and found, in a sentence.
        way_out: the line to write, and where; empty if nothing is to be done.
        is_fault: whether training is wrong by it.
        names: of the parameters that it is about.
        ratio: of what was found to what is right, the median over the parameters.
    """

    part: Part
    kind: str
    says: str
    way_out: str = ""
    is_fault: bool = True
    names: tuple[str, ...] = ()
    ratio: float | None = None


def right(part: Part, says: str) -> AuditFinding:
    """Return a finding without a fault."""
    return AuditFinding(part, "right", says, is_fault=False)


def note(part: Part, kind: str, says: str, way_out: str = "") -> AuditFinding:
    """Return a finding that is no fault of the training, but limits what the audit knows."""
    return AuditFinding(part, kind, says, way_out, is_fault=False)
