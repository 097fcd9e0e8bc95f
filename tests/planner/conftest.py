"""Masks, placements, clusters and plans, drawn and by hand, for the tests of the planner."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command_runs import SPEC
from dense_blocks import Dense, slabs_of, sparsity_of
from hypothesis import strategies as st
from numba.extending import is_jitted
from numpy.typing import NDArray

from dcp_dsl import BlockSparsity
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, build_plan, validate
from dcp_planner.model.problem import Placement, Workload, build_workload
from dcp_planner.schedule.divisions import Manner
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.kahypar import Hypergraph
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.tables import expand_head_groups
from dcp_planner.tables.head_groups import possible_groups


def connectivity_cost(graph: Hypergraph, part: NDArray[np.int32]) -> int:
    """Bytes of a partition: the weight of a net for every part that it touches, but one."""
    nets = zip(graph.edge_weight.tolist(), pairwise(graph.pin_ptr.tolist()), strict=True)
    return sum(w * (len(set(part[graph.pins[a:b]].tolist())) - 1) for w, (a, b) in nets)


def causal(n: int) -> Dense:
    return np.tri(n, dtype=bool)


def sliding_window(n: int, window: int) -> Dense:
    return np.tri(n, dtype=bool) & ~np.tri(n, k=-window, dtype=bool)


def shared_question(question: int, answers: Sequence[int]) -> Dense:
    n = question + sum(answers)
    mask = np.tri(n, dtype=bool)
    part = np.repeat(np.arange(len(answers) + 1), [question, *answers])
    return mask & ((part[:, None] == part[None]) | (part[None] == 0))


def unseen_row(n: int) -> Dense:
    """Causal, but two rows see nothing and one key is seen by nobody."""
    mask = np.tri(n, dtype=bool)
    mask[[0, n // 2]] = False
    mask[:, n // 3] = False
    return mask


MASKS: dict[str, list[Dense]] = {
    "causal": [causal(64)],
    "window": [sliding_window(64, 13)],
    "question": [shared_question(12, [16, 20, 16])],
    "packed": [causal(24), causal(8), causal(32)],
    "ragged": [causal(17), sliding_window(31, 5), causal(1), shared_question(3, [5, 6])],
    "unseen": [unseen_row(40), causal(9)],
    "nothing": [np.zeros((20, 20), bool)],
    "single": [causal(1)],
}


@pytest.fixture(params=sorted(MASKS))
def sparsity(request: pytest.FixtureRequest) -> BlockSparsity:
    return sparsity_of(MASKS[request.param], 8)


@st.composite
def sparsities(draw: st.DrawFn) -> BlockSparsity:
    """Packed batches of one to four short sequences with any mask, cut into blocks of any size."""
    masks = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 24))
        kind = draw(st.sampled_from(["causal", "window", "noise", "full", "nothing"]))
        if kind == "window":
            masks.append(sliding_window(length, draw(st.integers(1, length))))
        elif kind == "noise":
            rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
            masks.append(rng.random((length, length)) < draw(st.floats(0.02, 0.9)))
        else:
            square = np.full((length, length), kind == "full")
            masks.append(causal(length) if kind == "causal" else square)
    return sparsity_of(masks, draw(st.integers(1, 9)))


@st.composite
def placements(draw: st.DrawFn, blocks: int, tiles: int, devices: int) -> Placement:
    """Any placement at all, however bad."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Placement(rng.integers(0, devices, blocks), rng.integers(0, devices, tiles))


@st.composite
def placed(draw: st.DrawFn) -> tuple[Workload, Cluster, Placement]:
    """A batch and a cluster, with any placement."""
    workload, cluster = build_workload(draw(sparsities()), ModelShape()), draw(clusters())
    sizes = workload.num_blocks, workload.num_tiles, cluster.num_devices
    return workload, cluster, draw(placements(*sizes))


def manners(*, is_fetched_again: bool = True, is_striped: bool = True) -> st.SearchStrategy[Manner]:
    """Ways in which blocks travel: by node, striped, given back early, fetched again, or none."""
    common = {"routing": st.sampled_from(["direct", "node"]), "is_frugal": st.booleans()}
    striped = st.builds(
        Manner, **common, is_striped=st.booleans() if is_striped else st.just(False)
    )
    again = st.builds(Manner, **common, idle=st.none() | st.integers(0, 2))
    return striped | again if is_fetched_again else striped


@st.composite
def placed_plans(
    draw: st.DrawFn, *, is_laid_out: bool = True, ways: st.SearchStrategy[Manner] | None = None
) -> Plan:
    """Plans of any placement on up to nine devices, not validated; head groups laid out or not."""
    ways = manners() if ways is None else ways
    sparsity, cluster = draw(sparsities()), draw(clusters())
    workload = build_workload(sparsity, draw(st.sampled_from(SHAPES)))
    groups = draw(st.sampled_from([g for g in possible_groups(workload.shape) if g <= 4]))
    placement = draw(
        placements(workload.num_blocks, workload.num_tiles * groups, cluster.num_devices)
    )
    placement = replace(placement, head_groups=groups)
    schedule = make_schedule(
        workload, placement, cluster, PlanConfig(divisions=draw(st.integers(2, 6)))
    )
    schedule = replace(schedule, manners=(draw(ways), draw(ways)))
    plan = assemble(workload, cluster, placement, schedule, "any")
    return expand_head_groups(plan) if is_laid_out else plan


def clusters() -> st.SearchStrategy[Cluster]:
    return st.builds(
        lambda nodes, devices: Cluster(nodes=nodes, devices_per_node=devices),
        st.integers(1, 3),
        st.integers(1, 3),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spec and rows for the tests of commands (`command_runs`)."""
    (tmp_path / "a.dcpm").write_text(SPEC)
    rows = [{"len": n} for n in (30, 20, 400, 25, 0, 40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


SHAPES = (
    ModelShape(), ModelShape(3, 1, 5, 4), ModelShape(32, 8, 128, 2),
    ModelShape(4, 2, 16, 2, float32_partials=True),
)  # fmt: skip


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run all compiled functions as the Python that they are written in, without numba."""
    ours = [module for name, module in sys.modules.items() if name.startswith("dcp_planner.")]
    with pytest.MonkeyPatch.context() as patch:
        for module in (*ours, request.module):
            for name, value in [*vars(module).items()]:
                if is_jitted(value):
                    patch.setattr(module, name, value.py_func)
        yield


@pytest.fixture(scope="session")
def masks() -> SimpleNamespace:
    """Dense masks and how to pack them; a fixture, because test files cannot import each other."""
    return SimpleNamespace(
        causal=causal,
        sliding_window=sliding_window,
        shared_question=shared_question,
        unseen_row=unseen_row,
        pack=sparsity_of,
        slabs=slabs_of,
        cost=connectivity_cost,
    )


@pytest.fixture(scope="session")
def strategies() -> SimpleNamespace:
    return SimpleNamespace(
        sparsities=sparsities,
        placements=placements,
        placed=placed,
        placed_plans=placed_plans,
        clusters=clusters,
        manners=manners,
    )


@pytest.fixture(scope="session")
def plan() -> Plan:
    """A valid plan with every kind of transfer, on two nodes of two devices."""
    sparsity = sparsity_of([causal(40), shared_question(5, [9, 9]), causal(3)], 8)
    workload = build_workload(sparsity, ModelShape())
    cluster = Cluster(nodes=2, devices_per_node=2)
    rng = np.random.default_rng(7)
    placement = Placement(
        rng.integers(0, 4, workload.num_blocks), rng.integers(0, 4, workload.num_tiles)
    )
    schedule = make_schedule(workload, placement, cluster, PlanConfig())
    made = assemble(workload, cluster, placement, schedule, "any")
    validate(made)
    return made


@pytest.fixture(scope="session")
def two_blocks() -> Callable[[Cluster], Plan]:
    """Plan two causal blocks of 4 tokens on two devices: kv 0 travels, and dkv 0 is merged.

    A pair has 4 FLOPs; kv and dkv have 2 bytes a token.
    """
    sparsity, config = sparsity_of([causal(8)], 4), PlanConfig("static:contiguous")
    return lambda cluster: build_plan(sparsity, ModelShape(1, 1, 1, 1), cluster, config)
