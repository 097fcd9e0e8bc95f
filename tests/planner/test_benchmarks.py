import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from dense_blocks import causal_of

from dcp_dsl import block_sparsity
from dcp_planner import Cluster, ModelShape
from dcp_planner.model.problem import build_workload

pytestmark = pytest.mark.dist
BENCHMARKS = Path(__file__).resolve().parents[2] / "planner" / "benchmarks"


@pytest.fixture(scope="module")
def run(start_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("printed")

    def run_script(script, *arguments, code=0):
        fork = start_python(BENCHMARKS / script, *arguments, folder=folder)
        assert fork.wait(250) == code, fork.err.read_text()
        return (fork.err if code else fork.out).read_text()

    return run_script


@pytest.fixture(scope="module")
def plan_results(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "plan.json"
    run(
        "bench_plan.py", "--limit", 1, "--clusters", "2x4", "--block", 4096, "--repeats", 1,
        "--methods", "static:zigzag,static:contiguous,dcp-recorded", "--peers", recorded(out),
        "--json", out,
    )  # fmt: skip
    return out


def recorded(out):
    names = ("fw_total", "fw_inter", "bw_total", "bw_inter", "comp_imb", "mem_imb")
    figures = {
        "1024": dict(zip((*names, "cpu_plan_total"), (9, 5, 20, 11, 1.5, 1.1, 7.0), strict=True)),
        "512": dict(zip((*names, "cpu_plan_total"), (8, 4, 21, 12, 1.6, 1.2, 70.0), strict=True)),
    }
    path = out.with_name("peers.json")
    path.write_text(json.dumps({"longalign_like_msl131072_b0_causal|2x4|tp4": {"dcp": figures}}))
    return path


def test_bench_plan_gives_one_row_for_each_workload_cluster_and_method(plan_results):
    document = json.loads(plan_results.read_text())
    assert [(r["workload"], r["cluster"], r["method"]) for r in document["rows"]] == [
        ("longalign_like_msl131072_b0_causal", "2x4", method)
        for method in ("static:zigzag", "static:contiguous", "dcp-recorded")
    ]
    for row in document["rows"]:
        for key in (
            "backend", "compute_imbalance", "token_imbalance", "forward_bytes", "plan_s",
            "forward_inter_bytes", "backward_bytes", "backward_inter_bytes",
        ):  # fmt: skip
            assert row[key], key
        is_recorded = row["method"] == "dcp-recorded"
        assert (row["predicted_forward_s"] is None) == is_recorded
        assert (row["predicted_backward_s"] is None) == is_recorded
    assert {"platform", "commit", "numpy", "cores"} <= set(document["machine"])


def test_bench_plan_takes_the_recorded_block_size_with_the_fewest_bytes(plan_results):
    row = json.loads(plan_results.read_text())["rows"][2]
    assert (row["block"], row["forward_inter_bytes"], row["backward_inter_bytes"]) == (512, 4, 12)
    assert row["plan_s"] == 70.0


def test_bench_plan_takes_the_geometric_mean_of_ratios(plan_results):
    document = json.loads(plan_results.read_text())
    zigzag, contiguous, dcp = document["rows"]
    found = document["geomeans"]["2x4"]["static:zigzag"]
    sent = [row["forward_inter_bytes"] + row["backward_inter_bytes"] for row in (zigzag, dcp)]
    assert math.isclose(found["inter_bytes_vs_dcp"], sent[0] / sent[1])
    seconds = [r["predicted_forward_s"] + r["predicted_backward_s"] for r in (zigzag, contiguous)]
    assert math.isclose(found["speedup_vs_best_static"], min(seconds) / seconds[0])
    assert found["workloads"] == 1


def test_bench_plan_prints_its_table(run, plan_results):
    short = run("bench_plan.py", "--table", plan_results)
    assert "| 2x4 | static:zigzag |" in short
    assert "| 2x4 | dcp-recorded | 1.60 (1.60) | 1.20 (1.20) | 1.00 | 1.00 | 70,000 " in short
    table = run("bench_plan.py", "--table", plan_results, "--full")
    assert "| static:zigzag |" in table
    recorded = next(line for line in table.splitlines() if line.startswith("| dcp-recorded |"))
    assert recorded.startswith("| dcp-recorded | 1.60 (1.60) | 1.20 (1.20) | 1.00 | 1.00 |")
    assert recorded.endswith(" | 70,000 (70,000) | - | - | - | - | - |")  # nothing was simulated


@pytest.mark.slow
def test_bench_plan_gives_what_kahypar_found_without_our_search(run, tmp_path):
    out = tmp_path / "plan.json"
    run(
        "bench_plan.py", "--limit", 1, "--clusters", "1x4", "--block", 8192, "--repeats", 1,
        "--methods", "kahypar,kahypar:alone", "--json", out,
    )  # fmt: skip
    document = json.loads(out.read_text())
    refined, alone = document["rows"]
    assert (refined["backend"], alone["backend"]) == ("kahypar", "kahypar:alone")
    found = document["geomeans"]["1x4"]["kahypar"]
    ratio = refined["weighted_bytes"] / alone["weighted_bytes"]
    assert math.isclose(found["weighted_bytes_vs_hypergraph_alone"], ratio)


def test_bench_plan_refuses_methods_that_do_not_run_here(run):
    said = run("bench_plan.py", "--methods", "metis", code=2)
    assert "--methods: expected some of" in said


@pytest.mark.slow
def test_bench_schedule_times_every_stage(run, tmp_path):
    out = tmp_path / "schedule.json"
    run("bench_schedule.py", "--limit", 8192, "--block", 512, "--repeats", 1, "--json", out)
    document = json.loads(out.read_text())
    assert document["tiles"] == 16 * 17 // 2
    assert all(row["median_s"] > 0 for row in document["rows"])
    table = run("bench_schedule.py", "--table", out)
    assert "| route and emit |" in table
    assert "136 tiles" in table


@pytest.mark.slow
def test_bench_heads_compares_groups_with_one(run, tmp_path):
    out = tmp_path / "heads.json"
    arguments = ("--only", "single_131072_lambda", "--clusters", "1x2", "--heads", "2/1")
    run("bench_heads.py", *arguments, "--json", out)
    rows = {row["method"]: row for row in json.loads(out.read_text())["rows"]}
    assert {m: r["head_groups"] for m, r in rows.items()} == {
        "1 group": 1, "2 groups": 2, "auto": rows["auto"]["head_groups"],
        "static:zigzag": 1, "static:heads": 2, "static:heads_context": 2,
    }  # fmt: skip
    table = run("bench_heads.py", "--table", out)
    assert "1x2, 2/1 heads, 1 batches" in table
    assert "| 1 group | 1.00 | 1.00, 1.00 | 1.00 | - |" in table


@pytest.mark.slow
def test_bench_scale_plans_the_tokens_it_names(run, tmp_path):
    out = tmp_path / "scale.json"
    run("bench_scale.py", "--limit", 1, "--repeats", 1, "--methods", "static:zigzag", "--json", out)
    rows = json.loads(out.read_text())["rows"]
    assert [(r["batch"], r["tokens"], r["devices"]) for r in rows] == [
        ("documents", 131_072, 64), ("one document", 131_072, 64),
    ]  # fmt: skip
    assert "| 131k on 64 | documents | static:zigzag |" in run("bench_scale.py", "--table", out)


@pytest.mark.slow
def test_bench_step_prices_every_policy(run, tmp_path):
    out = tmp_path / "step.json"
    run("bench_step.py", "--steps", 1, "--only", "GRPO-like", "--json", out)
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 12
    assert {len(row["speedup"]) for row in rows} == {8}
    assert "| GRPO-like | 1 | 8x8 | 4 | 1 |" in run("bench_step.py", "--table", out)


@pytest.mark.slow
def test_bench_memory_plans_within_every_limit_or_names_the_least(run, tmp_path):
    out = tmp_path / "memory.json"
    run("bench_memory.py", "--longest", 0, "--step", 1000, "--json", out)
    free, *limited = json.loads(out.read_text())["rows"]
    assert [row["times"] for row in limited] == [4, 3, 2, 1]
    for row in limited:
        assert row["limit_bytes"] == int(row["times"] * free["local_bytes"])
        if "held_bytes" in row:
            assert max(row["held_bytes"]) <= row["limit_bytes"]
        else:
            assert row["least_bytes"] > row["limit_bytes"]
    assert "| 4x local | 1 of 1 |" in run("bench_memory.py", "--table", out)


@pytest.fixture(scope="module")
def recorded_masks():
    sys.path.insert(0, str(BENCHMARKS))
    yield __import__("recorded_masks")
    sys.path.remove(str(BENCHMARKS))


def ranges_of(mask, length, i, p):
    """The definition beside the workloads: key ranges of query i of a sequence."""
    if mask == "causal":
        return [(0, i + 1)]
    if mask == "lambda":
        return [(0, min(p["n_starting"], i + 1)), (max(0, i - p["l_pretrain"] + 1), i + 1)]
    if mask == "causal_blockwise":
        size = p["block_size"]
        b, last = i // size, -(-length // size) - 1
        if b == 0:
            return [(0, i + 1)]
        if b == last:
            return [(0, i + 1)]
        return [(0, size), (max(size, i - p["k_local"] * size), i + 1)]
    question = int(length * p["question_proportion"])
    answer = (length - question) // p["n_answers"]
    if i < question:
        return [(0, i + 1)]
    start = question + min((i - question) // answer, p["n_answers"] - 1) * answer
    return [(0, question), (start, i + 1)]


@pytest.mark.parametrize(
    ("mask", "parameters"),
    [
        ("causal", {}),
        ("lambda", {"n_starting": 3, "l_pretrain": 9}),
        ("causal_blockwise", {"block_size": 4, "k_local": 2}),
        ("shared_question", {"question_proportion": 0.2, "n_answers": 4}),
    ],
)
@pytest.mark.parametrize("length", [1, 5, 30, 64])
def test_recorded_masks_are_what_the_workloads_define(recorded_masks, mask, parameters, length):
    if mask == "shared_question" and length < 5:
        length = 7  # fewer tokens than answers are not defined
    workload = {"id": "x", "mask": mask, "mask_params": parameters, "seqlens": [length]}
    (slabs,) = recorded_masks.sequences_of(workload)
    pairs = {
        (i, j)
        for i in range(length)
        for start, end in ranges_of(mask, length, i, parameters)
        for j in range(start, end)
    }
    sparsity = block_sparsity([slabs], 1, 1)
    assert set(zip(sparsity.row_idx.tolist(), sparsity.col_idx.tolist(), strict=True)) == pairs


def test_an_unknown_recorded_mask_is_named(recorded_masks):
    with pytest.raises(ValueError, match="workload x: unknown mask 'tree'; expected one of causal"):
        recorded_masks.sequences_of({"id": "x", "mask": "tree", "seqlens": [4], "mask_params": {}})


def test_bench_rivals_places_every_rival_on_the_same_batch(run, tmp_path):
    out = tmp_path / "rivals.json"
    run("bench_rivals.py", "--clusters", "2x4", "--step", 100, "--json", out)
    rows = json.loads(out.read_text())["rows"]
    assert len({row["workload"] for row in rows}) == 1
    assert [row["method"] for row in rows][:4] == [
        "dcp-dsl",
        "te-thd",
        "megatron-dynamic",
        "zeppelin",
    ]
    assert all(row["seconds"] > 0 and row["compute"] >= 1 for row in rows)
    table = run("bench_rivals.py", "--table", out)
    assert table.count("| 2x4, causal |") == len(rows) - 1


@pytest.mark.parametrize(("first", "width"), [(0, 8), (0, 4), (2, 2), (0, 1)])
def test_a_ring_sends_every_shard_past_every_other_rank(monkeypatch, first, width):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import rivals

    sequence = block_sparsity([causal_of(64)], 8, 8)
    work, cluster = build_workload(sequence, ModelShape(4, 2, 16, 2)), Cluster(2, 4)
    kv = 2 * 2 * 16 * 2 * (64 / width)  # keys and values of a shard, two heads of 16 in 2 bytes
    total = inter = 0.0
    for rank in range(width):
        for _ in range(width - 1):  # each step sends one shard to the next rank
            total += kv
            target = first + (rank + 1) % width
            inter += kv if (first + rank) // 4 != target // 4 else 0
    sent = rivals._ring(64, first, width, work, cluster)
    assert (sent.total, sent.inter) == (3 * total, 3 * inter)


def test_rivals_give_work_to_ranks_that_have_room(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import rivals

    lengths = [512, 64, 64, 64, 64, 128, 128]
    masks = [*map(causal_of, lengths)]
    work, cluster = (
        build_workload(block_sparsity(masks, 16, 16), ModelShape(4, 2, 16, 2)),
        Cluster(2, 4),
    )
    sequence = work.block_sequence
    for name, place in rivals.RIVALS.items():
        placement = place(work, cluster).placement
        owner, device = placement.device_of_data, placement.device_of_compute
        assert owner.min() >= 0
        assert max(owner.max(), device.max()) < 8
        if name != "distca":
            assert (device == owner[work.compute_q]).all()
    owners = {}
    for name in ("te-thd", "megatron-dynamic", "zeppelin"):
        owner = rivals.RIVALS[name](work, cluster).placement.device_of_data
        owners[name] = [np.unique(owner[sequence == n]).tolist() for n in range(len(lengths))]
    assert owners["te-thd"][0] == list(range(8))
    # 1,024 tokens: a rank has room for 128, a node for 512.
    assert [len(found) for found in owners["megatron-dynamic"]] == [4, 1, 1, 1, 1, 1, 1]
    assert owners["megatron-dynamic"][0] == [0, 1, 2, 3]
    assert {rank for found in owners["megatron-dynamic"][1:] for rank in found} == {4, 5, 6, 7}
    assert owners["zeppelin"][0] == [0, 1, 2, 3]


@pytest.mark.slow
def test_bench_reproducible_compares_with_default_plans(run, tmp_path):
    out = tmp_path / "reproducible.json"
    run(
        "bench_reproducible.py", "--clusters", "1x2", "--heads", "2/1", "--every", 40, "--json", out
    )
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 2
    for row in rows:
        assert row["reproducible_forward_s"] > 0
    assert "| 1x2 | 2/1 | all | 2 |" in run("bench_reproducible.py", "--table", out)
