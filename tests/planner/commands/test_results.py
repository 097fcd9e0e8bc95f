"""Commands that read plans: `simulate`, `compare`, `why`, `validate`."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from command_runs import SMALL, SPEC, run

from dcp_planner import read_plan, write_plan
from dcp_planner.causes import diagnosis as causes_found
from dcp_planner.commands.compare import compare
from dcp_planner.commands.plan import plan as plan_command
from dcp_planner.commands.simulate import simulate as simulate_command
from dcp_planner.commands.tables import console_of_tables, print_table
from dcp_planner.commands.why import why as why_command
from dcp_planner.model.problem import PlanWarning


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


@pytest.fixture(scope="module")
def pair_made_once(tmp_path_factory):
    made = tmp_path_factory.mktemp("pair")
    (made / "a.dcpm").write_text(SPEC)
    for name in ("contiguous", "zigzag"):
        result = run(
            plan_command, made / "a.dcpm", "--sample", '{"len": 400}', *SMALL, "--mask", "causal",
            "--backend", f"static:{name}", "--out", made / f"{name}.dcpplan",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
    return made / "contiguous.dcpplan", made / "zigzag.dcpplan"


@pytest.fixture
def pair(folder, pair_made_once):
    """Two plans of one batch: contiguous and zigzag."""
    return tuple(Path(shutil.copy(path, folder)) for path in pair_made_once)


def test_why_diagnoses_each_plan_once(pair, monkeypatch):
    seen = []
    monkeypatch.setattr(
        causes_found,
        "find_causes",
        lambda p, find=causes_found.find_causes: seen.append(p) or find(p),
    )
    result = run(why_command, pair[1], "--against", pair[0], "--no-try")
    assert (result.exit_code, len(seen)) == (0, 2), result.output


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
            text = [line for line in lines if "|" not in line and "planning time" not in line]
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


def test_compare_fits_long_file_names_into_80_columns(pair):
    folder = pair[0].parent / ("a" * 90)
    folder.mkdir()
    paths = [path.rename(folder / path.name) for path in pair]
    lines = run(compare, *paths).stdout.splitlines()
    assert lines[1:3] == [f"first   {paths[0]}", f"second  {paths[1]}"]
    assert lines[3].split() == ["first", "second", "change"]


def test_texts_of_a_plan_are_printed_as_they_are(pair):
    plan = read_plan(pair[0]).plan
    cluster = dataclasses.replace(plan.cluster, name="a [bold]b[/x]")
    warnings = (PlanWarning("placed_by_layout", "less [/y]"),)
    write_plan(pair[0], dataclasses.replace(plan, cluster=cluster, warnings=warnings))
    result = run(simulate_command, pair[0])
    assert result.exit_code == 0, result.output
    assert "devices of a [bold]b[/x]" in result.stdout
    assert "warning: less [/y]" in result.stdout
