"""`dcpm plan`: samples, data sets, batches, and what it refuses."""

import json
import os
import subprocess
import sys

import pytest
from command_runs import CONFIG, SMALL, planned, run

from dcp_dsl import DatasetError, Sample, block_sparsity, load
from dcp_planner import (
    PARTITIONERS,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    PlanFileError,
    build_plan,
    digest,
    preset,
    read_batches,
    read_plan,
    simulate,
    static_layouts,
    write_cluster,
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
    assert result.exit_code == 0, result.output
    assert read_plan(out).plan.provenance.mask == "local(width = 5)"
    assert read_plan(out).plan.cu_seqlens.tolist() == [
        0,
        25,
    ]  # 30 + 20 | 25 | 40; 400 and 0 left out
    assert read_plan(out).plan.sequence_names == ("row 3",)
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
    assert "the data set ends with batch 2" in result.stderr
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


def test_a_report_of_the_limits_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.dcpbatches.json"
    document = {"schema": "dcp.batches/1", "batches": [{}, {}], "notes": [], "distribution": {},
                "speedup": {}}  # fmt: skip
    path.write_text(json.dumps(document))
    assert read_batches(path) == document
    size = path.stat().st_size
    for name, least in (("MOST_BATCHES", 2), ("LIMIT_BYTES", size)):
        monkeypatch.setattr(f"dcp_planner.batches.report_file.{name}", least - 1)
        with pytest.raises(PlanFileError, match="at most"):
            read_batches(path)
        monkeypatch.setattr(f"dcp_planner.batches.report_file.{name}", least)
        assert read_batches(path) == document
    for name in ("batches", "notes", "distribution", "speedup"):
        path.write_text(json.dumps(document | {name: 3}))
        with pytest.raises(PlanFileError, match=f"expected `{name}` to be a"):
            read_batches(path)
    path.write_text(json.dumps(document | {"batches": [{}, 3]}))
    with pytest.raises(PlanFileError, match="batches, each an object; write it again"):
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


def test_plan_says_what_its_file_leaves_out(folder, monkeypatch):
    asked = ("--mask", "local", "--sample", "tiny")
    assert "holds no text" not in planned(folder, *asked)[0].stderr
    monkeypatch.setattr("dcp_planner.plan.file._SOURCE_LIMIT_BYTES", 10)
    result, out = planned(folder, *asked, "--json")
    assert json.loads(result.stdout)["batches"]
    assert f"{out}: the file holds no text of the mask and the samples" in result.stderr
    assert read_plan(out).plan.provenance is None


def test_plan_needs_no_file(folder):
    result = run(
        plan_command, folder / "a.dcpm", *SMALL, "--sample", "tiny", "--backend", "static:zigzag"
    )
    assert result.exit_code == 0, result.output
    assert "wrote" not in result.stdout


@pytest.mark.parametrize(
    ("heads", "shape"),
    [
        (("--heads", "4/2/64"), ModelShape(4, 2, 64, 4)),
        (("--model", "llama-8b"), ModelShape(32, 8, 128, 4)),
    ],
)
def test_heads_and_cluster_reach_the_plan(folder, heads, shape):
    write_cluster(folder / "mine.toml", preset("h100-dgx", 1, 2), {})
    result = run(
        plan_command, folder / "a.dcpm", "--sample", "tiny", "--cluster", folder / "mine.toml",
        *heads, "--dtype-bytes", 4, "--block", 8, "--out", folder / "x.dcpplan",
        "--backend", "static:zigzag",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    made = read_plan(folder / "x.dcpplan").plan
    assert made.shape == shape
    assert made.cluster == preset("h100-dgx", 1, 2)


def test_plan_prints_a_table_and_keeps_progress_off_it(folder):
    result, out = planned(folder, "--sample", '{"len": 50}')
    assert "compute max/mean" in result.stdout
    assert f"wrote {out}" in result.stdout.replace("\n", "")
    assert "placing" in result.stderr
    assert "placing" not in result.stdout


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
        (("a.dcpm", "--sample", '{"len": 3}', "--cluster", "99999x8"), "at most 65536 devices"),
        ((".", "--sample", '{"len": 3}'), "expected a .dcpm file, got a folder"),
        (("a.dcpm", "--sample", '{"len": 3}', "--cluster", "9999999x8"), "Cluster.nodes: expected"),
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


def test_the_commands_import_nothing_heavy():
    code = (
        "import sys\n"
        "from dcp_planner.commands import compare, plan, simulate, validate\n"
        "heavy = {'numpy', 'pyarrow', 'rich', 'kahypar', 'lark', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


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


def test_the_front_is_listed_drawn_and_printed(folder):
    arguments = (folder / "a.dcpm", "--sample", '{"len": 400}', *SMALL, "--mask", "causal")
    shown = run(plan_command, *arguments, "--front")
    assert shown.exit_code == 0, shown.output
    assert "between nodes" in shown.stdout
    names = {"seconds", "compute", "tokens", "forward_inter", "backward_inter", "memory_bytes"}
    front = json.loads(run(plan_command, *arguments, "--front", "--json").stdout)["front"]
    assert [set(point) for point in front] == [names] * len(front)
    refused = run(plan_command, *arguments, "--front", "--out", folder / "x.dcpplan")
    assert refused.exit_code == 2
    assert "write one of its plans with --objective and --out" in refused.output
