"""What `dcpm audit` prints: a line for each finding, and under a fault the line that mends it."""

import textwrap
from dataclasses import asdict
from typing import Any

from dcp_runtime.auditing.findings import AuditFinding

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
