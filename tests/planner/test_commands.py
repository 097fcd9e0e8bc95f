import dataclasses
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from dcp_dsl import DatasetError, HeadError, Sample, block_sparsity, load
from dcp_dsl.cli import main
from dcp_planner import (
    PARTITIONERS,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    PlanFileError,
    build_plan,
    digest,
    predict,
    preset,
    read_batches,
    read_plan,
    simulate,
    static_layouts,
    write_cluster,
    write_plan,
)
from dcp_planner.causes import explain
from dcp_planner.commands.compare import compare
from dcp_planner.commands.plan import plan as plan_command
from dcp_planner.commands.simulate import simulate as simulate_command
from dcp_planner.commands.validate import validate as validate_command
from dcp_planner.commands.why import why as why_command
from dcp_planner.model.placement import PlanWarning
from dcp_planner.plan import encode_parts
from dcp_planner.tables import receive_buffer_bytes

SPEC = """dcpm 1
mask local(width: tokens = 8) = causal and q - k < width
for "*/rows.jsonl" use local(width = 5)
segment doc = [doc_lens]*
sample tiny(doc_lens = [20, 30])
"""
SMALL = (
    "--block-size", "8", "--nodes", "1", "--devices-per-node", "2", "--backend", "static:zigzag",
)  # fmt: skip


CONFIG = PlanConfig(partitioner="static:zigzag")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.dcpm").write_text(SPEC)
    rows = [{"len": n} for n in (30, 20, 400, 25, 0, 40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


@pytest.fixture
def run_main(folder, monkeypatch, capsys):
    """Run `dcpm` as a process would, but in this one: starting another costs a second."""

    def run(*arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["dcpm", *arguments])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=out, stderr=err)

    return run


def run(command, *arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments])


def planned(folder, *arguments):
    out = folder / "x.dcpplan"
    result = run(plan_command, folder / "a.dcpm", *SMALL, *arguments, "--out", out)
    return result, out


def test_plan_writes_the_plan_that_build_plan_makes(folder):
    result, out = planned(folder, "--sample", '{"len": 50}', "--mask", "local(width = 9)")
    assert result.exit_code == 0, result.output
    mask = load(folder / "a.dcpm").mask("local(width = 9)")
    sparsity = block_sparsity([mask.bind(Sample({}, 50))], 8, 8)
    expected = build_plan(sparsity, ModelShape(), preset("a100-p4de", 1, 2), CONFIG)
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
    assert "2 of 6 rows are empty or longer than 60 tokens: left out" in result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "dcp.batches/1"
    (batch,) = document["batches"]
    assert batch["digest"] == digest(read_plan(out).plan)
    assert batch["file"] == str(out)
    assert (batch["tokens"], batch["sequences"], batch["devices"]) == (25, 1, 2)
    assert document["notes"] == ["2 of 6 rows are empty or longer than 60 tokens: left out"]


def test_a_batch_in_json_is_what_its_plan_shows(folder):
    result, out = planned(folder, "--sample", '{"len": 50}', "--json")
    (batch,) = json.loads(result.stdout)["batches"]
    made = read_plan(out).plan
    table, crosses = made.transfers, 0
    for is_backward, side in ((False, "forward"), (True, "backward")):
        sizes = table.size_bytes[table.is_backward == is_backward]
        assert batch[f"{side}_bytes"] == sizes.sum() > 0
        assert batch[f"{side}_inter_bytes"] == crosses  # one node
    sent = [int(table.size_bytes[table.source == d].sum()) for d in (0, 1)]
    received = [int(table.size_bytes[table.target == d].sum()) for d in (0, 1)]
    assert (batch["max_send_bytes"], batch["max_recv_bytes"]) == (max(sent), max(received))
    assert batch["peak_buffer_bytes"] == receive_buffer_bytes(made).max()
    work = [int(made.tiles.pairs[made.tiles.device == d].sum()) for d in (0, 1)]
    assert batch["compute_imbalance"] == pytest.approx(max(work) / (sum(work) / 2))
    trace = simulate(made)
    assert batch["predicted_forward_s"] == trace.seconds(is_backward=False)
    assert batch["predicted_backward_s"] == trace.seconds(is_backward=True)
    assert batch["backend"] == made.partitioner
    assert batch["plan_s"] > 0
    assert batch["bound_ratios"]["compute"] == batch["compute_imbalance"]
    assert min(batch["bound_ratios"].values()) >= 1
    assert batch["plan_bytes_per_rank"] == max(len(part) for part in encode_parts(made))


def test_several_batches_become_a_folder_of_plans_and_a_distribution(folder):
    arguments = (
        folder / "a.dcpm", "--dataset", folder / "rows.jsonl", "--tokens", 60, "--batches", 9,
        "--cluster", "1x2", "--block", 8, "--backend", "static:zigzag", "--against", "static",
        "--out", folder / "plans",
    )  # fmt: skip
    result = run(plan_command, *arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [b["tokens"] for b in document["batches"]] == [50, 25, 40]
    files = [f"batch-{i:05d}.dcpplan" for i in range(3)]
    assert sorted(os.listdir(folder / "plans")) == [*files, "report.dcpbatches.json"]
    for batch, name in zip(document["batches"], files, strict=True):
        assert batch["digest"] == digest(read_plan(folder / "plans" / name).plan)
    assert document["distribution"]["tokens"] == {
        "least": 25, "median": 40, "mean": pytest.approx(115 / 3), "most": 50,
    }  # fmt: skip
    static = set(static_layouts(ModelShape(), Cluster(1, 2)))
    assert static == {name for name in PARTITIONERS if name.startswith("static:")}
    assert set(document["speedup"]) == static
    assert document["speedup"]["static:zigzag"]["least"] == 1.0
    assert "only batches 0 to 2 exist" in result.stderr
    report = read_batches(folder / "plans" / "report.dcpbatches.json")
    assert [b.pop("file") for b in report["batches"]] == files
    assert [b.pop("file") for b in document["batches"]] == [
        str(folder / "plans" / name) for name in files
    ]
    assert report == document
    assert (report["is_complete"], report["num_wanted"], report["num_available"]) == (True, 9, 3)
    assert [b["rows"] for b in report["batches"]] == [[0, 1], [3, 3], [5, 5]]
    assert report["batches"][0]["lengths"] == {"least": 20, "median": 25, "mean": 25, "most": 30}
    assert report["batches"][0]["length_counts"] == [0, 0, 0, 0, 2]  # 16 to 31 tokens
    visible = sum(min(q + 1, 5) for n in (30, 20) for q in range(n))
    assert report["batches"][0]["density"] == visible / (30 * 31 / 2 + 20 * 21 / 2)
    table = run(plan_command, *arguments).stdout
    assert "3 batches" in table
    assert "speedup over" in table
    assert max(map(len, table.splitlines())) <= 80
    assert {line.split()[0] for line in table.splitlines()} >= static  # none is broken in two


def test_a_report_alone_holds_the_batches_so_far_at_any_time(folder, monkeypatch):
    out, seen = folder / "small.dcpbatches.json", []
    rename = type(out).replace

    def watch(draft, target):
        found = rename(draft, target)
        seen.append(read_batches(out))
        return found

    monkeypatch.setattr(type(out), "replace", watch)
    monkeypatch.setattr(
        "dcp_planner.batches.report_file.ReportWriter.__init__.__defaults__", (0.0,)
    )
    result = run(
        plan_command, folder / "a.dcpm", "--dataset", folder / "rows.jsonl", "--tokens", 60,
        "--batches", 2, "--batch", 1, *SMALL, "--out", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [(len(r["batches"]), r["is_complete"]) for r in seen] == [
        (1, False),
        (2, False),
        (2, True),
    ]
    assert [b["index"] for b in seen[-1]["batches"]] == [1, 2]
    assert {b["file"] for b in seen[-1]["batches"]} == {None}
    assert sorted(os.listdir(folder)) == ["a.dcpm", "rows.jsonl", "small.dcpbatches.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such file"),
        ("{", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("[]", "expected a JSON object of schema 'dcp.batches/1'"),
        ('{"schema": "dcp.batches/1", "batches": 3}', "expected `batches` to be a list"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, text, message):
    path = tmp_path / "a.dcpbatches.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PlanFileError, match=message):
        read_batches(path)


def test_a_report_needs_its_ending_and_is_bounded(folder):
    data = (folder / "a.dcpm", "--dataset", folder / "rows.jsonl")
    for out, batches, message in (
        ("a.json", 1, "ends in .dcpbatches.json, got a.json"),
        ("plans", 5000, "a report holds at most 4096 batches, got 5000"),
    ):
        result = run(plan_command, *data, "--batches", batches, "--out", folder / out)
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.split())
        assert not (folder / out).exists()


def test_plan_needs_no_file(folder):
    result = run(
        plan_command, folder / "a.dcpm", *SMALL, "--sample", "tiny", "--backend", "static:zigzag"
    )
    assert result.exit_code == 0, result.output
    assert "wrote" not in result.stdout


def test_heads_and_cluster_reach_the_plan(folder):
    write_cluster(folder / "mine.toml", preset("h100-dgx", 1, 2), {})
    result = run(
        plan_command, folder / "a.dcpm", "--sample", "tiny", "--cluster", folder / "mine.toml",
        "--heads", "4/2/64", "--dtype-bytes", 4, "--block", 8, "--out", folder / "x.dcpplan",
        "--backend", "static:zigzag",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    made = read_plan(folder / "x.dcpplan").plan
    assert made.shape == ModelShape(4, 2, 64, 4)
    assert made.cluster == preset("h100-dgx", 1, 2)


def test_plan_prints_a_table_and_keeps_progress_off_it(folder):
    result, out = planned(folder, "--sample", '{"len": 50}')
    assert "compute max/mean" in result.stdout
    assert f"wrote {out}" in result.stdout.replace("\n", "")
    assert "placing" in result.stderr
    assert "placing" not in result.stdout


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


def test_simulate_takes_the_constants_of_another_machine(folder):
    _, out = planned(folder, "--sample", '{"len": 50}')
    made = read_plan(out).plan
    slow = dataclasses.replace(preset("cpu-gloo"), nodes=1, devices_per_node=2)
    document = json.loads(run(simulate_command, out, "--cluster", "cpu-gloo", "--json").stdout)
    expected = simulate(dataclasses.replace(made, cluster=slow)).seconds(is_backward=False)
    assert document["predicted"]["forward_s"] == expected
    assert document["cluster"]["name"] == "cpu-gloo"


@pytest.fixture
def pair(folder):
    """Two plans of one batch: contiguous and zigzag."""
    for name in ("contiguous", "zigzag"):
        result = run(
            plan_command, folder / "a.dcpm", "--sample", '{"len": 400}', *SMALL, "--mask", "causal",
            "--backend", f"static:{name}", "--out", folder / f"{name}.dcpplan",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
    return folder / "contiguous.dcpplan", folder / "zigzag.dcpplan"


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


def test_tables_keep_their_figures_on_a_narrow_terminal(pair, monkeypatch):
    wide = run(simulate_command, pair[0]).stdout, run(compare, *pair).stdout
    monkeypatch.setenv("COLUMNS", "40")
    assert (run(simulate_command, pair[0]).stdout, run(compare, *pair).stdout) == wide


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
    device = made.tiles.device.copy()
    device[3] = 77
    broken = dataclasses.replace(made, tiles=dataclasses.replace(made.tiles, device=device))
    write_plan(folder / "broken.dcpplan", broken)
    done = run_main("validate", "broken.dcpplan", "contiguous.dcpplan", "--json")
    assert done.returncode == 1, done.stderr
    first, second = json.loads(done.stdout)["files"]
    assert first["invariant"] == "every tile's device is 0 to 1"
    assert first["where"] == "tile 3 (device 77)"
    assert second["status"] == "valid"
    text = run_main("validate", "broken.dcpplan").stdout
    assert text == "broken.dcpplan: broken: every tile's device is 0 to 1; at tile 3 (device 77)\n"


def test_validate_tells_what_is_no_plan_from_a_broken_one(run_main):
    done = run_main("validate", "a.dcpm", "gone.dcpplan")
    assert done.returncode == 2
    assert "a.dcpm: expected a whole zip archive" in done.stdout
    assert "zip archive, got: another kind of file; write it again" in done.stdout
    assert "gone.dcpplan: there is no such file" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --dataset or --sample"),
        (("--sample", '{"len": 3}', "--dataset", "x"), "give either --dataset or --sample"),
        (
            ("--sample", '{"len": 3}', "--q-heads", "3", "--kv-heads", "2"),
            "must be a multiple",
        ),
        (("--sample", '{"len": 3}', "--divisions", "1"), "expected 2 to 1024 or auto, got '1'"),
        (("--sample", '{"len": 3}', "--block", "0"), "expected 1 to 4294967296 tokens or auto"),
        (("--sample", '{"len": 3}', "--heads", "8/2"), "three numbers such as 8/2/128, got '8/2'"),
        (("--sample", '{"len": 3}', "--heads", "8/3/4"), "must be a multiple"),
        (("--sample", '{"len": 3}', "--batches", "2"), "leave --batches away"),
        (("--sample", '{"len": 3}', "--batch", "0"), "leave --batch away or give --dataset"),
        (("--sample", '{"len": 3}', "--tokens", "8k"), "leave --tokens away or give --dataset"),
        (("--dataset", "rows.jsonl", "--batches", "2"), "x.dcpplan is no folder"),
        (
            ("--sample", '{"len": 3}', "--heads", "4/2/8", "--kv-heads", "4"),
            "leave --kv-heads away",
        ),
    ],
)
def test_wrong_usage_exits_2_with_one_message(folder, arguments, message):
    result, out = planned(folder, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not out.exists()


def test_a_folder_is_refused_as_the_plan_file_before_anything_is_planned(folder):
    for out in (folder, "."):
        result = run(plan_command, folder / "a.dcpm", "--sample", '{"len": 3}', "--out", out)
        assert isinstance(result.exception, PlanFileError)
        assert "it is a folder; give the name of a file in it" in str(result.exception)
        assert "placing" not in result.stderr


def test_plan_chooses_divisions_as_build_plan_does(folder):
    result = run(plan_command, folder / "a.dcpm", "--sample", "tiny", *SMALL[:2], "--json")
    assert json.loads(result.stdout)["config"]["divisions"] == PlanConfig().divisions


def test_plan_takes_samples_of_the_spec_by_name(folder):
    result, out = planned(folder, "--sample", "tiny", "--sample", '{"len": 7}')
    assert result.exit_code == 0, result.output
    assert read_plan(out).plan.cu_seqlens.tolist() == [0, 50, 57]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "zigzag"), "did you mean `static:zigzag`?"),
        (("--backend", "static:zigzag", "--against", "kahyper"), "did you mean `kahypar`?"),
        (("--backend", "kahypar"), "pip install"),
        (("--backend", "static:zigzag", "--against", "kahypar"), "pip install"),
    ],
)
def test_a_backend_that_cannot_run_is_refused_before_the_data_is_read(
    folder, monkeypatch, arguments, message
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run(plan_command, folder / "a.dcpm", "--dataset", "no.jsonl", *arguments)
    assert isinstance(result.exception, PlanError)
    assert message in str(result.exception)
    assert "reading" not in result.stderr


def test_plan_takes_columns_as_a_sample_statement_has_them(folder):
    result, out = planned(folder, "--sample", "len = 40", "--sample", "doc_lens = [4, 5]")
    assert result.exit_code == 0, result.output
    assert read_plan(out).plan.cu_seqlens.tolist() == [0, 40, 49]


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
        (("a.dcpm", "--sample", '{"len": 3}', "--out", "no/x"), "/no first, or choose another"),
        (("a.dcpm", "--sample", '{"len": 3}', "--backend", "x"), "unknown partitioner 'x'"),
        (("a.dcpm", "--sample", '{"len": 3}', "--cluster", "h100"), "did you mean `h100-dgx`"),
        (("a.dcpm", "--sample", '{"len": 3}', "--nodes", "99999"), "at most 65536 devices"),
        ((".", "--sample", '{"len": 3}'), "expected a .dcpm file, got a folder"),
        (("a.dcpm", "--sample", '{"len": 3}', "--nodes", "99999999"), "Cluster.nodes: expected"),
        (
            (
                "a.dcpm",
                "--sample",
                '{"len": 9000}',
                "--backend",
                "kahypar",
                "--time-limit",
                "0.001",
            ),
            "time limit",
        ),
    ],
)
def test_bad_input_ends_with_one_message_and_no_file(folder, run_main, arguments, message):
    done = run_main("plan", "--out", "x", *SMALL, *arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert any(line.startswith(("dcpm: ", "Error: ")) for line in done.stderr.splitlines())
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
        plan_command, tmp_path / "a.dcpm", "--dataset", tmp_path / "rows.jsonl", "--mask", "m",
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


def test_the_commands_import_nothing_heavy():
    code = (
        "import sys\n"
        "from dcp_planner.commands import compare, plan, simulate, validate\n"
        "heavy = {'numpy', 'pyarrow', 'rich', 'kahypar', 'lark', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


ATTACHED = """mask near = causal and q - k < 5
stack mixed = 2 of near, causal
for "chat/*" use near
for "web/*" use causal
for "both/*" use mixed
"""


@pytest.fixture
def nested(tmp_path):
    """A folder whose files lie deeper, and of which some match no statement or another one."""
    (tmp_path / "a.dcpm").write_text(ATTACHED)
    for name in ("chat/a", "chat/more/b", "web/c", "both/d", "code/e"):
        file = tmp_path / "data" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"len": 9}')
    return tmp_path


def plan_of(nested, path, *arguments):
    return run(plan_command, nested / "a.dcpm", *SMALL, "--dataset", nested / path, *arguments)


def test_files_of_a_folder_are_planned_at_any_depth_with_the_mask_of_their_paths(nested):
    out = nested / "x.dcpplan"
    result = plan_of(nested, "data/chat", "--out", out)
    assert result.exit_code == 0, result.output
    assert read_plan(out).plan.provenance.mask == "near"
    assert read_plan(out).plan.cu_seqlens.tolist() == [0, 9, 18]
    result = plan_of(nested, "data", "--mask", "causal", "--out", out)
    assert result.exit_code == 0, result.output
    assert len(read_plan(out).plan.cu_seqlens) == 6


def test_rows_whose_layout_says_their_length_need_no_other_column(tmp_path):
    spec, rows, out = (tmp_path / name for name in ("a.dcpm", "rows.jsonl", "x.dcpplan"))
    spec.write_text('segment seq = doc[lens]*\nmask m = causal and same(seq)\nfor "*" use m\n')
    rows.write_text("".join(json.dumps({"lens": lens}) + "\n" for lens in ([5, 4], [7], [3, 3])))
    result = run(plan_command, spec, *SMALL, "--dataset", rows, "--tokens", 16, "--out", out)
    assert result.exit_code == 0, result.output
    assert read_plan(out).plan.cu_seqlens.tolist() == [0, 9, 16]
    rows.write_text(json.dumps({"lens": [5, 4], "len": 8}))
    refused = run(plan_command, spec, *SMALL, "--dataset", rows)
    assert isinstance(refused.exception, DatasetError)
    assert "row 0: segment `seq`: the layout has 9 tokens, the sample 8" in str(refused.exception)


def test_files_that_match_different_statements_are_refused_by_name(nested):
    result = plan_of(nested, "data")
    assert isinstance(result.exception, DatasetError)
    said = str(result.exception)
    for part in (
        '`for "chat/*"` in line 3 matches', "chat/more/b.jsonl", '`for "web/*"` in line 4 matches',
        "no statement matches", "code/e.jsonl", "at a time", "--mask",
    ):  # fmt: skip
        assert part in said


def test_an_attached_stack_gets_a_plan_for_each_of_its_masks_over_one_ownership(nested):
    result = plan_of(nested, "data/both", "--out", nested / "x.dcpplan")
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in nested.glob("x*"))
    assert names == ["x.0-near.dcpplan", "x.1-causal.dcpplan"]
    near, causal = (read_plan(nested / name).plan for name in names)
    assert [near.provenance.mask, causal.provenance.mask] == ["near", "causal"]
    assert near.cu_seqlens.tolist() == causal.cu_seqlens.tolist() == [0, 9]
    assert near.blocks.owner.tolist() == causal.blocks.owner.tolist()
    assert near.tiles.pairs.sum() < causal.tiles.pairs.sum() == 45
    for line in ("near: 2 of 3 layers of mixed", "causal: 1 of 3 layers of mixed"):
        assert line in result.stdout
    assert "mixed: its 3 layers together" in result.stdout


def test_the_document_of_a_stack_adds_its_layers_up(nested):
    asked = ("--mask", "mixed", "--against", "static:contiguous", "--json")
    document = json.loads(plan_of(nested, "data/both", *asked).stdout)
    assert document["schema"] == "dcp.stack/1"
    assert (document["stack"], document["period"]) == ("mixed", 3)
    near, causal = document["masks"]
    assert [mask["mask"] for mask in (near, causal)] == ["near", "causal"]
    assert [mask["stack"]["layers"] for mask in (near, causal)] == [2, 1]
    for name, total in document["total"].items():
        one, other = (mask["batches"][0][name] for mask in (near, causal))
        assert total["median"] == pytest.approx(2 * one + other)
    ours, theirs = (
        sum(
            count * figures[f"predicted_{side}_s"]
            for count, figures in ((2, find(near)), (1, find(causal)))
            for side in ("forward", "backward")
        )
        for find in (
            lambda mask: mask["batches"][0],
            lambda mask: mask["batches"][0]["against"]["static:contiguous"],
        )
    )
    assert document["speedup"]["static:contiguous"]["most"] == pytest.approx(theirs / ours)


def test_under_every_mask_of_a_stack_a_static_layout_stays_what_it_is(folder):
    text = "stack mixed = 2 of causal and q - k < 9, causal\n"
    (folder / "s.dcpm").write_text(text)
    sample = ("--sample", '{"len": 100}', "--against", "static:contiguous", "--json")
    document = json.loads(run(plan_command, folder / "s.dcpm", *SMALL, *sample).stdout)
    for entry in document["masks"]:
        mask = load(folder / "s.dcpm").mask(entry["mask"])
        sparsity = block_sparsity([mask.bind(Sample({}, 100))], 8, 8)
        layout = build_plan(
            sparsity, ModelShape(), preset("a100-p4de", 1, 2), PlanConfig("static:contiguous")
        )
        told = entry["batches"][0]["against"]["static:contiguous"]
        assert told["predicted_forward_s"] == predict(layout).forward_s


def test_batches_of_a_stack_are_a_folder_of_plans_with_a_report_for_each_mask(nested):
    rows = "\n".join(json.dumps({"len": n}) for n in (30, 20, 25))
    (nested / "data/both/d.jsonl").write_text(rows)
    out = nested / "plans"
    result = plan_of(
        nested, "data/both", "--tokens", 30, "--batches", 3, "--out", out, "--mask", "mixed"
    )
    assert result.exit_code == 0, result.output
    assert len(list(out.glob("*.dcpplan"))) == 6
    for number, (mask, layers) in enumerate((("near", 2), ("causal", 1))):
        report = read_batches(out / f"report.{number}-{mask}.dcpbatches.json")
        assert report["is_complete"]
        assert (report["mask"], report["stack"]["layers"]) == (mask, layers)
        for index, batch in enumerate(report["batches"]):
            assert batch["file"] == f"batch-{index:05d}.{number}-{mask}.dcpplan"
            assert digest(read_plan(out / batch["file"]).plan) == batch["digest"]
    assert "mixed: its 3 layers together, medians of 3 batches" in result.stdout


def test_masks_by_head_and_a_choice_that_is_open_are_told_their_way_out(folder):
    text = "stack duo = heads {0..1: causal  rest: local}\nmask local = causal and q - k < 5\n"
    (folder / "s.dcpm").write_text(text)
    sample = ("--sample", '{"len": 50}')
    result = run(plan_command, folder / "s.dcpm", *SMALL, *sample)
    assert "choose a mask or stack with --mask; s.dcpm has local, duo" in " ".join(
        result.stderr.replace(str(folder) + "/", "").split()
    )
    result = run(plan_command, folder / "s.dcpm", *SMALL, *sample, "--mask", "duo")
    assert isinstance(result.exception, HeadError)
    assert "docs/training.md" in str(result.exception)


def test_nothing_is_left_behind_where_no_batch_was_planned(nested):
    result = plan_of(nested, "data", "--batches", 2, "--out", nested / "plans")
    assert isinstance(result.exception, DatasetError)
    assert not (nested / "plans").exists()


def test_plan_takes_tokens_as_the_language_writes_them_and_refuses_other_endings(folder):
    data = (folder / "a.dcpm", *SMALL, "--dataset", folder / "rows.jsonl")
    result = run(plan_command, *data, "--tokens", "1k", "--json")
    assert json.loads(result.stdout)["token_budget"] == 1024
    result = run(plan_command, *data, "--tokens", "8q")
    assert "such as 8192 or 8k, got '8q'" in result.stderr
    result = run(plan_command, *data, "--out", folder / "x.txt")
    assert result.exit_code == 2
    assert "ends in .dcpplan" in " ".join(result.stderr.split())
    assert not (folder / "x.txt").exists()


def test_simulate_says_that_the_plans_own_devices_stay(folder):
    _, out = planned(folder, "--sample", '{"len": 50}')
    assert "the plan is for 1x2 devices" in run(simulate_command, out, "--cluster", "1x4").stderr
    assert "note:" not in run(simulate_command, out, "--cluster", "1x2").stderr


def loads(plan, of):
    """Most over the mean of what devices compute or own, counted tile by tile."""
    shares = [0] * plan.num_devices
    if of == "compute":
        for device, pairs in zip(plan.tiles.device, plan.tiles.pairs, strict=True):
            shares[device] += int(pairs)
    else:
        for owner, tokens in zip(plan.blocks.owner, plan.blocks.num_tokens, strict=True):
            shares[owner] += int(tokens)
    return max(shares) / (sum(shares) / len(shares))


def test_a_layout_over_a_cap_is_marked_and_the_best_within_it_is_named(folder):
    lengths, name = (40, 24), "static:documents"  # tokens 40 to 24: 1.25 of the mean, none sent
    samples = [part for n in lengths for part in ("--sample", f"len = {n}")]
    asked = (*SMALL, "--mask", "causal", "--backend", "native", "--against", "static", *samples)
    (batch,) = json.loads(run(plan_command, folder / "a.dcpm", *asked, "--json").stdout)["batches"]
    mask = load(folder / "a.dcpm").mask("causal")
    sparsity = block_sparsity([mask.bind(Sample({}, n)) for n in lengths], 8, 8)
    cluster = preset("a100-p4de", 1, 2)
    plans = {
        other: build_plan(sparsity, ModelShape(), cluster, PlanConfig(other))
        for other in static_layouts(ModelShape(), cluster)
    }
    over = {
        other: [cap for cap in ("compute", "tokens") if loads(plan, cap) > 1.1]
        for other, plan in plans.items()
    }
    assert over[name] == ["compute", "tokens"]
    assert any("tokens" not in caps for caps in over.values())
    assert {other: told["over_caps"] for other, told in batch["against"].items()} == over
    seconds = {other: predict(plan).seconds for other, plan in plans.items()}
    own = batch["predicted_forward_s"] + batch["predicted_backward_s"]
    held = {other: s for other, s in seconds.items() if "tokens" not in over[other]}
    for scope, known in (("of_all", seconds), ("within_token_cap", held)):
        best = min(known, key=known.get)
        assert batch["best_static"][scope] == {
            "name": best, "speedup": pytest.approx(known[best] / own)
        }  # fmt: skip
    assert batch["best_static"]["of_all"]["name"] == name
    lines = run(plan_command, folder / "a.dcpm", *asked).stdout.splitlines()
    (marked,) = [line for line in lines if line.startswith(f"speedup over {name}")]
    assert marked.rstrip().endswith("over caps: compute 1.46, tokens 1.25")
    told = {line[:33].strip(): line[33:] for line in lines}
    assert name in told["speedup over best static"]
    assert batch["best_static"]["within_token_cap"]["name"] in told["within the token cap"]


def test_that_no_layout_holds_the_cap_is_said(folder):
    # Three blocks on two devices: one owns two of them, in any layout.
    asked = (*SMALL, "--mask", "causal", "--against", "static", "--sample", "len = 24")
    document = json.loads(run(plan_command, folder / "a.dcpm", *asked, "--json").stdout)
    assert list(document["batches"][0]["best_static"]) == ["of_all"]
    assert list(document["speedup_over_best_static"]) == ["of_all"]
    assert "no static layout holds it" in run(plan_command, folder / "a.dcpm", *asked).stdout


def test_batches_and_stacks_are_told_beside_their_best_layouts(folder):
    data = ("--dataset", folder / "rows.jsonl", "--tokens", 60, "--batches", 3)
    layouts = ("--against", "static:ring", "--against", "static:contiguous")
    asked = (*SMALL, *data, *layouts)
    document = json.loads(run(plan_command, folder / "a.dcpm", *asked, "--json").stdout)
    best = [batch["best_static"]["of_all"]["speedup"] for batch in document["batches"]]
    spread = document["speedup_over_best_static"]["of_all"]
    assert (spread["least"], spread["most"]) == (min(best), max(best))
    over = [batch["against"]["static:ring"]["over_caps"] for batch in document["batches"]]
    table = run(plan_command, folder / "a.dcpm", *asked).stdout
    count = sum("compute" in caps for caps in over)
    assert count > 0
    assert f"static:ring is over caps: compute in {count}" in table
    (folder / "s.dcpm").write_text("stack mixed = 2 of causal and q - k < 9, causal\n")
    sample = ("--sample", "len = 100", *layouts)
    stack = json.loads(run(plan_command, folder / "s.dcpm", *SMALL, *sample, "--json").stdout)
    speedups = {name: spread["most"] for name, spread in stack["speedup"].items()}
    assert stack["speedup_over_best_static"]["of_all"]["most"] == min(speedups.values())
    assert "within the token cap" in run(plan_command, folder / "s.dcpm", *SMALL, *sample).stdout
