"""One rank of a short training run with a log: rank 1 is made slow in one step.

``python run_log_scenario.py RUN_FOLDER``, started as torchrun starts a rank.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from loader_options import make_loader

from dcp_dsl import Spec
from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import DCPAttn, DCPExecutor, RunLog
from dcp_runtime.kernels.cpu import CpuKernel

LAYERS, SLOW_STEP, SLOW_S = 2, 3, 0.3

dist.init_process_group("gloo")
mask = Spec.from_text("mask band = causal and q - k < 90").mask("band")
rows = [{"tokens": list(range(length))} for length in (250, 200, 256, 180, 256)]
loader = make_loader(
    rows, mask, token_budget=256, block_size=32, shape=ModelShape(2, 1, 8, 4),
    config=PlanConfig("static:zigzag"),
)  # fmt: skip
forward = CpuKernel.forward


def slowly(*arguments):
    time.sleep(SLOW_S)
    return forward(*arguments)


with DCPExecutor(run_log=RunLog(sys.argv[1]), trace_every=2) as executor:
    for step, (data, plan) in enumerate(loader):
        is_slow = step == SLOW_STEP and dist.get_rank() == 1
        CpuKernel.forward = slowly if is_slow else forward
        prepared = executor.prepare(plan)
        tokens = len(data.tokens)
        q = torch.ones(tokens, 2, 8, requires_grad=True)
        kv = torch.ones(tokens, 2, 1, 8)
        for _ in range(LAYERS):
            DCPAttn.apply(prepared, q, kv).sum().backward()
dist.destroy_process_group()
