"""Fixtures of the tests of the runtime: oracles, memory, threads, and starts of real ranks."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import dense_oracle
import pytest
import torch
import torch.distributed as dist
from thread_group import ThreadRanks
from torch.testing._internal.distributed.fake_pg import FakeStore

from dcp_runtime import DCPExecutor
from dcp_runtime.transport import group_store, group_transport, recorder


@pytest.fixture
def nan_in_new_memory():
    """Let torch fill memory that nobody has written to with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="session")
def lab() -> ModuleType:
    """Return the oracles and makers of `dense_oracle`."""
    return dense_oracle


@pytest.fixture
def lone_group():
    """Make this process a process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def rank_2_of_4():
    """Make this process a rank of four, without the others: nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.fixture
def threads(monkeypatch):
    """Have threads, a `ThreadRanks`, be the ranks of the transports of a class."""

    def be(kind, ranks):
        for module in (sys.modules[kind.__module__], group_store, group_transport, recorder):
            monkeypatch.setattr(module, "dist", ranks, raising=False)
        return ranks

    return be


@pytest.fixture
def make_ranks():
    """Return the maker of some ranks as threads; in the world they have other numbers."""
    return lambda size: ThreadRanks(range(1, 3 * size, 3))


@pytest.fixture
def on_ranks(threads, make_ranks):
    """Run ``work(transport)`` on ranks 0, 1, ... (`made`); give results, or errors, in order."""

    def run(kind, size, work, timeout_s=60.0):
        run.made, transports = threads(kind, make_ranks(size)), []

        def be(rank):
            transport = kind(None, timeout_s)
            transports.append(transport)  # who stays away says nothing, freed or not
            assert transport._ranks[transport.rank] == rank
            transport.exchange_notes("", "all have joined")
            return work(transport)

        found = run.made.run(be)
        for transport in transports:
            transport.close()
        return found

    return run


@pytest.fixture
def check_plan(lab, on_ranks):
    """Run a plan of 170 tokens, two layers, and compare it with eager attention."""

    def check(kind, plan, masks, wrap=lambda transport: transport):
        q, kv, dout = lab.random_qkv(1, 170, 4, 2, 8, torch.float32)

        def work(transport):
            executor = DCPExecutor(transport=wrap(transport), check_finite=True)
            return lab.run_layers(executor, plan, (q, kv, dout), layers=2)

        parts = on_ranks(kind, plan.num_devices, work)
        assert not [part for part in parts if isinstance(part, BaseException)], parts
        dense = torch.block_diag(*map(torch.tensor, masks)).bool().numpy()
        lab.assert_as_exact_as_eager(lab.whole_of(parts, 170), q, kv, dout, dense)

    return check


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
