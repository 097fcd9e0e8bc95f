"""Checks of a text that repeat what was found about an earlier version, as editors take them."""

import re
from pathlib import Path

import pytest

from dcp_dsl.claims.steps import Meanings, Memory, all_steps
from dcp_dsl.claims.testing import Testing
from dcp_dsl.errors import Budget
from dcp_dsl.specs.spec import _read

REPORTS = Path(__file__).parents[1] / "fixtures" / "reports"
TEXTS = [
    part.partition("\n")[2].strip()
    for name in ("claims", "lints", "masks")
    for part in re.split(r"^=== ", (REPORTS / f"{name}.txt").read_text(), flags=re.M)[1:]
][:-2]  # the last two take long
BUDGETS = [(2**21, 300, 2**20), (2**19, 100, 0), (2**23, 2_000, 2**22), (0, 20, 0)]


def versions_of(text, statements):
    """Yield a text with other places, without one statement, with one more, in another order."""
    yield text
    yield f"# words\n{text}"
    yield text.replace(statements[-1], "").strip()
    yield f"{text}\nsample extra(len = 2)\nmask extra(w: int = 2) = causal and q - k < w"
    yield "\n".join(reversed(statements))
    yield re.sub(r"\b[2-6]\b", lambda found: str(int(found[0]) + 1), text, count=1)
    yield text


def taken(scope, memory, budgets):
    """Take all steps of a text; return what they found and left, and which were repeated."""
    testing = Testing(scope, *map(Budget, budgets))
    meanings = Meanings(scope)
    steps = list(all_steps(testing))
    repeated = [memory.run(step, testing, meanings) for step in steps]
    memory.forget()
    left = testing.budget.left, testing.proofs.left, testing.shrinking.left
    # What was overdrawn is gone either way.
    found = testing.found, testing.verdicts, [max(0, steps) for steps in left]
    names = [step.kind for step, flag in zip(steps, repeated, strict=True) if not flag]
    return found, names


@pytest.mark.parametrize("budgets", BUDGETS)
def test_a_repeated_check_finds_and_spends_what_a_new_one_does(budgets, snapshots, monkeypatch):
    monkeypatch.setattr("dcp_dsl.claims.testing.MAX_FINDINGS", 5)
    monkeypatch.setattr("dcp_dsl.claims.steps.MAX_FINDINGS", 5)
    monkeypatch.setattr("dcp_dsl.claims.lints.registry.MAX_FINDINGS", 5)
    lines = []
    for text in TEXTS[BUDGETS.index(budgets) :: len(BUDGETS)]:
        memory = Memory()
        scope, _ = _read(text, "<text>")
        sources = [s.span.text(text) for s in scope.program.statements]
        lines.append(f"{text.splitlines()[0]} ...")
        for number, version in enumerate(versions_of(text, sources)):
            scope, problems = _read(version, "<text>")
            if any(found.severity == "error" for found in problems):
                lines.append(f"    {number}: an error")
                continue
            found, looked = taken(scope, memory, budgets)
            assert found == taken(scope, Memory(), budgets)[0], version
            lines.append(f"    {number}: looked at {', '.join(looked)}")
    snapshots.check(f"repeated_checks_{budgets[0]}", {"": "\n".join(lines)})


def test_layouts_in_another_order_are_searched_again():
    layouts = ["segment doc = [lens]*", "segment part = a[n] b[ms]*"]
    memory = Memory()
    for order in (layouts, layouts[::-1]):
        text = "\n".join([*order, "check same(b) and causal implies same(doc)"])
        scope, _ = _read(text, "<text>")
        found, looked = taken(scope, memory, (2**28, 1000, 2**27))
        assert "claim" in looked
        assert found == taken(scope, Memory(), (2**28, 1000, 2**27))[0]
