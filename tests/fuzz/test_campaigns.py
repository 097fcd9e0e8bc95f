"""The fuzzers find what is wrong, and a short run of each finds nothing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import file_fuzz
import plan_file_rows
import plan_tampers
import pytest
import row_fuzz
import tamper_fuzz

from dcp_dsl.claims.guard import Guard
from dcp_planner.plan import validation


@pytest.mark.slow
@pytest.mark.parametrize("kind", file_fuzz.KINDS)
def test_the_first_files_end_nothing(kind):
    command = [sys.executable, file_fuzz.__file__, "--kind", kind, "--count", "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)[kind]
    assert counts["read"] + counts["refused"] == 500
    assert counts["read"]


def test_signals_and_errors_are_counted_and_the_next_files_are_read(monkeypatch, capfd):
    def read(path: Path) -> None:
        match path.read_bytes()[0] % 4:
            case 1:
                os.kill(os.getpid(), signal.SIGKILL)
            case 2:
                raise IndexError
            case 3:
                raise file_fuzz.DatasetError("refused")

    cases = {"arrow": lambda: lambda rng: ("a", rng.randbytes(1), read)}
    monkeypatch.setattr(file_fuzz, "KINDS", cases)
    found = file_fuzz.run("arrow", 0, 40, 60)
    assert sum(found.values()) == 40
    assert min(found.values()) > 3
    told = capfd.readouterr().err
    assert told.count(": signal 9\n") == found["signals"]
    assert told.count("IndexError\n\n") == found["errors"]


# ---- the first rows of the campaign --------------------------------------------------------------


def test_checker_and_loader_agree_on_the_first_rows():
    found = row_fuzz.campaign(0, 1000)
    assert found["disagreements"] == 0
    assert found["refused"] > 200
    assert found["cases"] - found["refused"] > 200


def test_a_checker_that_proves_nothing_is_found_out(monkeypatch, capsys):
    monkeypatch.setattr(row_fuzz.Attachment, "guard", lambda self: Guard.of([]))
    assert row_fuzz.campaign(0, 1000)["disagreements"] > 20
    assert ": '', alone 'segment" in capsys.readouterr().err


# ---- the first tampers of the campaign -----------------------------------------------------------


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
