"""Oracles, runs of all ranks and starts of real ranks, for the tests of the runtime."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dense_blocks import slabs_of, sparsity_of
from dense_oracle import (
    MASKS,
    assert_as_exact_as_eager,
    attend,
    eager,
    plan_of,
    random_qkv,
    run_layers,
    summed_terms,
    whole_of,
)

from dcp_planner import Plan
from dcp_planner.causes.alternatives import workload_of
from dcp_planner.model.problem import Placement
from dcp_planner.schedule.divisions import Manner, Schedule
from dcp_planner.schedule.emission import assemble
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.transport.loopback import LoopbackWorld
from dcp_runtime.transport.recorder import Recorder


def dense_of(plan) -> np.ndarray:
    """Return the mask of a whole plan, row by row of its slabs."""
    dense = np.zeros((plan.num_tokens, plan.num_tokens), bool)
    for q0, q1, k0, k1, a, b in plan.slabs.table().tolist():
        for q in range(q0, q1):
            dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)] = True
    return dense


def run_in_threads(
    plan, q, kv, dout, kernel=None, layers=1
) -> tuple[dict[str, torch.Tensor], list[Recorder]]:
    """Run all ranks of a plan in this process: all layers forward, then all backward.

    Receive buffers are poisoned, and whatever is not finite ends the run.
    """

    def run_rank(transport):
        executor = DCPExecutor(kernel=kernel, transport=transport, check_finite=True)
        return *run_layers(executor, plan, (q, kv, dout), layers), executor.prepared.recorder

    parts = LoopbackWorld(plan.num_devices, timeout_s=60).run(run_rank)
    whole = whole_of([part[:2] for part in parts], len(q))
    return whole, [recorder for *_, recorder in parts]


@pytest.fixture
def nan_in_new_memory():
    """Let torch fill memory that nobody has written to with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """Return the oracles and makers of this file."""
    return SimpleNamespace(
        plan_of=plan_of,
        slabs_of=slabs_of,
        sparsity_of=sparsity_of,
        attend=attend,
        eager=eager,
        assert_as_exact_as_eager=assert_as_exact_as_eager,
        random_qkv=random_qkv,
        masks=MASKS,
        run_in_threads=run_in_threads,
        run_layers=run_layers,
        whole_of=whole_of,
        summed_terms=summed_terms,
        dense_of=dense_of,
        striped=striped,
    )


def striped(plan: Plan, *, is_frugal: bool = False) -> Plan:
    """Let the blocks of a plan cross between nodes through the ports of all devices."""
    tiles, manner = plan.tiles, Manner("node", is_frugal, is_striped=True)
    schedule = Schedule(tiles.division, tiles.backward_division, (manner, manner))
    placement = Placement(plan.blocks.owner, tiles.device)
    return assemble(workload_of(plan), plan.cluster, placement, schedule, "striped")


@pytest.fixture(scope="session")
def start_ranks(start_python) -> Callable[..., list[str]]:
    """Run a script as torchrun would on one node (`rank_launcher`); give what each rank prints."""
    launcher = Path(__file__).with_name("rank_launcher.py")

    def run(ranks: int, script: Path, folder: Path, *arguments: object) -> list[str]:
        fork = start_python(launcher, ranks, script, *arguments, folder=folder)
        try:
            status = fork.wait(280)
        finally:
            fork.kill()
        out, err = (
            [(folder / f"{name}-{fork.pid}-{rank}").read_text() for rank in range(ranks)]
            for name in ("out", "err")
        )
        assert status == 0, "\n".join(text[-3000:] for text in (fork.err.read_text(), *err))
        return out

    return run


@pytest.fixture(scope="module", autouse=True)
def ranks_are_forks(forked_workers):
    """Ranks and planner processes have their imports."""


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Small tensors, and ranks as threads: more threads inside torch only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
