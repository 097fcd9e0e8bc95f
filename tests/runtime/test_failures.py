"""Ranks that are killed, stall or raise, at every phase: all others say so in time and go on.

As a rank: ``test_failures.py FOLDER RANK SIZE ACTION PHASE``. Rank 1 does ACTION at PHASE. Every
other rank writes the error that it raised and how long it took; then it destroys the process group,
makes one without rank 1, and runs a plan there.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from dense_oracle import MASKS, assert_as_exact_as_eager, plan_of, random_qkv

from dcp_runtime import DCPAttn, DCPExecutor, RunConfig, RunError, run_plan
from dcp_runtime.kernels.cpu import CpuKernel

RANKS, VICTIM, TIMEOUT_S, TOKENS, EXIT_CODE = 3, 1, 12.0, 96, 7
ACTIONS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stall": lambda: time.sleep(600),
    "raise": lambda: (_ for _ in ()).throw(ValueError("the kernel met a bad value")),
}


def join(folder, name, rank, size, timeout_s):
    store = dist.FileStore(str(folder / name), size)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)


def break_at(phase, action):
    """Let this rank's kernel, or its next call, do the action."""
    if phase in ("forward", "backward"):
        setattr(CpuKernel, phase, lambda *arguments: action())
    else:
        action()


def run(executor, plan, at_phase):
    rank = executor.rank
    at_phase("prepare")
    executor.prepare(plan)
    rows = torch.tensor(plan.local_tokens(rank))
    q, kv, dout = random_qkv(0, TOKENS, 4, 2, 8, torch.float32)
    mine = q[rows].requires_grad_(), kv[rows].requires_grad_()
    at_phase("first layer")
    at_phase("forward")
    out = DCPAttn.apply(executor, *mine)
    at_phase("backward")
    out.backward(dout[rows])
    return rows, {"out": out.detach(), "dq": mine[0].grad, "dkv": mine[1].grad}


def restart(folder, rank):
    """Run on the ranks that are left."""
    dist.destroy_process_group()
    # On a busy machine the other rank may learn of the lost one much later.
    join(folder, "again", 0 if rank == 0 else 1, 2, 200)
    executor = DCPExecutor(timeout_s=60)
    rows, tensors = run(executor, plan_of([("full", TOKENS)], 2, block=8), lambda phase: None)
    qkv = random_qkv(0, TOKENS, 4, 2, 8, torch.float32)
    whole = {}
    for name, tensor in tensors.items():
        whole[name] = torch.zeros(qkv[1 if name == "dkv" else 0].shape)
        whole[name][rows] = tensor
        dist.all_reduce(whole[name])
    assert_as_exact_as_eager(whole, *qkv, MASKS["full"](TOKENS))


def main():
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    action, wanted = sys.argv[4:]
    torch.set_num_threads(1)
    join(folder, "store", rank, size, 200)

    def at_phase(phase):
        if rank == VICTIM and phase == wanted:
            break_at(phase, ACTIONS[action])

    start = time.monotonic()
    try:
        at_phase("make")
        executor = DCPExecutor(timeout_s=TIMEOUT_S)
        run(executor, plan_of([("full", TOKENS)], size, block=8), at_phase)
        at_phase("gather")
        executor.gather_timeline()
        executor.close()
    except RunError as error:
        said = {"message": str(error), "rank": error.rank, "division": error.division}
    except ValueError as error:
        said = {"message": str(error), "rank": rank, "division": 0}
    else:
        said = {"message": "no error", "rank": None, "division": None}
    said["seconds"] = time.monotonic() - start
    if rank != VICTIM:
        restart(folder, rank)
        said["restarted"] = True
    (folder / f"said-{rank}.json").write_text(json.dumps(said))
    if rank == VICTIM:
        os._exit(0)  # a broken group would wait for its peers
    sys.exit(EXIT_CODE)


pytestmark = [pytest.mark.dist, pytest.mark.timing]


SLOW = pytest.mark.slow  # each case starts three processes


@pytest.mark.parametrize(
    ("action", "phase", "place"),
    [
        pytest.param("kill", "prepare", "prepare", marks=SLOW),
        pytest.param("kill", "first layer", "the first layer", marks=SLOW),
        pytest.param("kill", "forward", "of forward", marks=SLOW),
        pytest.param("stall", "make", "making the executor", marks=SLOW),
        ("kill", "backward", "of backward"),
        ("stall", "prepare", "prepare"),
        pytest.param("stall", "backward", "of backward", marks=SLOW),
        ("raise", "forward", "division 0 of forward"),
        pytest.param("raise", "backward", "division 0 of backward", marks=SLOW),
        ("kill", "gather", "gathering the trace"),
        pytest.param("stall", "gather", "gathering the trace", marks=SLOW),
    ],
)
def test_every_other_rank_names_the_lost_one_in_time_and_the_job_restarts(
    tmp_path, start_python, action, phase, place
):
    forks = [
        start_python(__file__, tmp_path, rank, RANKS, action, phase, folder=tmp_path)
        for rank in range(RANKS)
    ]
    try:
        codes = [forks[rank].wait(250) for rank in (0, 2)]
    finally:
        for fork in forks:
            fork.kill()
    for rank in (0, 2):
        file = tmp_path / f"said-{rank}.json"
        assert file.exists(), forks[rank].err.read_text()
        said = json.loads(file.read_text())
        assert said["rank"] == VICTIM, said
        assert f"rank {VICTIM}" in said["message"]
        assert place in said["message"]
        assert said["restarted"]
        if place.startswith("of"):
            assert said["division"] is not None
    assert codes == [EXIT_CODE] * 2


def test_a_single_rank_that_never_ends_is_named(lab, tmp_path, monkeypatch):
    (tmp_path / "endless_worker.py").write_text(
        "import dcp_runtime.kernels.cpu as cpu\n"
        "from dcp_runtime.launch.worker import start\n"
        "from time import sleep\n"
        "def loop(*arguments):\n"
        "    while True: sleep(1)\n"
        "cpu.CpuKernel.forward = loop\n"
    )
    monkeypatch.setattr("dcp_runtime.launch.world.ENTRY", "endless_worker:start")
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = lab.plan_of([("causal", 40)], heads=(2, 1, 8))
    says = r"rank 0 stalled: no progress within 2 s in attention in division 0 of forward"
    with pytest.raises(RunError, match=says) as caught:
        run_plan(plan, RunConfig(1, timeout_s=2))
    assert (caught.value.rank, caught.value.division) == (0, 0)


if __name__ == "__main__":
    main()
