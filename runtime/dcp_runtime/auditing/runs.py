"""Runs a training script on ranks of this machine, as torchrun would start them, and on one."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dcp_runtime.auditing import worker
from dcp_runtime.auditing.findings import AuditFinding
from dcp_runtime.auditing.judge import judge
from dcp_runtime.auditing.record import Run, read_run
from dcp_runtime.errors import RunError

DATA_S = 6.0
"""Seconds that a run may go on, for its data, behind the steps whose gradients are recorded."""
PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class AuditOrder:
    """An order to run a script: its words, ranks, steps to record, the words for one process."""

    words: tuple[str, ...]
    ranks: int = 2
    steps: int = 2
    alone: tuple[str, ...] | None = None
    timeout_s: float = 300.0  # seconds that a run may take


def audit_script(order: AuditOrder) -> list[AuditFinding]:
    """Run a script on ranks of this machine and on one process, and compare."""
    with tempfile.TemporaryDirectory(prefix="dcpm-audit-") as name:
        # One process reads the batches of all ranks one by one, where they read their own.
        single = replace(order, words=order.alone or order.words, ranks=1)
        single = replace(single, steps=order.steps * order.ranks)
        alone = run_script(single, Path(name, "alone"))
        ranks = run_script(order, Path(name, "ranks"))
        return judge(alone, ranks, order.steps)


def run_script(order: AuditOrder, folder: Path) -> Run:
    """Run a script until its steps are recorded, and read the records."""
    folder.mkdir(parents=True)
    port = _free_port()
    processes = [_start(order, rank, folder, port) for rank in range(order.ranks)]
    try:
        _wait(order, processes, folder)
    finally:
        for process in processes:
            with suppress(OSError):
                process.kill()
            process.wait()
    return read_run(folder, order.ranks)


def _start(order: AuditOrder, rank: int, folder: Path, port: int) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ,
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0",
        "WORLD_SIZE": str(order.ranks), "LOCAL_WORLD_SIZE": str(order.ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
    command = [sys.executable, str(worker.__file__), str(folder), str(order.steps), *order.words]
    with (folder / f"out-{rank}").open("wb") as out:
        return start_process(command, environment, out.fileno())


def start_process(
    command: Sequence[str], environment: dict[str, str], out: int
) -> "subprocess.Popen[bytes]":
    """Start a rank; what it prints goes into a file."""
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _wait(order: AuditOrder, processes: "list[subprocess.Popen[bytes]]", folder: Path) -> None:
    """Wait until every rank has ended or recorded enough."""
    mine = [folder / f"rank-{rank}" for rank in range(order.ranks)]
    begin, recorded = time.monotonic(), None
    while True:
        ended = [process.poll() for process in processes]
        if any(status for status in ended):
            rank = next(rank for rank, status in enumerate(ended) if status)
            raise RunError(
                f"{' '.join(order.words)}: rank {rank} of {order.ranks} failed on this machine "
                f"(CPU, gloo):\n{_tail(folder / f'out-{rank}')}\nrun it so yourself: torchrun "
                f"--nproc-per-node {order.ranks} {' '.join(order.words)}",
                rank=rank,
            )
        if all(status is not None for status in ended):
            return
        if any((own / worker.FULL).exists() for own in mine):
            return
        now = time.monotonic()
        if recorded is None and all((own / f"step-{order.steps - 1}.npz").exists() for own in mine):
            recorded = now
        if recorded is not None and now - recorded > DATA_S:
            return
        if now - begin > order.timeout_s:
            raise RunError(
                f"{' '.join(order.words)}: expected {order.steps} optimizer steps on {order.ranks} "
                f"ranks within {order.timeout_s:g} s; give the script smaller sizes, after --, or "
                f"--timeout more seconds. Rank 0 printed:\n{_tail(folder / 'out-0')}"
            )
        time.sleep(PAUSE_S)


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
