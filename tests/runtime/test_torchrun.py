"""torchrun on two nodes: two agents on this machine, two ranks each."""

import json
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from dense_oracle import MASKS, assert_as_exact_as_eager, plan_of, random_qkv
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from dcp_planner import Cluster
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
    both_nodes = plan_of([mask], block=8, cluster=Cluster(2, 2), routing="node")
    executor = DCPExecutor(timeout_s=60)
    step(executor, both_nodes, None, mask)
    executor.close()
    # Two replicas of two ranks each: a dim of a mesh instead of a group.
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    executor = DCPExecutor(mesh["cp"], timeout_s=60)
    step(executor, plan_of([mask], 2, block=8), mesh["cp"].get_group(), mask)
    executor.close()
    with pytest.raises(RunError, match="expected a DeviceMesh of one dim, got 2 dims"):
        DCPExecutor(mesh)
    hops = int(both_nodes.transfers.hop.max())
    result = Path(folder) / f"rank-{dist.get_rank()}.json"
    result.write_text(json.dumps({"ok": True, "hops": hops}))
    dist.destroy_process_group()


SCRIPT = Path(__file__)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.dist
@pytest.mark.timing
def test_the_same_script_runs_on_two_nodes(tmp_path, start_python):
    """Options, meeting point and environment are torchrun's; agents and ranks are forks."""
    options = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1"]
    options += ["--master-port", free_port()]
    agents = [
        start_python(
            SCRIPT, *options, "--node-rank", node, SCRIPT, tmp_path,
            folder=tmp_path, OMP_NUM_THREADS="1",
        )
        for node in range(2)
    ]  # fmt: skip
    codes = [agent.wait(200) for agent in agents]
    told = "".join(agent.out.read_text() + agent.err.read_text()[-2000:] for agent in agents)
    assert codes == [0, 0], told
    results = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert results == [{"ok": True, "hops": 1}] * 4


if __name__ == "__main__":
    config, _, (*_, folder) = config_from_args(parse_args(None))
    config.start_method = "fork"
    elastic_launch(config, rank_main)(folder)
