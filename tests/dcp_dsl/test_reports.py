"""Whole reports on texts: findings with places, hints and fixes, verdicts with reasons."""

import re
from pathlib import Path

import pytest

from dcp_dsl import check_report

TEXTS = Path(__file__).parents[1] / "fixtures" / "reports"
PATHS = """
segment part = ask[ask_len] branch try(step[steps]*)*
segment turn = flags(marks)
token word
column score in try
@partial mask m(n: int) = paths and """
FACTS = [
    "true", "k in ask", "not (k in step)", "same(try)", "k in turn", "same(turn)", "q <= k",
    "q - k < 4", "q.path - k.path < 4", "q.path - k.path < n", "q.path + 1 > 2 * k.path",
    "1 < k.path", "q.word == k.word", "q.try.score > 2", "row.n > 2", "len > 3",
    "k in first(step)", "q.try > 0", "q.try.start < 5", "(k in ask) per part", "q + 1 in ask",
    "max(q, k) in ask", "max(q, k).path < 3", "min(q.path, 3) < k.try", "k in ask or same(step)",
]  # fmt: skip


def read_texts(name: str) -> dict[str, str]:
    _, *parts = re.split(r"^=== (.*)\n", (TEXTS / f"{name}.txt").read_text(), flags=re.M)
    return {title: text.strip() for title, text in zip(parts[::2], parts[1::2], strict=True)}


def told(text: str) -> str:
    """Return everything that a check says, with the text."""
    report = check_report(text)
    lines = [f"| {line}" for line in text.splitlines()]
    for found in report.diagnostics:
        place = f"{found.line}:{found.column}-{found.end_column}"
        lines.append(f"{place} {found.code} {found.message}")
        lines += [f"    hint: {found.hint}"] if found.hint else []
        if found.fix is not None:
            (edit,) = found.fix.edits
            before, old = text[: edit.start][-9:], text[edit.start : edit.end]
            lines.append(f"    fix: {found.fix.title}: {before!r} {old!r} -> {edit.text!r}")
    for verdict in report.verdicts:
        why = f" on {verdict.samples}" if verdict.samples else ""
        why += f": {verdict.reason}" if verdict.reason else ""
        lines.append(f"{verdict.line} {verdict.what} - {verdict.outcome}{why}")
    return "\n".join([*lines, report.summary()])


@pytest.mark.parametrize("name", ["masks", "claims", "lints"])
def test_reports_say_what_is_wrong_and_how_they_know(name, snapshots):
    found = {title: told(text) for title, text in read_texts(name).items()}
    snapshots.check(f"reports_{name}", found)


def test_facts_that_are_the_same_on_each_path_alone(snapshots):
    lines = []
    for fact in FACTS:
        report = check_report(f"{PATHS}{fact}")
        said = [f"{v.what[8:]} - {v.outcome}" for v in report.verdicts if "path" in v.what]
        said += [d.code for d in report.diagnostics if d.code != "W203"]
        lines.append(f"{fact}: {', '.join(said)}")
    snapshots.check("reports_paths", {f"{PATHS}...": "\n".join(lines)})


LIMITS = {
    "MAX_STEPS": (0, 2**18, 2**20),
    "MAX_TEXT_STEPS": (0, 60, 120),
    "SHRINKING_STEPS": (0, 2**21, 2**22),
}


def test_limits_of_work_leave_the_rest_undecided(monkeypatch, snapshots):
    (text,) = read_texts("limits").values()
    whole = check_report(text)
    lines = [text, "", *(f"{v.line} {v.what}" for v in whole.verdicts), ""]
    for name, limits in LIMITS.items():
        for limit in limits:
            with monkeypatch.context() as patch:
                patch.setattr(f"dcp_dsl.claims.testing.{name}", limit)
                report = check_report(text)
            said = ", ".join(f"{v.outcome} {v.samples or ''}".strip() for v in report.verdicts)
            lines.append(f"{name} = {limit}: {said}")
            if name == "SHRINKING_STEPS":
                lines += [f"    {d.hint}" for d in report.diagnostics if d.code == "C401"][-1:]
    snapshots.check("reports_limits", {"": "\n".join(lines)})
