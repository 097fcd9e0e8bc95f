"""The first tampers of the campaign: refused, or harmless, and both validators say the same."""

from pathlib import Path

import plan_file_rows
import plan_tampers
import pytest
import tamper_fuzz

from dcp_planner.plan import validation

SIDES = ("kv_block", "q_block")  # of tiles, by the kind of their inputs
DOCS = Path(__file__).parents[2] / "docs"
CONTRACT = [DOCS / "dcpplan.md", DOCS / "dcpplan-rules.md"]


def plain(text):
    return " ".join(text.split())


def test_every_tamper_is_about_a_sentence_of_the_document():
    text = plain(" ".join(page.read_text() for page in CONTRACT))
    assert not [s for s, _ in plan_tampers.SENTENCES if plain(s) not in text]


@pytest.mark.parametrize("number", range(len(plan_file_rows.SPECS)))
def test_both_validators_take_what_was_not_tampered_with(number, tmp_path):
    file = plan_file_rows.base(number)
    assert tamper_fuzz.judge_first(tmp_path / "x.dcpplan", file) == ""
    assert tamper_fuzz.judge_second(tmp_path / "x.dcpplan") == ""


def test_half_of_the_plans_that_are_tampered_with_receive_blocks_twice():
    twice = []
    for number in range(len(plan_file_rows.SPECS)):
        rows = plan_file_rows.base(number).tables["transfers"]
        places = [
            (r["is_backward"], r["kind"], r.get("group"), r["block"], r["source"], r["target"])
            for r in rows
        ]
        twice.append(len(set(places)) < len(places))
    assert twice == [True, True, False, False]


def test_the_others_pass_inputs_on_through_devices_that_do_not_need_them():
    passing = []
    for number in range(len(plan_file_rows.SPECS)):
        tables = plan_file_rows.base(number).tables
        read = {(row["device"], row[s], k) for row in tables["tiles"] for k, s in enumerate(SIDES)}
        passing.append({
            (row["is_backward"], row["kind"])
            for row in tables["transfers"]
            if row["kind"] < 2 and (row["target"], row["block"], row["kind"]) not in read
        })  # fmt: skip
    assert passing[:2] == [set(), set()]
    assert set.union(*passing[2:]) == {(way, kind) for way in (False, True) for kind in (0, 1)}


def test_the_first_tampers_are_refused_or_harmless():
    found = tamper_fuzz.campaign(0, 20)
    assert (found["cases"], found["wrong"], found["disagreements"]) == (20, 0, 0)
    assert found["refused"] + found["harmless"] == 20
    assert min(found["refused"], found["harmless"], found["executed"]) > 2


def test_a_validator_that_looks_at_no_program_is_found_out(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(validation, "check_programs", lambda *_: None)
    judged = []
    for seed in range(20):
        file, _ = plan_tampers.tamper_of(seed)
        first = tamper_fuzz.judge_first(tmp_path / "x.dcpplan", file)
        judged.append(bool(first) != bool(tamper_fuzz.judge_second(tmp_path / "x.dcpplan")))
    assert sum(judged) > 1
