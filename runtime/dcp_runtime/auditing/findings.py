"""`AuditFinding`: one thing that an audit says, and the line that mends it; both in print."""

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Part: TypeAlias = Literal["data", "labels", "loss", "norm", "parameters", "ranks"]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that an audit says."""

    part: Part  # that it is about
    kind: str  # a short name of it, such as "averaged"; "right" where nothing is wrong
    says: str  # what was expected and found, in a sentence
    way_out: str = ""  # the line to write, and where; empty if nothing is to be done
    is_fault: bool = True  # training is wrong by it
    names: tuple[str, ...] = ()  # of the parameters that it is about
    ratio: float | None = None  # of what was found to what is right, the median over these


def right(part: Part, says: str) -> AuditFinding:
    """Return a finding without a fault."""
    return AuditFinding(part, "right", says, is_fault=False)


def note(part: Part, kind: str, says: str, way_out: str = "") -> AuditFinding:
    """Return a finding that is no fault of the training, but limits what the audit knows."""
    return AuditFinding(part, kind, says, way_out, is_fault=False)


WIDTH = 100


def to_text(title: str, found: list[AuditFinding]) -> str:
    """Return findings as text, faults first."""
    faults = sum(each.is_fault for each in found)
    lines = [f"{title}: {faults or 'no'} fault{'s' if faults != 1 else ''}"]
    for each in found:
        mark = "WRONG" if each.is_fault else "ok" if each.kind == "right" else "note"
        kind = "" if each.kind == "right" else f"{each.kind}: "
        lines += _wrapped(f"{mark:5} {each.part:10} {kind}{each.says}", "", 17)
        if each.way_out:
            lines += _wrapped(f"-> {each.way_out}", " " * 17, 20)
    return "\n".join(lines)


def _wrapped(text: str, start: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * indent, break_on_hyphens=False
    )


def to_json(script: str, ranks: int, found: list[AuditFinding]) -> dict[str, Any]:
    """Return the document that ``--json`` prints."""
    return {
        "schema": "dcp.audit/1", "script": script, "ranks": ranks,
        "faults": sum(each.is_fault for each in found),
        "findings": [asdict(each) for each in found],
    }  # fmt: skip
