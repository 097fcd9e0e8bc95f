"""Checks the text in the editor: findings of `dcpm check` with places, hover, completion."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dcp_dashboard.editing.source import outline, text_of, whole
from dcp_dsl import (
    Diagnostic,
    Spec,
    SpecError,
    check_report,
    format_source,
)
from dcp_dsl.language_server import complete_at, describe_at

MAX_PROPOSALS = 200


def check_text(request: Mapping[str, Any]) -> dict[str, Any]:
    """Check a text; `Any`: JSON values.

    Returns:
        ``findings``: what `dcpm check` prints, with ``start`` and ``end`` in characters of the
        text and its ``fix``; ``claims``: one line on what was proved; ``masks`` and ``samples`` of
        a text without errors.
    """
    text, name = text_of(request)
    report = check_report(text, name)
    findings = [_finding(found, name) for found in report.diagnostics]
    answer: dict[str, Any] = {
        "schema": "dcp.edit_check/1",
        "findings": findings,
        "claims": report.summary() if report.verdicts else "",
        "is_usable": False,
    }
    try:
        spec = Spec.from_text(text, name)
    except SpecError:
        return answer
    return answer | outline(spec) | {"is_usable": True}


def _finding(found: Diagnostic, name: str) -> dict[str, Any]:
    is_here = found.name == name
    return found.to_json() | {
        "file": "" if is_here else found.name,
        "start": found.start if is_here else 0,
        "end": found.end if is_here else 0,
        "fix": asdict(found.fix) if found.fix is not None and is_here else None,
    }


def describe_word(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hover text of a place as Markdown, empty if there is none."""
    text, name = text_of(request)
    offset = whole(request, "offset", 0, 0, len(text))
    return {"markdown": describe_at(text, offset, name) or ""}


def propose(request: Mapping[str, Any]) -> dict[str, Any]:
    """Propose words for a place."""
    text, name = text_of(request)
    offset = whole(request, "offset", 0, 0, len(text))
    found = complete_at(text, offset, name)[:MAX_PROPOSALS]
    return {"proposals": [asdict(proposal) for proposal in found]}


def format_text(request: Mapping[str, Any]) -> dict[str, Any]:
    """Format the text as `dcpm fmt` does."""
    return {"text": format_source(text_of(request)[0])}
