"""The hypergraph, what KaHyPar is asked, what becomes of its answers; without it."""

import sys
import time
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pytest
from dense_blocks import sparsity_of
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig, PlanError
from dcp_planner.model.problem import build_workload, loads_on
from dcp_planner.search import kahypar, kahypar_worker
from dcp_planner.search.kahypar import (
    KaHyPar,
    KahyparProblem,
    _both_directions,
    _partition,
    _solve,
    build_hypergraph,
)

SHAPE = ModelShape(4, 2, 16)


class Library:
    """Notes what is called, and gives back an object that does the same."""

    def __init__(self, notes, name):
        self.__dict__.update(notes=notes, name=name)

    def __getattr__(self, name):
        return Library(self.notes, f"{self.name}.{name}")

    def __setattr__(self, name, value):
        self.notes.append(f"{self.name}.{name} = {value!r}")

    def __repr__(self):
        return f"<{self.name}>"

    def __call__(self, *arguments, **named):
        words = [*map(repr, arguments), *(f"{name}={value!r}" for name, value in named.items())]
        self.notes.append(f"{self.name}({', '.join(words)})")
        if self.name.lower().endswith(("blockid", "block_id")):
            return arguments[0] % 3
        return Library(self.notes, f"{self.name}()")


class InProcess:
    """A worker that answers in this process."""

    def __init__(self):
        self._answer = kahypar_worker.start("its.ini")

    def call(self, message, *, blob):
        return self._answer(message, blob, None)


@pytest.fixture(scope="module")
def workload(masks):
    return build_workload(sparsity_of([masks.causal(44), masks.sliding_window(20, 5)], 8), SHAPE)


def test_a_problem_is_put_to_the_library(masks, monkeypatch, snapshots):
    small = build_workload(sparsity_of([masks.causal(12)], 8), SHAPE)
    graph = _both_directions(small)
    weight = np.arange(1, graph.num_vertices + 1)
    notes = []
    monkeypatch.setitem(sys.modules, "kahypar", Library(notes, "kahypar"))
    kahypar_worker._load.cache_clear()
    worker = InProcess()
    for seed in (7, 8):
        part = _partition(KahyparProblem(graph, weight, np.array([9, 11])), seed, worker)
        assert part.tolist() == [vertex % 3 for vertex in range(len(weight))]
        assert part.dtype == np.int32
    kahypar_worker._load.cache_clear()
    snapshots.check("calls_of_kahypar", {"KaHyPar": "\n".join(notes)})


class Pool:
    """Does the tasks when they are asked for, the last first."""

    def __init__(self, answers):
        self.answers, self.sizes = answers, []

    def submit(self, task):
        problem = task.args[0]
        self.sizes.append(len(problem.hypergraph.pins))
        future = Future()
        answer = self.answers.get(self.sizes[-1], self.sizes[-1])
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return future


def problems_of(masks, lengths):
    for tokens in lengths:
        graph = _both_directions(build_workload(sparsity_of([masks.causal(tokens)], 8), SHAPE))
        yield KahyparProblem(graph, np.ones(1, np.int64), np.ones(1, np.int64))


def test_the_largest_problem_begins_first_and_answers_keep_their_order(masks):
    problems = [*problems_of(masks, (16, 40, 8, 24))]
    sizes = [len(problem.hypergraph.pins) for problem in problems]
    pool, later = Pool({}), time.monotonic() + 60
    assert _solve(problems, pool, PlanConfig(), later) == sizes
    assert pool.sizes == sorted(sizes, reverse=True)


def test_an_answer_that_comes_after_the_deadline_is_refused(masks):
    (problem,) = problems_of(masks, (8,))
    pool = Pool({len(problem.hypergraph.pins): None})
    with pytest.raises(PlanError, match=r"KaHyPar took longer than the time limit of 7 s"):
        _solve([problem], pool, PlanConfig(time_limit_s=7.0), time.monotonic())


@pytest.mark.parametrize("shape", [(1, 3), (2, 2), (3, 1)])
def test_answers_become_a_placement_under_the_caps(workload, monkeypatch, snapshots, shape):
    asked = []

    def solve(problems):
        """Fill the parts in turn up to equal weights."""
        parts = []
        for problem in problems:
            weight, count = problem.vertex_weight, len(problem.target)
            place = (np.cumsum(weight) - weight / 2) / weight.sum()
            parts.append((place * count).astype(np.int32))
            asked.append(
                f"{len(weight)} vertices, {len(problem.hypergraph.pins)} pins, "
                f"nets {int(problem.hypergraph.edge_weight.sum()):,}, {problem.target}"
            )
        return parts  # fmt: skip

    @contextmanager
    def solving(config):
        yield solve

    monkeypatch.setattr(kahypar, "solving", solving)
    cluster, config = Cluster(*shape), PlanConfig("kahypar")
    found = KaHyPar().place(workload, cluster, config)
    pairs, tokens = loads_on(found, workload, cluster)
    told = (found.device_of_data, found.device_of_compute)
    words = ["".join(map(str, column.tolist())) for column in told]
    lines = [*asked, *words, f"{pairs.tolist()} pairs, {tokens.tolist()} tokens"]
    snapshots.check(
        f"placed_by_kahypar_{shape[0]}_{shape[1]}", {"asked and placed": "\n".join(lines)}
    )


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
