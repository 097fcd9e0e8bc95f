"""One rank of a training run in which rank 1 takes `SLOWER` times as long for the same attention.

``python rates_scenario.py [LOG_FOLDER on|off]``, started as torchrun starts a rank. Prints, as
JSON, for each batch the rates that its plan is for and how long the plan is predicted to take on
the machine as it is. With a folder it trains longer and writes the log, with rates or without.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from loader_options import make_loader

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, digest, predict
from dcp_runtime import DCPAttn, DCPExecutor, DeviceRates, RunLog
from dcp_runtime.kernels.cpu import CpuKernel

SLOWER = 4
SECONDS_PER_PAIR = 1e-7
FOLDER, FEEDBACK = sys.argv[1:] or ("", "on")
BATCHES = 48 if FOLDER else 16
SHAPE = ModelShape(4, 2, 32, 4)

dist.init_process_group("gloo")
cluster = Cluster(1, 2, flops_per_s=1e10)
real = replace(cluster, devices=((1.0, 1 / SLOWER),))
mask = Spec.from_text("mask m = causal").mask("m")
rates = DeviceRates(cluster, every=2, change=0.3)
loader = make_loader(
    [{"tokens": list(range(1024))}] * BATCHES, mask, token_budget=1024, block_size=64, shape=SHAPE,
    rates=rates if FEEDBACK == "on" else None, cluster=None if FEEDBACK == "on" else cluster,
)  # fmt: skip


def rest(kernel, q, kv, table, *others):
    """Sleep as long as this rank takes: a computation takes longer beside other processes."""
    time.sleep(table.pairs * SECONDS_PER_PAIR * (SLOWER if dist.get_rank() == 1 else 1))


CpuKernel.forward = CpuKernel.backward = rest
found = []
log = RunLog(FOLDER) if FOLDER else None
with DCPExecutor(rates=rates, run_log=log) as executor:
    for data, plan in loader:
        prepared = executor.prepare(plan)
        q = torch.randn(len(data.tokens), 4, 32, requires_grad=True)
        kv = torch.randn(len(data.tokens), 2, 2, 32, requires_grad=True)
        DCPAttn.apply(prepared, q, kv).sum().backward()
        speed = plan.cluster.speed_of_device.tolist()
        found.append((digest(plan), speed, predict(replace(plan, cluster=real)).seconds))
print(json.dumps(found))
dist.destroy_process_group()
