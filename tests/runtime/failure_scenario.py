"""One rank of a broken run: ``failure_scenario.py FOLDER RANK SIZE ACTION PHASE``.

Rank 1 does ACTION at PHASE. Every other rank writes the error that it raised and how long it took;
then it destroys the process group, makes one without rank 1, and runs a plan there.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from conftest import MASKS, assert_as_exact_as_eager, random_qkv
from dense_blocks import sparsity_of

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime import DCPAttn, DCPExecutor, RunError
from dcp_runtime.kernels.cpu import CpuKernel

VICTIM, TIMEOUT_S, TOKENS, EXIT_CODE = 1, 12.0, 96, 7
ACTIONS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stall": lambda: time.sleep(600),
    "raise": lambda: (_ for _ in ()).throw(ValueError("the kernel met a bad value")),
}


def join(folder, name, rank, size, timeout_s):
    store = dist.FileStore(str(folder / name), size)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)


def plan_of(ranks):
    config = PlanConfig(partitioner="static:zigzag")
    sparsity = sparsity_of([MASKS["full"](TOKENS)], 8)
    return build_plan(sparsity, ModelShape(4, 2, 8, 4), Cluster(devices_per_node=ranks), config)


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
    rows, tensors = run(executor, plan_of(2), lambda phase: None)
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
        run(executor, plan_of(size), at_phase)
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


if __name__ == "__main__":
    main()
