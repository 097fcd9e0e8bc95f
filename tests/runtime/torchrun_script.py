"""An agent of torchrun whose ranks are its forks: ``torchrun_script.py OPTIONS SCRIPT FOLDER``."""

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

sys.path.insert(0, str(Path(__file__).parent))
from conftest import MASKS, assert_as_exact_as_eager, random_qkv
from dense_blocks import sparsity_of

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime import DCPAttn, DCPExecutor, RunError


def step(executor, plan, group, mask):
    executor.prepare(plan)
    q, kv, dout = random_qkv(0, len(mask), 4, 2, 8, torch.float32)
    rows = torch.tensor(plan.local_tokens(executor.rank))
    mine = q[rows].requires_grad_(), kv[rows].requires_grad_()
    out = DCPAttn.apply(executor, *mine)
    out.backward(dout[rows])
    whole = {}
    for name, local, like in (("out", out, q), ("dq", mine[0].grad, q), ("dkv", mine[1].grad, kv)):
        whole[name] = torch.zeros(like.shape)
        whole[name][rows] = local.detach()
        dist.all_reduce(whole[name], group=group)
    assert_as_exact_as_eager(whole, q, kv, dout, mask)


def rank_main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mask = MASKS["causal"](120)
    config = PlanConfig(partitioner="static:zigzag", routing="node")
    both_nodes = build_plan(sparsity_of([mask], 8), ModelShape(4, 2, 8, 4), Cluster(2, 2), config)
    executor = DCPExecutor(timeout_s=60)
    step(executor, both_nodes, None, mask)
    executor.close()
    # Two replicas of two ranks each: a dim of a mesh instead of a group.
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    one_node = build_plan(sparsity_of([mask], 8), ModelShape(4, 2, 8, 4), Cluster(1, 2), config)
    executor = DCPExecutor(mesh["cp"], timeout_s=60)
    step(executor, one_node, mesh["cp"].get_group(), mask)
    executor.close()
    with pytest.raises(RunError, match="expected a DeviceMesh of one dim, got 2 dims"):
        DCPExecutor(mesh)
    hops = int(both_nodes.transfers.hop.max())
    result = Path(folder) / f"rank-{dist.get_rank()}.json"
    result.write_text(json.dumps({"ok": True, "hops": hops}))
    dist.destroy_process_group()


if __name__ == "__main__":
    config, _, (*_, folder) = config_from_args(parse_args(None))
    config.start_method = "fork"
    elastic_launch(config, rank_main)(folder)
