"""torchrun on two "nodes": two agents on this machine, two ranks each."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("torchrun_script.py")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.dist
@pytest.mark.timing
def test_the_same_script_runs_on_two_nodes(tmp_path):
    port = free_port()
    log = tmp_path / "log"
    with log.open("w") as stream:
        agents = [
            subprocess.Popen(
                [
                    sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
                    "--nproc-per-node", "2", "--node-rank", str(node),
                    "--master-addr", "127.0.0.1", "--master-port", str(port),
                    str(SCRIPT), str(tmp_path),
                ],
                stdout=stream,
                stderr=stream,
            )
            for node in range(2)
        ]  # fmt: skip
    try:
        codes = [agent.wait(timeout=200) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert codes == [0, 0], log.read_text()[-4000:]
    results = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert results == [{"ok": True, "hops": 1}] * 4
