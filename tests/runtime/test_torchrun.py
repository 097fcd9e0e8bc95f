"""torchrun on two "nodes": two agents on this machine, two ranks each."""

import json
import socket
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("torchrun_script.py")


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
