"""KaHyPar through its adapter; brute force says what the best is on tiny cases."""

import importlib.util
import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_planner import (
    PARTITIONERS,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    build_plan,
    measure,
    validate,
)
from dcp_planner.model.problem import DIRECTIONS, build_workload, cap_of, caps_of
from dcp_planner.search.kahypar import (
    WEIGHT_LIMIT,
    _both_directions,
    _encode,
    _to_int32,
    build_hypergraph,
)
from dcp_planner.search.partitioners import place

pytestmark = [
    pytest.mark.dist,
    pytest.mark.timing,
    pytest.mark.skipif(
        importlib.util.find_spec("kahypar") is None, reason="kahypar is not installed"
    ),
]


def best_cost(workload, cluster, config):
    """Try every placement under the caps: the cheapest cost of both directions."""
    parts = range(cluster.num_devices)
    caps = caps_of(workload, len(parts), config)
    tokens, pairs = workload.block_tokens, workload.compute_pairs

    def under(cap, sizes):
        for choice in itertools.product(parts, repeat=len(sizes)):
            if np.bincount(choice, weights=sizes).max() <= cap:
                yield np.array(choice, np.int32)

    shape = workload.shape
    rows = 2 * shape.q_bytes + shape.out_bytes + shape.q_backward_bytes
    owners = list(under(caps.tokens, tokens))
    best = np.inf
    for device in under(caps.pairs, pairs):
        for owner in owners:
            q, kv = workload.compute_q, workload.compute_kv
            cost = sum(
                tokens[block] * rows
                for block, d in set(zip(q, device, strict=True))
                if owner[block] != d
            ) + sum(
                tokens[block] * 3 * shape.kv_bytes
                for block, d in set(zip(kv, device, strict=True))
                if owner[block] != d
            )
            best = min(best, cost)
    return best


def test_weights_of_edges_keep_their_ratios_and_fit_what_kahypar_adds_up():
    assert _to_int32(np.array([6, 9, 30])).tolist() == [2, 3, 10]
    assert _to_int32(np.zeros(0, np.int64)).tolist() == []
    weight = np.array([1, 2**40, 3 * 2**40, 2**41 + 1])
    found = _to_int32(weight)
    assert found.sum() <= WEIGHT_LIMIT + len(weight)
    assert found[0] == 1
    assert found[1:] / found[1] == pytest.approx([1, 3, 2], rel=1e-6)


@pytest.mark.parametrize("name", ["causal", "window", "packed", "ragged"])
def test_tiny_cases_are_placed_at_the_best_cost(masks, name):
    batch = {
        "causal": [masks.causal(12)],
        "window": [masks.sliding_window(16, 5)],
        "packed": [masks.causal(8), masks.causal(8)],
        "ragged": [masks.causal(7), masks.causal(6)],
    }[name]
    workload = build_workload(masks.pack(batch, 4), ModelShape())
    cluster, config = Cluster(1, 2), PlanConfig(partitioner="kahypar", compute_tolerance=0.3)
    assert workload.num_tiles + workload.num_blocks <= 12
    found = place(workload, cluster, config)
    part = np.concatenate([found.device_of_compute, found.device_of_data])
    cost = sum(masks.cost(build_hypergraph(workload, d), part) for d in DIRECTIONS)
    assert cost == best_cost(workload, cluster, config)


@pytest.mark.parametrize("shape", [(1, 4), (2, 2), (2, 3)])
def test_caps_hold_where_blocks_are_fine_enough(masks, shape):
    sparsity = masks.pack(
        [masks.causal(96), masks.causal(31), masks.shared_question(8, [20, 20])], 4
    )
    plan = build_plan(sparsity, ModelShape(), Cluster(*shape), PlanConfig("kahypar"))
    found = measure(plan)
    assert plan.warnings == ()
    assert found.compute_imbalance <= 1.1
    assert found.token_imbalance <= 1.1


def test_a_tolerance_out_of_reach_is_said(masks):
    plan = build_plan(
        masks.pack([masks.causal(8)], 4), ModelShape(), Cluster(1, 4), PlanConfig("kahypar")
    )
    assert [found.code for found in plan.warnings] == [
        "compute_above_tolerance",
        "tokens_above_tolerance",
    ]
    assert "whole blocks allow about 2.000" in plan.warnings[1].message


def test_it_moves_less_than_zigzag_and_balances_more_than_contiguous(masks):
    sparsity = masks.pack([masks.causal(128)], 4)
    cluster = Cluster(2, 4)
    found = {
        name: measure(
            build_plan(sparsity, ModelShape(), cluster, PlanConfig(name, routing="direct"))
        )
        for name in PARTITIONERS
    }
    best, zigzag = found["kahypar"], found["static:zigzag"]
    assert best.forward.inter_node_bytes < 0.6 * zigzag.forward.inter_node_bytes
    assert best.compute_imbalance < found["static:contiguous"].compute_imbalance - 0.5


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_mask_on_any_cluster_makes_a_valid_plan(strategies, data):
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    plan = build_plan(sparsity, ModelShape(), cluster, PlanConfig("kahypar"))
    validate(plan)
    pairs = plan.tiles.pairs.tolist()
    mean = sum(pairs) / cluster.num_devices
    work = np.bincount(plan.tiles.device, weights=pairs, minlength=cluster.num_devices)
    assert work.max() <= max(1.1 * mean, mean + max(pairs, default=0))


def test_the_encoding_fits_int32_and_one_token_outweighs_all_compute(masks):
    lengths = [1, 1023, 4096, 777]
    workload = build_workload(
        masks.pack([np.tri(n, dtype=bool) for n in lengths], 256), ModelShape()
    )
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


@pytest.fixture
def workload(masks):
    return build_workload(masks.pack([masks.causal(24)], 4), ModelShape())


def test_a_missing_package_is_refused_with_the_way_out(workload, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "kahypar" else find(name, *a)
    )
    with pytest.raises(
        PlanError, match=r"pip install 'dcp-dsl\[kahypar\]'`, or choose partitioner"
    ):
        place(workload, Cluster(1, 2), PlanConfig(partitioner="kahypar"))


def test_a_package_that_does_not_load_is_refused(workload, monkeypatch, tmp_path):
    (tmp_path / "kahypar.py").write_text("raise ImportError('libboost.so: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        PlanError, match=r"KaHyPar cannot be loaded: libboost.so: cannot open; install"
    ):
        place(workload, Cluster(1, 2), PlanConfig(partitioner="kahypar"))


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGABRT)", "was killed by SIGABRT"),
        ("os._exit(0)", "exited with 0"),
        ("os.write(2, b'bad input'); os._exit(7)", "exited with 7: bad input"),
    ],
)
def test_a_crash_is_refused(workload, monkeypatch, tmp_path, fault, how):
    (tmp_path / "kahypar.py").write_text(f"import os, signal\n{fault}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PlanError, match=rf"KaHyPar \(process \d+\) {how}; if memory ran out use"):
        place(workload, Cluster(1, 2), PlanConfig(partitioner="kahypar"))


def test_the_largest_tolerances_forbid_nothing(workload):
    config = PlanConfig(compute_tolerance=1e6, token_tolerance=1e6, time_limit_s=86_400)
    assert place(workload, Cluster(1, 2), config).warnings == ()


def test_a_time_limit_ends_it(workload, monkeypatch, tmp_path):
    (tmp_path / "kahypar.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PlanError, match=r"longer than the time limit of 0.5 s; use larger blocks"):
        place(workload, Cluster(1, 2), PlanConfig("kahypar", time_limit_s=0.5))


def test_the_planner_never_imports_kahypar_nor_prints(workload):
    code = (
        "import sys\nimport numpy as np\n"
        "from dcp_dsl import BlockSparsity, Slabs\n"
        "from dcp_dsl.forms.sparsity import BatchShape\n"
        "from dcp_planner import Cluster, ModelShape, build_plan\n"
        "b = np.arange(0, 25, 4); n = 6; slabs = Slabs(24, [0], [24], [0], [24], [0], [0])\n"
        "s = BlockSparsity(BatchShape.of([24]), 4, 4, b, b, np.arange(n + 1) * n,\n"
        "    np.tile(np.arange(n), n), np.full(n * n, 2), np.full(n * n, 16), slabs)\n"
        "build_plan(s, ModelShape(), Cluster(1, 2))\n"
        "assert 'kahypar' not in sys.modules and 'pyarrow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=250
    )
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.skipif(importlib.util.find_spec("mtkahypar") is None, reason="it is not installed")
def test_mt_kahypar_holds_the_caps_and_repeats_itself(masks):
    batch = [masks.causal(96), masks.causal(31), masks.shared_question(8, [20, 20])]
    workload = build_workload(masks.pack(batch, 4), ModelShape())
    config = PlanConfig("mtkahypar")
    first, second = (place(workload, Cluster(2, 2), config) for _ in range(2))
    assert first.warnings == ()
    assert np.array_equal(first.device_of_compute, second.device_of_compute)
    assert np.array_equal(first.device_of_data, second.device_of_data)
