"""Plans and traces small enough to check by hand, and one of the size that people have."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from flask.testing import FlaskClient

from dcp_dashboard import create_app
from dcp_dsl import BlockSparsity, Slabs
from dcp_dsl.forms import BatchShape
from dcp_planner import (
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    Provenance,
    Trace,
    build_plan,
    simulate,
    write_plan,
)


def causal_sparsity(lengths: list[int], block: int) -> BlockSparsity:
    """Cut causal masks of whole sequences into blocks, pair counts by counting rows."""
    batch = BatchShape.of(lengths)
    cu = batch.cu_seqlens.astype(np.int64)
    bounds = [0]
    for begin, end in pairwise(cu):
        bounds += [*range(begin + block, end, block), end]
    cuts = np.array(bounds)
    sequence = np.searchsorted(cu, cuts[:-1], side="right") - 1
    row_ptr, columns, pairs = [0], [], []
    for row in range(len(cuts) - 1):
        queries = np.arange(cuts[row], cuts[row + 1])
        for column in np.flatnonzero(sequence[: row + 1] == sequence[row]):
            last_key = np.minimum(queries + 1, cuts[column + 1])
            columns.append(int(column))
            pairs.append(int((last_key - cuts[column]).clip(0).sum()))
        row_ptr.append(len(columns))
    rows = np.repeat(np.arange(len(cuts) - 1), np.diff(row_ptr))
    area = np.diff(cuts)[rows] * np.diff(cuts)[columns]
    zero, one = np.zeros(len(lengths), np.uint8), np.ones(len(lengths), np.uint8)
    slabs = Slabs(batch.num_tokens, cu[:-1], cu[1:], cu[:-1], cu[:-1] + 1, zero, one)
    kind = np.where(area == pairs, 2, 1)
    return BlockSparsity(batch, block, block, cuts, cuts, row_ptr, columns, kind, pairs, slabs)


def causal_plan(
    lengths: list[int], block: int, cluster: Cluster, partitioner: str = "static:zigzag"
) -> Plan:
    provenance = Provenance(
        "mask m = causal", "causal", tuple(f'{{"len": {n}}}' for n in lengths), "by hand"
    )
    return build_plan(
        causal_sparsity(lengths, block),
        ModelShape(q_heads=4, kv_heads=2, head_dim=64),
        cluster,
        PlanConfig(partitioner=partitioner, divisions=3),
        provenance=provenance,
    )


def as_measured(trace: Trace) -> Trace:
    """The same events, a quarter slower: a trace that a run could have recorded."""
    start, end = trace.start_ns * 5 // 4, trace.end_ns * 5 // 4
    return replace(trace, source="measured", start_ns=start, end_ns=end, ready_ns=start)


NAMES = ("row 70", "row 7: <script>alert(1)</script>", "row 12: chat-9f3a")


@pytest.fixture(scope="module", autouse=True)
def workers_are_forks(forked_workers: None) -> None:
    """Processes that check, plan, query and read files have their imports."""


@pytest.fixture(scope="session")
def small_plan() -> Plan:
    plan = causal_plan([1000, 560, 488], 128, Cluster(nodes=2, devices_per_node=2))
    return replace(plan, sequence_names=NAMES)


@pytest.fixture(scope="session")
def small_choices(small_plan: Plan) -> list[Plan]:
    """The batch of `small_plan`, planned for time and for bytes."""
    sparsity = causal_sparsity(np.diff(small_plan.cu_seqlens).tolist(), 128)
    shape = replace(small_plan.shape, float32_partials=False)
    configs = (PlanConfig(), PlanConfig(objective="bytes"))
    return [build_plan(sparsity, shape, small_plan.cluster, config) for config in configs]


@pytest.fixture(scope="session")
def grouped_plan() -> Plan:
    """Two groups of two heads; in each node a device of its own computes each."""
    plan = causal_plan([1000, 560, 488], 128, Cluster(2, 2), "static:heads_context")
    assert plan.head_groups == 2
    return plan


@pytest.fixture(scope="session")
def lone_plan() -> Plan:
    """One device: nothing moves."""
    return causal_plan([64], 64, Cluster(nodes=1, devices_per_node=1))


@pytest.fixture(scope="session")
def small_trace(small_plan: Plan) -> Trace:
    return simulate(small_plan)


@pytest.fixture(scope="session")
def large_plan() -> Plan:
    return causal_plan([131_072], 1024, Cluster(nodes=4, devices_per_node=8))


@pytest.fixture(scope="session")
def served_folder(
    tmp_path_factory: pytest.TempPathFactory,
    small_plan: Plan,
    small_trace: Trace,
    large_plan: Plan,
) -> Path:
    """Two good plans, one of them run, and a file cut short."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "deep").mkdir()
    write_plan(folder / "small.dcpplan", small_plan, (small_trace, as_measured(small_trace)))
    write_plan(folder / "deep" / "large.dcpplan", large_plan)
    whole = (folder / "small.dcpplan").read_bytes()
    (folder / "cut.dcpplan").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("not a plan")
    return folder


@pytest.fixture(scope="session")
def client(served_folder: Path) -> FlaskClient:
    """Asks the application over `served_folder` for what tests only read."""
    return create_app(served_folder).server.test_client()


@pytest.fixture(scope="session")
def paired_folder(
    tmp_path_factory: pytest.TempPathFactory,
    small_plan: Plan,
    small_trace: Trace,
    large_plan: Plan,
) -> Path:
    """One batch placed in two ways, each run, and in other blocks; another batch."""
    folder = tmp_path_factory.mktemp("paired")
    lengths, cluster = np.diff(small_plan.cu_seqlens).tolist(), small_plan.cluster
    other = causal_plan(lengths, 128, cluster, "static:contiguous")
    traces = (simulate(other), as_measured(simulate(other)))
    write_plan(folder / "zigzag.dcpplan", small_plan, (small_trace, as_measured(small_trace)))
    write_plan(folder / "contiguous.dcpplan", other, traces)
    write_plan(folder / "coarse.dcpplan", causal_plan(lengths, 256, cluster))
    write_plan(folder / "large.dcpplan", large_plan)
    return folder
