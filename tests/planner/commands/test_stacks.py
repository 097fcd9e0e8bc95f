"""`dcpm plan` on stacks and folders of files, and beside static layouts."""

import json

import pytest
from command_runs import SMALL, run

from dcp_dsl import DatasetError, Sample, block_sparsity, load
from dcp_dsl.core.mask import HeadError
from dcp_planner import (
    ModelShape,
    PlanConfig,
    build_plan,
    digest,
    predict,
    preset,
    read_batches,
    read_plan,
    static_layouts,
)
from dcp_planner.commands.plan import plan as plan_command

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
