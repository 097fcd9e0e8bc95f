"""Commands that read plans: `simulate`, `compare`, `why`, `validate`."""

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from command_runs import SMALL, planned, run
from rich.console import Console

from dcp_planner import (
    PlanError,
    predict,
    preset,
    read_plan,
    simulate,
    write_plan,
)
from dcp_planner.causes import diagnosis as causes_found
from dcp_planner.causes import explain
from dcp_planner.commands.compare import compare
from dcp_planner.commands.plan import plan as plan_command
from dcp_planner.commands.simulate import simulate as simulate_command
from dcp_planner.commands.tables import console_of_tables, print_table
from dcp_planner.commands.validate import validate as validate_command
from dcp_planner.commands.why import why as why_command
from dcp_planner.model.problem import PlanWarning


def test_simulate_predicts_what_simulate_gives(folder):
    _, out = planned(folder, "--sample", '{"len": 50}')
    result = run(simulate_command, out, "--json")
    document = json.loads(result.stdout)
    trace = simulate(read_plan(out).plan)
    assert document["schema"] == "dcp.simulate/1"
    assert document["predicted"]["forward_s"] == trace.seconds(is_backward=False)
    assert document["predicted"]["wait_s"] == trace.lane_seconds("wait", 2).tolist()
    table = run(simulate_command, out).stdout
    assert "communication hidden" in table
    assert "peak buffer" in table


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_reader_that_leaves_early_ends_a_command_with_1_and_no_word(pair, form):
    """So do click and rich, as Python's documents advise; `head` in a pipe is no error of ours."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "from dcp_dsl.cli import main; main()"
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-c", code, "simulate", pair[0], *form],
            stdout=closed, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")


def test_simulate_takes_the_constants_of_another_machine(folder):
    _, out = planned(folder, "--sample", '{"len": 50}')
    made = read_plan(out).plan
    slow = dataclasses.replace(preset("cpu-gloo"), nodes=1, devices_per_node=2)
    document = json.loads(run(simulate_command, out, "--cluster", "cpu-gloo", "--json").stdout)
    expected = simulate(dataclasses.replace(made, cluster=slow)).seconds(is_backward=False)
    assert document["predicted"]["forward_s"] == expected
    assert document["cluster"]["name"] == "cpu-gloo"


def test_compare_puts_two_plans_side_by_side(pair):
    document = json.loads(run(compare, *pair, "--json").stdout)
    plans = [read_plan(path).plan for path in pair]
    times = [simulate(plan) for plan in plans]
    makespan = document["figures"]["makespan"]
    seconds = [t.seconds(is_backward=False) + t.seconds(is_backward=True) for t in times]
    assert [makespan["first"], makespan["second"]] == seconds
    assert makespan["change"] == pytest.approx(seconds[1] / seconds[0] - 1)
    assert document["same_lengths"] is True
    assert document["failed"] == document["notes"] == []
    table = run(compare, *pair).stdout
    assert "compute imbalance" in table
    assert "%" in table


def test_compare_says_why_in_words_and_in_json(pair):
    cause = json.loads(run(compare, *pair, "--json").stdout)["cause"]
    found = explain(*(read_plan(path).plan for path in pair))
    for side, diagnosis in (("first", found.first), ("second", found.second)):
        assert cause[side]["seconds"] == diagnosis.seconds
        saves = [one["saves_s"] for one in cause[side]["causes"]]
        assert saves == sorted(saves, reverse=True)
        assert saves == [one.saves_s for one in diagnosis.causes]
    assert cause["reason"] == found.reason
    assert cause["difference_s"] == found.second.seconds - found.first.seconds
    shown = " ".join(run(compare, *pair).stdout.split())
    assert cause["text"] in shown
    assert cause["text"].startswith("The ")
    same = json.loads(run(compare, pair[0], pair[0], "--json").stdout)["cause"]
    assert same["reason"] == "close"


def test_why_diagnoses_each_plan_once(pair, monkeypatch):
    seen = []
    monkeypatch.setattr(
        causes_found,
        "find_causes",
        lambda p, find=causes_found.find_causes: seen.append(p) or find(p),
    )
    result = run(why_command, pair[1], "--against", pair[0], "--no-try")
    assert (result.exit_code, len(seen)) == (0, 2), result.output


def test_why_prints_three_sentences_the_path_and_what_to_try(pair):
    result = run(why_command, pair[1], "--against", pair[0])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    compared = json.loads(run(compare, pair[1], pair[0], "--json").stdout)["cause"]["text"]
    times = compared.replace("The first", "This plan").replace("the first", "this plan")
    assert times.replace("The second", "The other").replace("the second", "the other") in shown
    for part in ("The plan takes ", "of the communication is hidden.", "Most is lost to ",
                 "critical path"):  # fmt: skip
        assert part in shown
    assert "what to try" in shown or "Tried without a gain" in shown
    assert "what to try" not in run(why_command, pair[1], "--no-try").stdout


def test_why_as_json_lists_causes_largest_first(pair):
    document = json.loads(run(why_command, pair[1], "--json").stdout)
    plan = read_plan(pair[1]).plan
    assert document["schema"] == 1
    assert document["seconds"] == predict(plan).seconds
    saves = [cause["saves_s"] for cause in document["causes"]]
    assert saves == sorted(saves, reverse=True)
    kinds = {"compute", "links", "latency", "order", "launches", "memory", "idle"}
    assert {cause["kind"] for cause in document["causes"]} <= kinds
    for side in ("forward", "backward"):
        sums = {round(sum(device.values()), 12) for device in document["accounting"][side]}
        assert len(sums) == 1
    steps = document["path"]["steps"]
    assert sum(step["seconds"] for step in steps) == pytest.approx(document["seconds"])
    for suggestion in document["try"]:
        assert suggestion["seconds"] + suggestion["saves_s"] == pytest.approx(document["seconds"])


def test_why_refuses_plans_of_other_batches(folder, pair):
    other = folder / "longer.dcpplan"
    made = run(plan_command, folder / "a.dcpm", "--sample", '{"len": 300}', *SMALL, "--mask",
               "causal", "--out", other)  # fmt: skip
    assert made.exit_code == 0, made.output
    result = run(why_command, pair[0], "--against", other)
    assert result.exit_code != 0
    assert "expected two plans of one batch" in str(result.exception)


def test_tables_fit_60_columns_and_keep_every_word(pair, monkeypatch):
    monkeypatch.chdir(pair[0].parent)
    names = [path.rename(name).name for path, name in zip(pair, ("old", "new"), strict=True)]
    planned = ("a.dcpm", "--mask", "causal", "--sample", "len = 400", "--block", 64)
    again = (plan_command, *planned, "--cluster", "1x2")
    commands = [
        (simulate_command, names[0]), (compare, *names), (why_command, names[1]),
        (*again, "--against", "static"), (*again, "--front"),
    ]  # fmt: skip
    for command, *arguments in commands:
        words = []
        for width in (60, 120):
            monkeypatch.setenv("COLUMNS", str(width))
            lines = run(command, *arguments).stdout.splitlines()
            text = [line for line in lines if "|" not in line and "planned in" not in line]
            words.append(Counter(" ".join(text).split()))
            assert max(map(len, lines)) <= width
        assert words[0] == words[1]
        assert words[0].total() > 20


def test_figures_stay_whole_where_they_do_not_fit(capsys):
    figures, heads = ["1234567.8 MB"] * 8, [f"device {at}" for at in range(8)]
    print_table(console_of_tables(), ("what", *heads), [("a long label", *figures)])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.count("1234567.8 MB") for line in lines) == len(figures)
    assert max(map(len, lines)) > 60


@pytest.mark.parametrize(
    ("heads", "bold"), [(("what", "moved"), ["what", "moved"]), (("", ""), ["tokens", "pairs"])]
)
def test_heads_of_a_table_are_bold_and_without_them_its_first_column(heads, bold):
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    print_table(console, heads, [("tokens", "12"), ("pairs", "34")])
    assert re.findall(r"\x1b\[1m *(\w+)", console.file.getvalue()) == bold


def test_compare_fits_long_file_names_into_80_columns(pair):
    folder = pair[0].parent / ("a" * 90)
    folder.mkdir()
    paths = [path.rename(folder / path.name) for path in pair]
    lines = run(compare, *paths).stdout.splitlines()
    assert lines[:2] == [f"first   {paths[0]}", f"second  {paths[1]}"]
    assert lines[2].split() == ["first", "second", "change"]


def test_compare_says_that_heads_and_devices_differ(folder, pair):
    assert "note:" not in run(compare, *pair).stderr
    result = run(
        plan_command, folder / "a.dcpm", "--sample", '{"len": 400}', "--mask", "causal",
        "--cluster", "1x3", "--heads", "2/1/8", "--backend", "static:zigzag",
        "--out", folder / "other.dcpplan",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    notes = run(compare, pair[0], folder / "other.dcpplan").stderr
    assert "the two plans are for other model shapes" in notes
    assert "the two plans are for other clusters" in notes
    document = json.loads(run(compare, pair[0], folder / "other.dcpplan", "--json").stdout)
    assert [f"note: {note}" for note in document["notes"]] == notes.splitlines()


def test_compare_says_that_masks_or_lengths_differ(folder, pair):
    made = {"local": ("local", 400), "short": ("causal", 40)}
    for name, (mask, length) in made.items():
        result = run(
            plan_command, folder / "a.dcpm", "--sample", f"len = {length}", *SMALL,
            "--mask", mask, "--out", folder / f"{name}.dcpplan",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
    for name, what in (("local", "other masks"), ("short", "batches of other lengths")):
        result = run(compare, pair[0], folder / f"{name}.dcpplan", "--json")
        document = json.loads(result.stdout)
        assert document["notes"] == [f"the two plans are for {what}"]
        assert document["cause"]["reason"] is None
        assert "these compute other pairs" in document["cause"]["text"]


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("makespan>+20%", 0), ("compute_imbalance<-10%", 1), ("compute_imbalance > 1.4", 0),
        ("compute_imbalance<1.4", 1), ("forward_inter_bytes>+5%", 0), ("forward_bytes>-100%", 1),
    ],
)  # fmt: skip
def test_compare_fails_if_a_condition_holds(pair, condition, status):
    result = run(compare, *pair, "--fail-if", condition, "--json")
    assert result.exit_code == status, result.output
    assert json.loads(result.stdout)["failed"] == ([condition] if status else [])


@pytest.mark.parametrize("condition", ["makespan", "makespan>", "speed>1", "makespan>1;", ">2"])
def test_a_condition_that_is_none_is_refused(pair, condition):
    result = run(compare, *pair, "--fail-if", condition)
    assert isinstance(result.exception, PlanError)
    assert condition in str(result.exception)


def test_validate_says_that_a_plan_keeps_every_invariant(pair):
    result = run(validate_command, *pair, "--json")
    assert result.exit_code == 0
    files = json.loads(result.stdout)["files"]
    assert [f["status"] for f in files] == ["valid", "valid"]


def test_validate_names_the_broken_invariant_and_where(pair, folder, run_main):
    made = read_plan(pair[0]).plan
    pairs = made.tiles.pairs.copy()
    pairs[3] += 1
    broken = dataclasses.replace(made, tiles=dataclasses.replace(made.tiles, pairs=pairs))
    write_plan(folder / "broken.dcpplan", broken)
    done = run_main("validate", "broken.dcpplan", "contiguous.dcpplan", "--json")
    assert done.returncode == 1, done.stderr
    first, second = json.loads(done.stdout)["files"]
    assert first["invariant"] == "tiles cover every visible pair exactly once"
    assert first["where"].startswith(f"tile 3 (pairs {pairs[3]}, visible {pairs[3] - 1}")
    assert second["status"] == "valid"
    text = run_main("validate", "broken.dcpplan").stdout
    assert text == f"broken.dcpplan: broken: {first['invariant']}; at {first['where']}\n"


def test_validate_tells_what_is_no_plan_from_a_broken_one(run_main):
    done = run_main("validate", "a.dcpm", "gone.dcpplan")
    assert done.returncode == 2
    assert "a.dcpm: expected a whole zip archive" in done.stdout
    assert "zip archive, got: another kind of file; write it again" in done.stdout
    assert "gone.dcpplan: there is no such file" in done.stdout


def test_texts_of_a_plan_are_printed_as_they_are(folder):
    _, out = planned(folder, "--sample", '{"len": 50}')
    plan = read_plan(out).plan
    cluster = dataclasses.replace(plan.cluster, name="a [bold]b[/x]")
    write_plan(
        out,
        dataclasses.replace(
            plan, cluster=cluster, warnings=(PlanWarning("placed_by_layout", "less [/y]"),)
        ),
    )
    result = run(simulate_command, out)
    assert result.exit_code == 0, result.output
    assert "(a [bold]b[/x])" in result.stdout
    assert "warning: less [/y]" in result.stdout


def test_simulate_refuses_what_is_no_plan(run_main):
    done = run_main("simulate", "a.dcpm")
    assert done.returncode == 2
    assert done.stderr.startswith("dcpm: plan file a.dcpm: expected a whole zip archive")


def test_simulate_says_that_the_plans_own_devices_stay(folder):
    _, out = planned(folder, "--sample", '{"len": 50}')
    assert "the plan is for 1x2 devices" in run(simulate_command, out, "--cluster", "1x4").stderr
    assert "note:" not in run(simulate_command, out, "--cluster", "1x2").stderr
