"""One rank of the test of overlap: ``python overlap_scenario.py FOLDER RANK SIZE``.

Causal attention of 32,768 tokens. Kernels sleep as long as a device of their own would compute, and
links are narrow by sleeping too, so the shares do not depend on how busy this machine is.
"""

import json
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.kernels.kernel import Kernel
from dcp_runtime.transport.gloo_transport import GlooTransport
from dcp_runtime.transport.limits import LinkLimit
from dcp_runtime.transport.transport import NoOverlapTransport

TOKENS = 32_768
SHAPE = ModelShape(1, 1, 16, 4)
PAIRS_PER_S = 1.5e8
BYTES_PER_S = 2.8e6
DIVISIONS = 8
ATTEMPTS = 6
"""A busy machine adds to what is exposed; it cannot make overlap out of none."""


class SleepingKernel(Kernel):
    """Takes the time of the visible pairs and computes nothing."""

    name, segment_rows = "sleep", 1024

    def forward(self, q, kv, table, scale, state):
        time.sleep(table.pairs / PAIRS_PER_S)

    def backward(self, rows, kv, table, scale, gradients):
        time.sleep(2.5 * table.pairs / PAIRS_PER_S)


def plan_of(tokens, block, size):
    mask = Spec.from_text("mask m = causal").mask("m")
    sparsity = block_sparsity([mask.bind(Sample(length=tokens))], block, block)
    config = PlanConfig(partitioner="static:zigzag", divisions=DIVISIONS)
    return build_plan(sparsity, SHAPE, Cluster(devices_per_node=size), config)


def run(plan, transport):
    executor = DCPExecutor(transport=transport)
    prepared = executor.prepare(plan)
    tokens = prepared.part.num_local
    q, kv = torch.zeros(tokens, 1, 16), torch.zeros(tokens, 2, 1, 16)
    prepared._check_tensors(q, kv)
    prepared._engine = replace(prepared._engine, kernel=SleepingKernel())
    transport.exchange_notes("", "barrier before the first layer")
    out, lse = prepared.forward(q, kv)
    prepared._engine = replace(prepared._engine, kernel=SleepingKernel())
    prepared.backward(q, kv, out, lse, out)
    return executor.gather_timeline()


def main():
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    warm_up, plan = plan_of(1024, 32, size), plan_of(TOKENS, 1024, size)
    shares = {"overlapped": [], "serial": []}
    for attempt in range(ATTEMPTS):
        for name, found in shares.items():
            transport = GlooTransport(None, 60, LinkLimit(BYTES_PER_S))
            if attempt == 0:
                run(warm_up, transport)  # connections, threads, buffers
            used = transport if name == "overlapped" else NoOverlapTransport(transport)
            timeline = run(plan, used)
            if timeline is not None:
                waits = timeline.trace.lane_seconds("wait", size)
                found.append(float(waits.max() / timeline.trace.seconds()))
            note = "done" if rank == 0 and is_shown(shares) else ""
            is_done = transport.exchange_notes(note, "the end of an attempt")[0]
            transport.close()
        if is_done:
            break
    if rank == 0:
        (folder / "shares.json").write_text(json.dumps(shares))


def is_shown(shares):
    best, worst = min(shares["overlapped"], default=1), max(shares["serial"], default=0)
    return best <= 0.2 and worst > 0.5


if __name__ == "__main__":
    main()
