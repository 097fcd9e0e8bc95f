"""The hypergraph, what KaHyPar is asked, what becomes of its answers; the package itself."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from dense_blocks import causal_of, sparsity_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_dsl import block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, PlanError, build_plan, measure, validate
from dcp_planner.model.problem import build_workload, cap_of
from dcp_planner.search.kahypar import (
    WEIGHT_LIMIT,
    KaHyPar,
    _both_directions,
    _encode,
    _to_int32,
    build_hypergraph,
)
from dcp_planner.search.partitioners import place

SHAPE = ModelShape(4, 2, 16)


@pytest.fixture(scope="module")
def workload(masks):
    return build_workload(sparsity_of([masks.causal(44), masks.sliding_window(20, 5)], 8), SHAPE)


def test_it_is_not_taken_for_fixed_and_refuses_unequal_devices():
    assert not KaHyPar().is_fixed
    with pytest.raises(PlanError, match="kahypar places on equal nodes of equal devices; use"):
        KaHyPar().place(None, Cluster(1, 2, devices=((1, 0.5),)), PlanConfig())


def test_two_causal_blocks_make_this_hypergraph(masks):
    # tiles 0 = (0, 0), 1 = (1, 0), 2 = (1, 1); blocks are vertices 3 and 4
    workload = build_workload(masks.pack([masks.causal(6)], 4), ModelShape(1, 1, 1, 1))
    graph = build_hypergraph(workload)
    assert graph.vertex_weight.tolist() == [[10, 0], [8, 0], [3, 0], [0, 4], [0, 2]]
    pins = np.split(graph.pins, graph.pin_ptr[1:-1])
    assert [sorted(p.tolist()) for p in pins] == [[0, 3], [1, 2, 4], [0, 1, 3], [2, 4]]
    # per token: q 1 + out 1 + lse 4 = 6 bytes for a row, k 1 + v 1 = 2 for a column
    assert graph.edge_weight.tolist() == [24, 12, 8, 4]


@given(st.data())
def test_cost_is_the_bytes_counted_tile_by_tile(masks, strategies, data):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape(4, 2, 8, 2))
    placed = data.draw(strategies.placements(workload.num_blocks, workload.num_tiles, 3))
    owner, device = placed.device_of_data.tolist(), placed.device_of_compute.tolist()
    # q 4*8*2 = 64, out 64, lse 4*4 = 16, kv 2*2*8*2 = 64; backward q, dout 128 + lse, delta 32
    sides = ((64 + 80, 128 + 32 + 64, workload.compute_q), (64, 64 + 64, workload.compute_kv))
    expected = {"forward": 0, "backward": 0}
    for forward, backward, blocks in sides:
        for block, at in {*zip(blocks.tolist(), device, strict=True)}:
            if owner[block] != at:
                expected["forward"] += int(workload.block_tokens[block]) * forward
                expected["backward"] += int(workload.block_tokens[block]) * backward
    part = np.array([*device, *owner], np.int32)
    for direction, size in expected.items():
        assert masks.cost(build_hypergraph(workload, direction), part) == size


def test_a_block_that_nobody_reads_has_edges_of_its_own(masks):
    workload = build_workload(masks.pack([np.zeros((4, 4), bool)], 2), ModelShape())
    graph = build_hypergraph(workload)
    assert graph.pin_ptr.tolist() == [0, 1, 2, 3, 4]
    assert masks.cost(graph, np.array([0, 1], np.int32)) == 0


def needs_kahypar(test):
    is_missing = importlib.util.find_spec("kahypar") is None
    skipped = pytest.mark.skipif(is_missing, reason="it is not installed")
    return pytest.mark.dist(pytest.mark.timing(skipped(test)))


def test_weights_of_edges_keep_their_ratios_and_fit_what_kahypar_adds_up():
    assert _to_int32(np.array([6, 9, 30])).tolist() == [2, 3, 10]
    assert _to_int32(np.zeros(0, np.int64)).tolist() == []
    weight = np.array([1, 2**40, 3 * 2**40, 2**41 + 1])
    found = _to_int32(weight)
    assert found.sum() <= WEIGHT_LIMIT + len(weight)
    assert found[0] == 1
    assert found[1:] / found[1] == pytest.approx([1, 3, 2], rel=1e-6)


@needs_kahypar
def test_a_tolerance_out_of_reach_is_said(masks):
    sparsity = masks.pack([masks.causal(8)], 4)
    config = PlanConfig("kahypar", compute_tolerance=0.1)
    plan = build_plan(sparsity, ModelShape(), Cluster(1, 4), config)
    codes = [found.code for found in plan.warnings]
    assert codes == ["compute_above_tolerance", "tokens_above_tolerance"]
    assert "whole blocks allow about 2.000" in plan.warnings[1].message


@needs_kahypar
def test_it_moves_less_than_zigzag_and_balances_more_than_contiguous(masks):
    sparsity = masks.pack([masks.causal(128)], 4)
    best, zigzag, contiguous = (
        measure(
            build_plan(sparsity, ModelShape(), Cluster(2, 4), PlanConfig(name, routing="direct"))
        )
        for name in ("kahypar", "static:zigzag", "static:contiguous")
    )
    assert best.forward.inter_node_bytes < 0.6 * zigzag.forward.inter_node_bytes
    assert best.compute_imbalance < contiguous.compute_imbalance - 0.5


@needs_kahypar
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_mask_on_any_cluster_makes_a_valid_plan(strategies, data):
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    plan = build_plan(sparsity, ModelShape(), cluster, PlanConfig("kahypar"))
    validate(plan)
    pairs = plan.tiles.pairs.tolist()
    mean = sum(pairs) / cluster.num_devices
    work = np.bincount(plan.tiles.device, weights=pairs, minlength=cluster.num_devices)
    assert work.max() <= max(1.1 * mean, mean + max(pairs, default=0))


def test_the_encoding_fits_int32_and_one_token_outweighs_all_compute():
    lengths = [1, 1023, 4096, 777]
    workload = build_workload(block_sparsity([*map(causal_of, lengths)], 256, 256), ModelShape())
    hypergraph = _both_directions(workload)
    for parts in (2, 3, 8):
        cap = cap_of(workload.compute_pairs, parts, 0.1)
        problem = _encode(hypergraph, workload.num_tiles, parts, cap, has_targets=True)
        tiles, blocks = np.split(problem.vertex_weight, [workload.num_tiles])
        assert problem.vertex_weight.sum() < 2**30
        assert problem.target.sum() >= problem.vertex_weight.sum()
        per_token = blocks.min()  # the shortest block has one token
        cap_of_compute = (problem.target.sum() - blocks.sum()) / parts
        assert per_token > cap_of_compute >= tiles.sum() / parts
        share = tiles / tiles.sum() - workload.compute_pairs / workload.compute_pairs.sum()
        assert abs(share).max() < 0.01


def test_a_missing_package_is_refused_with_the_way_out(workload, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "kahypar" else find(name, *a)
    )
    with pytest.raises(
        PlanError, match=r"pip install 'dcp-dsl\[kahypar\]'`, or choose partitioner"
    ):
        place(workload, Cluster(1, 2), PlanConfig(partitioner="kahypar"))


@needs_kahypar
@pytest.mark.parametrize(
    ("package", "limit_s", "says"),
    [
        ("raise ImportError('libboost.so: cannot open')", 60,
         "KaHyPar cannot be loaded: libboost.so: cannot open; install"),
        ("import os\nos.write(2, b'bad input'); os._exit(7)", 60,
         r"KaHyPar \(process \d+\) exited with 7: bad input; if memory ran out use"),
        ("import time\ntime.sleep(60)", 0.5,
         r"longer than the time limit of 0.5 s; use larger blocks"),
    ],
)  # fmt: skip
def test_a_package_that_fails_is_refused(workload, monkeypatch, tmp_path, package, limit_s, says):
    (tmp_path / "kahypar.py").write_text(package)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PlanError, match=says):
        place(workload, Cluster(1, 2), PlanConfig("kahypar", time_limit_s=limit_s))


@needs_kahypar
def test_the_planner_never_imports_kahypar_nor_prints():
    code = (
        "import sys\n"
        "from dcp_dsl import Sample, Spec, block_sparsity\n"
        "from dcp_planner import Cluster, ModelShape, build_plan\n"
        "form = Spec.from_text('mask m = causal').mask('m').bind(Sample(length=24))\n"
        "build_plan(block_sparsity([form], 4, 4), ModelShape(), Cluster(1, 2))\n"
        "assert not {'kahypar', 'pyarrow'} & {*sys.modules}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=250
    )
    assert (done.stdout, done.stderr) == (b"", b"")
