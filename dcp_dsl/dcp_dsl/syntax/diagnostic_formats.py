"""Explain codes, and write findings for GitHub and as SARIF 2.1.0.

The explanations are the sections of ``docs/diagnostics-*.md``, which the package carries.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dcp_dsl.errors import DCPError
from dcp_dsl.syntax.diagnostics import Diagnostic, Fix, did_you_mean

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
PROJECT_PAGE = "https://pypi.org/project/dcp-dsl"
# In a property of a GitHub command `:` and `,` separate; in its message only `%` and line ends do.
_ESCAPES = {ord(character): f"%{ord(character):02X}" for character in "%\r\n:,"}
FAMILIES = ("syntax", "names", "warnings", "formats")
"""Pages of the documentation, in the order of their codes."""
_TITLE = re.compile(r"^## ([EWCX]\d{3}) (.+)$", re.MULTILINE)


class UnknownCodeError(DCPError):
    """A code that no message carries."""


@dataclass(frozen=True, slots=True)
class CodeExplanation:
    """The documentation of one code; `body` is Markdown: why, a bad example, a good one."""

    code: str
    title: str
    body: str


def explain_code(code: str) -> CodeExplanation:
    """Return the documentation of a code, in any case of letters."""
    known = explanations()
    wanted = code.strip().upper()
    if wanted not in known:
        hint = did_you_mean(wanted, known)
        raise UnknownCodeError(
            f"no code `{code}`{'; ' + hint if hint else ''} (codes: {', '.join(known)})"
        )
    return known[wanted]


@cache
def explanations() -> dict[str, CodeExplanation]:
    """Return the documentation of all codes by code, in their order."""
    known = {}
    for family in FAMILIES:
        text = _page(family).read_text(encoding="utf-8")
        titles = list(_TITLE.finditer(text))
        ends = [match.start() for match in titles[1:]] + [len(text)]
        for match, end in zip(titles, ends, strict=True):
            known[match[1]] = CodeExplanation(match[1], match[2], text[match.end() : end].strip())
    return known


def _page(family: str) -> Path:
    """Return the path of a page: in an installed package, or in a checkout's documentation."""
    packaged = Path(__file__).with_name(f"diagnostics-{family}.md")
    return packaged if packaged.exists() else Path(__file__).parents[3] / "docs" / packaged.name


def format_github(diagnostic: Diagnostic) -> str:
    """Return the line that makes GitHub Actions annotate a pull request.

    Source: GitHub documentation, "Workflow commands for GitHub Actions".
    """
    place = {
        "title": f"dcpm {diagnostic.code}", "file": diagnostic.name, "line": diagnostic.line,
        "endLine": diagnostic.line, "col": diagnostic.column, "endColumn": diagnostic.end_column,
    }  # fmt: skip
    properties = ",".join(f"{key}={str(value).translate(_ESCAPES)}" for key, value in place.items())
    message = f"{diagnostic.code} {_message(diagnostic)}"
    message = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{diagnostic.severity} {properties}::{message}"


def _message(diagnostic: Diagnostic) -> str:
    return diagnostic.message + (f"\n{diagnostic.hint}" if diagnostic.hint else "")


def format_sarif(
    found: Sequence[Diagnostic], texts: Mapping[str, str], version: str
) -> dict[str, Any]:  # Any: a JSON document
    """Return all findings as one SARIF log, with the documentation of their codes and their fixes.

    Source: OASIS, SARIF 2.1.0.
    """
    codes = sorted({diagnostic.code for diagnostic in found})
    driver = {
        "name": "dcpm",
        "version": version,
        "informationUri": PROJECT_PAGE,
        "rules": [_rule(code) for code in codes],
    }
    results = [_result(d, codes.index(d.code), texts.get(d.name, "")) for d in found]
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
        ],
    }


def _rule(code: str) -> dict[str, Any]:  # Any: as above
    section = explanations().get(code)
    rule: dict[str, Any] = {
        "id": code,
        "defaultConfiguration": {"level": "warning" if code.startswith("W") else "error"},
    }
    if section is not None:
        rule["shortDescription"] = {"text": section.title}
        rule["help"] = {"text": section.body, "markdown": section.body}
    return rule


def _result(diagnostic: Diagnostic, rule: int, text: str) -> dict[str, Any]:  # Any: as above
    line = diagnostic.line
    region = _region((line, diagnostic.column), (line, diagnostic.end_column))
    location = {
        "physicalLocation": {"artifactLocation": _artifact(diagnostic.name), "region": region}
    }
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity,
        "message": {"text": _message(diagnostic)},
        "locations": [location],
    }
    if diagnostic.fix is not None:
        result["fixes"] = [_fix(diagnostic.fix, diagnostic.name, text)]
    return result


def _fix(fix: Fix, name: str, text: str) -> dict[str, Any]:  # Any: as above
    replacements = []
    for edit in fix.edits:
        region = _region(_place(text, edit.start), _place(text, edit.end))
        replacements.append({"deletedRegion": region, "insertedContent": {"text": edit.text}})
    change = {"artifactLocation": _artifact(name), "replacements": replacements}
    return {"description": {"text": fix.title}, "artifactChanges": [change]}


def _place(text: str, offset: int) -> tuple[int, int]:
    # Lines and columns of SARIF count from 1.
    line = text.count("\n", 0, offset)
    return line + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def _region(start: tuple[int, int], end: tuple[int, int]) -> dict[str, int]:
    (first, column), (last, end_column) = start, end
    return {
        "startLine": first, "startColumn": column, "endLine": last, "endColumn": end_column,
    }  # fmt: skip


def _artifact(name: str) -> dict[str, str]:
    # A relative path becomes a relative URI, which GitHub resolves in the repository.
    path = Path(name)
    return {"uri": path.as_uri() if path.is_absolute() else quote(path.as_posix())}
