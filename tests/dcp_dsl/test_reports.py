"""Whole reports on texts, the samples that they are made from, and checks that are repeated."""

import re
from collections import Counter
from pathlib import Path

import pytest

from dcp_dsl import Sample, Spec, check_report
from dcp_dsl.claims.samples import all_layouts, claim_samples, shrink
from dcp_dsl.claims.steps import Meanings, Memory, all_steps
from dcp_dsl.claims.testing import Testing
from dcp_dsl.errors import Budget, DatasetError
from dcp_dsl.specs.spec import _read

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


@pytest.mark.parametrize("name", ["masks", "claims", "lints", "proofs"])
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


# ---- what claims are tried on --------------------------------------------------------------------


MASKS = {
    "no columns": "mask m = causal",
    "a list": "segment doc = [lens]*  mask m = same(doc)",
    "a number, a list, a rest": "segment s = a[n] b[ms]* tail[..]  mask m = same(b) and k in a",
    "lists of lists": "segment s = doc(a[xs] b[ys]*)*  mask m = same(b)",
    "arithmetic, groups": "segment s = (a[2 * n] b[m - 1]) c[4] d[k // 2]  mask m = same(d)",
    "two layouts": "segment s = a[n] b[ms]*  segment t = x[n] y[ls]*  mask m = same(b) and same(y)",
    "parents": "segment s = a[n] branch b[ms]* from up  mask m = paths",
    "flags, ids": "segment f = flags(a)  segment i = ids(b) as x, y  segment j = ids(c)"
                  "  mask m = k in f and k in x and same(j)",
    "spans, positions": "segment f = spans(a)  segment p = positions(b)  mask m = same(f)",
    "tokens, lists of tokens": "token t  token l[2]  mask m = q.t < 40 and q.t != 70 and k in q.l",
    "numbers of a row": "mask m = q - k < row.n and row.n != 9",
    "values of instances": "segment w = ids(d)  column a in w  mask m = q.w.a > 3",
    "declared ones": "segment doc = [lens]*  mask m = same(doc)  sample a(lens = [5])"
                     "  sample b(lens = [300])  sample c(len = 3)  sample d(lens = [2], len = 9)",
}  # fmt: skip


def counted(values):
    return " ".join(f"{value}:{count}" for value, count in sorted(Counter(values).items()))


def numbers_of(value):
    return [n for item in value for n in numbers_of(item)] if isinstance(value, list) else [value]


def counts_of(samples):
    """Return how often samples have each length, and their columns each size and value."""
    lengths = counted(s.length for s in samples)
    lines = [f"tokens {lengths}"]
    for column in sorted(samples[0].columns):
        values = [s.columns[column] for s in samples]
        if isinstance(values[0], list):
            sizes = counted(map(len, values))
            lines += [f"{column} has {sizes}"] if sizes != lengths else []
            inner = [len(item) for v in values for item in v if isinstance(item, list)]
            lines += [f"{column} inside {counted(inner)}"] if inner else []
        lines.append(f"{column} is {counted(n for v in values for n in numbers_of(v))}")
    return lines


def test_made_up_samples_have_many_shapes_and_every_value(snapshots):
    found = {}
    for name, text in MASKS.items():
        spec = Spec.from_text(text)
        mask, broken = spec.mask("m"), frozenset({"d"})
        closed, open_ = (
            list(claim_samples(mask, None, spec.scope, broken, Budget(2**30), with_open=flag))
            for flag in (False, True)
        )
        assert closed in ([], open_)
        lines = [text, f"{len(open_)} samples, {len(closed)} without columns of any integer"]
        found[name] = "\n".join([*lines, *counts_of(open_)])
    snapshots.check("trials", found)


STEPS = {
    "a column per token": (
        "segment f = flags(marks)  mask m = same(f)", {"marks": [1, 0, 1, 1, 1]}, 5,
        lambda s: sum(s.columns["marks"]) > 1,
    ),
    "no columns": ("mask m = causal", {}, 11, lambda s: s.length >= 3),
    "numbers": ("mask m = q - k < row.n", {"n": 9, "m": -3}, 1, lambda s: s.columns["n"] > 3),
    "lists of a layout": (
        "segment d = x[n] doc[lens]*  mask m = same(doc)", {"lens": [3, 0, 4], "n": 2}, 9,
        lambda s: s.length > 4 and len(s.columns["lens"]) > 1,
    ),
    "lists of lists": (
        "segment s = doc(a[xs] b[ys]*)*  mask m = same(b)",
        {"xs": [1, 2], "ys": [[2, 1], [3]]}, 9,
        lambda s: [] not in s.columns["ys"] and s.length > 2,
    ),
    "a layout and a column per token": (
        "segment doc = [lens]*  token t  mask m = q.t == k.t and same(doc)",
        {"lens": [2, 1], "t": [5, 0, 7]}, 3, lambda s: 7 in s.columns["t"],
    ),
}  # fmt: skip


def test_a_sample_shrinks_step_by_step_as_long_as_its_fault_stays(snapshots):
    found = {}
    for name, (text, columns, length, is_faulty) in STEPS.items():
        spec = Spec.from_text(text)
        mask, tried = spec.mask("m"), []

        def search(sample, mask=mask, tried=tried, is_faulty=is_faulty):
            try:
                mask.compile(sample)
                fault = is_faulty(sample) or None
            except DatasetError:
                fault = False
            tried.append(f"{sample.to_json()} {'!' if fault else '' if fault is None else 'unfit'}")
            return sample if fault else None

        first = Sample(columns, length)
        per_token = [name for name in ("marks", "t") if name in columns]
        last = shrink(first, first, search, per_token, all_layouts(mask, spec.scope))
        found[name] = "\n".join([text, first.to_json(), *map(str.strip, tried), last.to_json()])
    snapshots.check("trials_smaller", found)


def test_shrinking_ends_after_as_many_tries_as_are_allowed():
    tried = []
    first = Sample({}, 10**6)
    last = shrink(first, first, lambda s: tried.append(s) or s, [], [])
    assert last.length == 0
    tried.clear()
    first = Sample({"a": [1] * 500}, 500)
    assert shrink(first, first, lambda s: tried.append(s), ["a"], []) is first
    assert len(tried) == 400


# ---- checks that repeat what was found before, as editors take them ------------------------------


REPORTS = Path(__file__).parents[1] / "fixtures" / "reports"
VERSIONED = [
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
    for text in VERSIONED[BUDGETS.index(budgets) :: len(BUDGETS)]:
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
