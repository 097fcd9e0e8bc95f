"""Plans and traces small enough to check by hand, and one of the size that people have."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flask.testing import FlaskClient

from dcp_dashboard import create_app
from dcp_dashboard.library.folder import PlanEntry, plan_key
from dcp_dashboard.library.plans import LoadedPlan, loaded_plan
from dcp_dsl import BlockSparsity, Sample, Slabs, Spec, block_sparsity
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
from dcp_planner.model.problem import PlanWarning
from dcp_planner.simulation.trace import COLUMNS


def causal_sparsity(lengths: list[int], block: int) -> BlockSparsity:
    """Cut causal masks of whole sequences into blocks."""
    forms = [Slabs(length, [0], [length], [0], [1], [0], [1]) for length in lengths]
    return block_sparsity(forms, block, block)


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


def in_layers(trace: Trace, layers: int) -> Trace:
    """A run of several layers, each of which takes as long as the trace."""
    whole = int(trace.end_ns.max())
    forward = int(trace.end_ns[~trace.is_backward].max())
    columns = np.stack([getattr(trace, name) for name in COLUMNS], axis=1).astype(np.int64)
    times, rows = np.isin(COLUMNS, ("start_ns", "end_ns", "ready_ns")), []
    for layer in range(layers):  # backward begins with the last one
        back = (layers - 1) * forward + (layers - 1 - layer) * (whole - forward)
        later = np.where(trace.is_backward, back, layer * forward)
        rows.append(columns + later[:, None] * times)
    texts = [trace.name_of(event) for event in range(len(trace))] * layers
    return Trace.of_rows("measured", np.concatenate(rows), texts)


NAMES = ("row 70", "row 7: <script>alert(1)</script>", "row 12: chat-9f3a")


@pytest.fixture(scope="module", autouse=True)
def workers_are_forks(forked_workers: None) -> None:
    """Processes that check, plan and read files have their imports."""


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
def traces(small_trace: Trace) -> list[Trace]:
    """The prediction and the run of `small_plan`."""
    return [small_trace, as_measured(small_trace)]


@pytest.fixture(scope="session")
def large_plan() -> Plan:
    return causal_plan([131_072], 1024, Cluster(nodes=4, devices_per_node=8))


@pytest.fixture(scope="session")
def unequal_plan() -> Plan:
    """A plan without provenance, for three devices, one of them slow, whose work has overheads."""
    window = Slabs(700, [0, 200], [200, 700], [0, 1], [1, 201], [0, 1], [1, 1])
    cluster = Cluster(
        2, 2, devices=((1, 0.5), (1,)), name="lab", copy_bytes_per_s=1e10, kernel_launch_s=2e-6,
        pass_s=5e-6, inter_latency_s=3e-5,
    )  # fmt: skip
    config = PlanConfig("static:zigzag", divisions=2)
    plan = build_plan(block_sparsity([window], 100, 100), ModelShape(2, 1, 32, 4), cluster, config)
    return replace(
        plan, warnings=(PlanWarning("tokens_above_tolerance", "device 2 owns more than told"),)
    )


@pytest.fixture(scope="session")
def empty_plan() -> Plan:
    """A batch whose queries see no key."""
    spec = Spec.from_text("@partial mask none = k > q and causal")
    sparsity = block_sparsity([spec.mask("none").compile(Sample({}, 256))], 64, 64)
    return build_plan(sparsity, ModelShape(), Cluster(1, 2), PlanConfig("static:contiguous"))


@pytest.fixture(scope="session")
def shown(
    small_plan: Plan, grouped_plan: Plan, lone_plan: Plan, unequal_plan: Plan, empty_plan: Plan
) -> dict[str, LoadedPlan]:
    """Plans of which pages say different things, as if files of their names held them."""
    plans = {
        "small": small_plan, "grouped": grouped_plan, "lone": lone_plan, "unequal": unequal_plan,
        "empty": empty_plan,
    }  # fmt: skip
    small, unequal = simulate(small_plan), simulate(unequal_plan)
    runs = {"small": [as_measured(small)], "unequal": [in_layers(unequal, 2)]}
    return {
        name: loaded_plan(
            PlanEntry(plan_key(f"{name}.dcpplan"), f"{name}.dcpplan", Path(name), 1, 2),
            plan, runs.get(name, []),
        )
        for name, plan in plans.items()
    }  # fmt: skip


@pytest.fixture(scope="session")
def served_folder(
    tmp_path_factory: pytest.TempPathFactory, small_plan: Plan, traces: list[Trace],
    large_plan: Plan,
) -> Path:  # fmt: skip
    """Two good plans, one of them run, and a file cut short."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "deep").mkdir()
    write_plan(folder / "small.dcpplan", small_plan, traces)
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
    tmp_path_factory: pytest.TempPathFactory, small_plan: Plan, traces: list[Trace],
    large_plan: Plan,
) -> Path:  # fmt: skip
    """One batch placed in two ways, each run, and in other blocks; another batch."""
    folder = tmp_path_factory.mktemp("paired")
    lengths, cluster = np.diff(small_plan.cu_seqlens).tolist(), small_plan.cluster
    other = causal_plan(lengths, 128, cluster, "static:contiguous")
    write_plan(folder / "zigzag.dcpplan", small_plan, traces)
    write_plan(folder / "contiguous.dcpplan", other, (trace := simulate(other), as_measured(trace)))
    write_plan(folder / "coarse.dcpplan", causal_plan(lengths, 256, cluster))
    write_plan(folder / "large.dcpplan", large_plan)
    return folder
