"""`dcpm plan`: samples, data sets, batches, and what it refuses."""

import json
import os
import subprocess
import sys

import pytest
from command_runs import CONFIG, SMALL, planned, run

from dcp_dsl import DatasetError, Sample, block_sparsity, load
from dcp_planner import (
    ModelShape,
    PlanError,
    PlanFileError,
    build_plan,
    digest,
    preset,
    read_batches,
    read_plan,
    simulate,
)
from dcp_planner.commands.plan import plan as plan_command
from dcp_planner.plan import encode_parts
from dcp_planner.tables import receive_buffer_bytes


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
    made = read_plan(out).plan  # 30 + 20 | 25 | 40; 400 and 0 left out
    assert (made.cu_seqlens.tolist(), made.sequence_names) == ([0, 25], ("row 3",))
    assert made.provenance.mask == "local(width = 5)"
    (batch,) = json.loads(result.stdout)["batches"]
    assert (batch["digest"], batch["file"]) == (digest(made), str(out))


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


def test_several_batches_become_a_folder_of_plans_and_a_report(folder):
    out = folder / "plans"
    result = run(
        plan_command, folder / "a.dcpm", "--dataset", folder / "rows.jsonl", "--tokens", 60,
        "--batches", 9, *SMALL, "--out", out, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    document, report = json.loads(result.stdout), read_batches(out / "report.dcpbatches.json")
    files = [f"batch-{i:05d}.dcpplan" for i in range(3)]
    assert [b.pop("file") for b in report["batches"]] == files
    assert [b.pop("file") for b in document["batches"]] == [str(out / name) for name in files]
    assert report == document
    digests = [digest(read_plan(out / name).plan) for name in files]
    assert [b["digest"] for b in report["batches"]] == digests
    assert (report["is_complete"], report["num_wanted"], report["num_available"]) == (True, 9, 3)
    visible = sum(min(q + 1, 5) for n in (30, 20) for q in range(n))
    assert report["batches"][0]["density"] == visible / (30 * 31 / 2 + 20 * 21 / 2)


def test_a_report_alone_holds_the_batches_so_far_at_any_time(folder, monkeypatch):
    out, seen = folder / "small.dcpbatches.json", []
    rename = type(out).replace

    def watch(draft, target):
        found = rename(draft, target)
        seen.append(read_batches(out))
        return found

    monkeypatch.setattr(type(out), "replace", watch)
    monkeypatch.setattr("dcp_planner.batches.report_file.REWRITE_S", 0.0)
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


def test_a_report_of_the_limits_is_read_and_what_is_none_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.dcpbatches.json"

    def refused(text, message):
        path.write_text(text)
        with pytest.raises(PlanFileError, match=message):
            read_batches(path)

    with pytest.raises(PlanFileError, match="there is no such file"):
        read_batches(path)
    refused("{", "expected JSON")
    refused("[" * 100_000, "expected JSON")
    refused("[]", "expected a JSON object of schema 'dcp.batches/1'")
    document = {"schema": "dcp.batches/1", "batches": [{}, {}], "notes": [], "distribution": {},
                "speedup": {}}  # fmt: skip
    text = json.dumps(document)
    for name in ("batches", "notes", "distribution", "speedup"):
        refused(json.dumps(document | {name: 3}), f"expected `{name}` to be a")
    refused(json.dumps(document | {"batches": [{}, 3]}), "batches, each an object; write it again")
    for name, least in (("MOST_BATCHES", 2), ("LIMIT_BYTES", len(text))):
        monkeypatch.setattr(f"dcp_planner.batches.report_file.{name}", least - 1)
        refused(text, "at most")
        monkeypatch.setattr(f"dcp_planner.batches.report_file.{name}", least)
        assert read_batches(path) == document


def test_plan_says_what_its_file_leaves_out(folder, monkeypatch):
    asked = ("--mask", "local", "--sample", "tiny")
    assert "holds no text" not in planned(folder, *asked)[0].stderr
    monkeypatch.setattr("dcp_planner.plan.file._SOURCE_LIMIT_BYTES", 10)
    result, out = planned(folder, *asked, "--json")
    assert json.loads(result.stdout)["batches"]
    assert f"{out}: the file holds no text of the mask and the samples" in result.stderr
    assert read_plan(out).plan.provenance is None


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


def test_samples_are_named_or_columns_as_json_or_as_a_statement_has_them(folder):
    samples = ("tiny", '{"len": 7}', "len = 40", "doc_lens = [4, 5]")
    result, out = planned(folder, *(part for text in samples for part in ("--sample", text)))
    assert result.exit_code == 0, result.output
    assert read_plan(out).plan.cu_seqlens.tolist() == [0, 50, 57, 97, 106]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no.dcpm", "--sample", "len = 3"), "dcpm: no.dcpm: no such file"),
        (("a.dcpm",), "Error: expected a batch"),
        (
            ("a.dcpm", "--sample", "len = 9000", "--mask", "causal", "--backend", "kahypar",
             "--time-limit", "0.001"),
            "time limit",
        ),
    ],
)  # fmt: skip
def test_bad_input_ends_with_one_message_and_no_file(folder, run_main, arguments, message):
    done = run_main("plan", "--out", "x", *SMALL, *arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert done.stdout == ""
    assert sorted(p.name for p in folder.iterdir()) == ["a.dcpm", "rows.jsonl"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"len": 30}, {"len": 20, "parts": None}], "rows.jsonl: row 1: column `parts`: expected"),
        ([{"len": 5, "parts": 9}], "rows.jsonl: row 0: segment `s`: a part would have 9 tokens"),
        ([{"len": 0, "parts": 0}], "rows.jsonl: expected rows with tokens, got 1 rows without"),
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


def test_the_commands_import_nothing_heavy():
    code = (
        "import sys\n"
        "from dcp_planner.commands import compare, plan, simulate, validate\n"
        "heavy = {'numpy', 'pyarrow', 'rich', 'kahypar', 'lark', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)
