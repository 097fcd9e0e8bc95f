import dataclasses
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from dcp_dsl import DatasetError, Sample, block_sparsity, load
from dcp_planner import (
    PARTITIONERS,
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    digest,
    measure,
    read_plan,
    simulate,
    write_plan,
)
from dcp_planner import commands as room

SPEC = """dcpm 1
mask local(width: tokens = 8) = causal and q - k < width
for "*/rows.jsonl" use local(width = 5)
segment doc = [doc_lens]*
sample tiny(doc_lens = [20, 30])
"""
SMALL = ("--block-size", "8", "--nodes", "1", "--devices-per-node", "2")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.dcpm").write_text(SPEC)
    rows = [{"len": n} for n in (30, 20, 400, 25, 0, 40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


def run_process(folder, *arguments):
    code = "from dcp_dsl.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def run(command, *arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments])


def planned(folder, *arguments):
    out = folder / "x.dcpplan"
    result = run(room.plan, folder / "a.dcpm", *SMALL, *arguments, "--out", out)
    return result, out


def test_plan_writes_the_plan_that_build_plan_makes(folder):
    result, out = planned(folder, "--sample", '{"len": 50}', "--mask", "local(width = 9)")
    assert result.exit_code == 0, result.output
    mask = load(folder / "a.dcpm").mask("local(width = 9)")
    sparsity = block_sparsity([mask.bind(Sample({}, 50))], 8, 8)
    expected = build_plan(sparsity, ModelShape(), Cluster(1, 2), PlanConfig())
    found = read_plan(out)
    assert digest(found.plan) == digest(expected)
    assert found.plan.provenance.mask == "local(width = 9)"
    assert found.plan.provenance.samples == ('{"len": 50}',)
    assert [t.source for t in found.traces] == ["simulated"]
    assert found.traces[0].seconds() == simulate(expected).seconds()


def test_plan_packs_the_chosen_batch_with_the_mask_of_the_data_set(folder):
    data = ("--dataset", folder / "rows.jsonl", "--tokens", 60)
    result, out = planned(folder, *data, "--batch", 1, "--json")
    assert result.exit_code == 0, result.output
    assert read_plan(out).plan.provenance.mask == "local(width = 5)"
    assert read_plan(out).plan.cu_seqlens.tolist() == [
        0,
        25,
    ]  # 30 + 20 | 25 | 40; 400 and 0 left out
    assert "2 of 6 rows are empty or longer than 60 tokens" in result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "dcp.plan_report/1"
    assert document["digest"] == digest(read_plan(out).plan)
    assert document["metrics"] == json.loads(json.dumps(measure(read_plan(out).plan).to_json()))


def test_plan_prints_a_table_and_keeps_progress_off_it(folder):
    result, out = planned(folder, "--sample", '{"len": 50}')
    assert "compute max/mean" in result.stdout
    assert f"wrote {out}" in result.stdout.replace("\n", "")
    assert "placing" in result.stderr
    assert "placing" not in result.stdout


def test_simulate_predicts_what_simulate_gives(folder):
    _, out = planned(folder, "--sample", '{"len": 50}')
    result = run(room.simulate, out, "--json")
    document = json.loads(result.stdout)
    trace = simulate(read_plan(out).plan)
    assert document["schema"] == "dcp.simulate/1"
    assert document["predicted"]["forward_s"] == trace.seconds(is_backward=False)
    assert document["predicted"]["wait_s"] == trace.lane_seconds("wait", 2).tolist()
    table = run(room.simulate, out).stdout
    assert "communication hidden" in table
    assert "peak buffer" in table


def test_the_command_knows_every_partitioner():
    assert tuple(PARTITIONERS) == room._PARTITIONERS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --dataset or --sample"),
        (("--sample", '{"len": 3}', "--dataset", "x"), "give either --dataset or --sample"),
        (
            ("--sample", '{"len": 3}', "--q-heads", "3", "--kv-heads", "2"),
            "must be a multiple",
        ),
        (("--sample", '{"len": 3}', "--divisions", "1"), "1 is not in the range"),
        (("--sample", '{"len": 3}', "--partitioner", "x"), "'x' is not one of"),
    ],
)
def test_wrong_usage_exits_2_with_one_message(folder, arguments, message):
    result, out = planned(folder, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not out.exists()


def test_plan_takes_samples_of_the_spec_by_name(folder):
    result, out = planned(folder, "--sample", "tiny", "--sample", '{"len": 7}')
    assert result.exit_code == 0, result.output
    assert read_plan(out).plan.cu_seqlens.tolist() == [0, 50, 57]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.dcpm", "--sample", "tny"), "tny"),
        (("no.dcpm", "--sample", '{"len": 3}'), "no.dcpm"),
        (("a.dcpm", "--sample", "{"), "not JSON"),
        (("a.dcpm", "--sample", '{"len": 3}', "--mask", "locl"), "locl"),
        (("a.dcpm", "--dataset", "no.jsonl"), "no.jsonl: no such file"),
        (("a.dcpm", "--dataset", "rows.jsonl", "--batch", "9"), "expected a batch 0 to "),
        (("a.dcpm", "--dataset", "rows.jsonl", "--tokens", "3"), "no row has 1 to 3 tokens"),
        (("a.dcpm", "--sample", '{"len": 3}', "--out", "no/x"), "is no folder"),
        (("a.dcpm", "--sample", '{"len": 9000}', "--time-limit", "0.001"), "time limit"),
    ],
)
def test_bad_input_ends_with_one_message_and_no_file(folder, arguments, message):
    done = run_process(folder, "plan", "--out", "x", *SMALL, *arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(p.name for p in folder.iterdir()) == ["a.dcpm", "rows.jsonl"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"len": 30}, {"len": 20, "parts": None}], "rows.jsonl: row 1: column `parts`: expected"),
        ([{"len": 5, "parts": 9}], "rows.jsonl: row 0: segment `s`: a part would have 9 tokens"),
        ([{"len": 0, "parts": 0}], "rows.jsonl: expected rows with tokens, got 1 rows without"),
        ([{"len": 99, "parts": 0}], "no row has 1 to 60 tokens, the shortest has 99; raise"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, rows, message):
    (tmp_path / "a.dcpm").write_text("segment s = part[parts] tail[..]\nmask m = same(part)\n")
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"parts": 1} | row) for row in rows))
    result = run(
        room.plan, tmp_path / "a.dcpm", "--dataset", tmp_path / "rows.jsonl", "--mask", "m",
        "--tokens", 60, *SMALL, "--out", tmp_path / "x.dcpplan",
    )  # fmt: skip
    assert isinstance(result.exception, DatasetError)
    assert message in str(result.exception)


def test_a_batch_of_more_tokens_than_int32_counts_is_refused(folder):
    sample = ("--sample", '{"len": 2147483647}')
    result, out = planned(folder, *sample, *sample, "--block-size", 2**31)
    assert isinstance(result.exception, DatasetError)
    assert "at most 2147483647 tokens, got 4294967294" in str(result.exception)
    assert not out.exists()


def test_texts_of_a_plan_are_printed_as_they_are(folder):
    _, out = planned(folder, "--sample", '{"len": 50}')
    plan = read_plan(out).plan
    cluster = dataclasses.replace(plan.cluster, name="a [bold]b[/x]")
    write_plan(out, dataclasses.replace(plan, cluster=cluster, warnings=("less [/y]",)))
    result = run(room.simulate, out)
    assert result.exit_code == 0, result.output
    assert "(a [bold]b[/x])" in result.stdout
    assert "warning: less [/y]" in result.stdout


def test_simulate_refuses_what_is_no_plan(folder):
    done = run_process(folder, "simulate", "a.dcpm")
    assert done.returncode == 2
    assert done.stderr.startswith("dcpm: plan file a.dcpm: expected a whole zip archive")


def test_the_commands_import_nothing_heavy():
    code = (
        "import sys, dcp_planner.commands\n"
        "heavy = {'numpy', 'pyarrow', 'rich', 'kahypar', 'lark', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
