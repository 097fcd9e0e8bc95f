"""Fixtures of the tests of the runtime: oracles, memory, threads, and starts of real ranks."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import dense_oracle
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


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
