"""`dcpm plan`: samples, data sets, batches, stacks, rows and backends that it refuses."""

import json
import os
import subprocess
import sys

import pytest
from command_runs import CONFIG, SMALL, planned, run

from dcp_dsl import DatasetError, Sample, block_sparsity, load
from dcp_dsl.core.mask import HeadError
from dcp_planner import (
    ModelShape,
    PlanConfig,
    PlanError,
    PlanFileError,
    build_plan,
    digest,
    find_cluster,
    predict,
    preset,
    read_batches,
    read_plan,
    simulate,
    static_layouts,
)
from dcp_planner.batches.batch import pack_dataset
from dcp_planner.batches.narrower import Comparison
from dcp_planner.batches.planning import PlanningChoices, plan_batch
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


def test_files_that_match_different_statements_are_refused_by_name_and_nothing_is_made(nested):
    result = plan_of(nested, "data", "--batches", 2, "--out", nested / "plans")
    assert isinstance(result.exception, DatasetError)
    said = str(result.exception)
    for part in (
        '`for "chat/*"` in line 3 matches', "chat/more/b.jsonl", '`for "web/*"` in line 4 matches',
        "no statement matches", "code/e.jsonl", "at a time", "--mask",
    ):  # fmt: skip
        assert part in said
    assert not (nested / "plans").exists()


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


def test_the_document_of_a_stack_adds_its_layers_up(nested):
    asked = ("--mask", "mixed", "--against", "static:contiguous", "--json")
    document = json.loads(plan_of(nested, "data/both", *asked).stdout)
    near, causal = (mask["batches"][0] for mask in document["masks"])
    for name, total in document["total"].items():
        assert total["median"] == pytest.approx(2 * near[name] + causal[name])
    sides = ("predicted_forward_s", "predicted_backward_s")
    ours = sum(2 * near[side] + causal[side] for side in sides)
    near, causal = (batch["against"]["static:contiguous"] for batch in (near, causal))
    theirs = sum(2 * near[side] + causal[side] for side in sides)
    assert document["speedup"]["static:contiguous"]["most"] == pytest.approx(theirs / ours)


def test_batches_of_a_stack_are_a_folder_of_plans_with_a_report_for_each_mask(nested):
    rows = "\n".join(json.dumps({"len": n}) for n in (30, 20, 25))
    (nested / "data/both/d.jsonl").write_text(rows)
    out = nested / "plans"
    asked = ("--tokens", 30, "--batches", 3, "--out", out, "--mask", "mixed")
    result = plan_of(nested, "data/both", *asked)
    assert result.exit_code == 0, result.output
    for number, (mask, layers) in enumerate((("near", 2), ("causal", 1))):
        report = read_batches(out / f"report.{number}-{mask}.dcpbatches.json")
        assert report["is_complete"]
        assert (report["mask"], report["stack"]["layers"]) == (mask, layers)
        files = [f"batch-{index:05d}.{number}-{mask}.dcpplan" for index in range(3)]
        assert [batch["file"] for batch in report["batches"]] == files
        digests = [digest(read_plan(out / name).plan) for name in files]
        assert [batch["digest"] for batch in report["batches"]] == digests


def test_masks_by_head_are_told_their_way_out(folder):
    text = "stack duo = heads {0..1: causal  rest: local}\nmask local = causal and q - k < 5\n"
    (folder / "s.dcpm").write_text(text)
    asked = (*SMALL, "--sample", "len = 50", "--mask", "duo")
    result = run(plan_command, folder / "s.dcpm", *asked)
    assert isinstance(result.exception, HeadError)
    assert "docs/training-models.md" in str(result.exception)


def token_load(plan):
    """Most over the mean of the tokens that devices own, counted block by block."""
    owned = [0] * plan.num_devices
    for owner, tokens in zip(plan.blocks.owner, plan.blocks.num_tokens, strict=True):
        owned[owner] += int(tokens)
    return max(owned) * len(owned) / sum(owned)


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
    over = {other: ["tokens"] if token_load(plan) > 1.1 else [] for other, plan in plans.items()}
    assert over[name] == ["tokens"]
    assert [] in over.values()
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


@pytest.fixture
def short_rows(tmp_path):
    (tmp_path / "a.dcpm").write_text('mask m = causal\nfor "*.jsonl" use m\n')
    rows = [{"len": n} for n in (3000, 1200, 700, 2100, 400, 1800, 2500, 900)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def told(folder, *more):
    found = run(
        plan_command, folder / "a.dcpm", "--dataset", folder / "a.jsonl", "--tokens", "4k",
        "--cluster", "a100-p4de:2x2", "--budget", "fast", *more,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    return found.stderr


def test_narrower_short_batches_on_many_nodes_are_faster_side_by_side(short_rows):
    text = told(short_rows)
    assert "note: 2 groups of 1 x 2 devices, each with a batch of its own" in text
    assert "dcpm step" in text


def test_one_node_static_layouts_and_fewer_batches_than_groups_hear_nothing(short_rows):
    for more in (("--cluster", "1x4"), ("--backend", "static:zigzag")):
        assert "groups of" not in told(short_rows, *more)
    (short_rows / "a.jsonl").write_text('{"len": 3000}\n')
    assert "groups of" not in told(short_rows)


def test_the_share_is_that_of_a_plan_on_the_narrow_cluster(short_rows):
    wide, narrow = find_cluster("a100-p4de:2x2"), find_cluster("a100-p4de:1x2")
    config = PlanConfig(budget="fast", partials="input", divisions=2)
    choices = PlanningChoices(ModelShape(8, 2, 128), wide, config, 256)
    packed = pack_dataset(load(short_rows / "a.dcpm"), str(short_rows / "a.jsonl"), None, 4096)
    batch = packed.batch(0, 256)
    compared = Comparison(choices)
    compared.add(batch, plan_batch(batch, choices))
    found = compared.best()
    assert found is not None
    alone = predict(build_plan(batch[0].sparsity, choices.shape, narrow, config)).seconds
    # A quick search has fewer candidates than a plan, so its estimate is no shorter.
    assert alone / 2 / compared.wide_s <= found.share <= 1.2 * alone / 2 / compared.wide_s
