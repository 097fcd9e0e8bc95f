"""Run a script as torchrun would on one node: ``rank_launcher.py RANKS SCRIPT [ARGUMENT ...]``.

The ranks are forks of a process that has the imports of the script: some take seconds of CPU. So
are the processes that ranks start for planning. What ranks print is in the files `out-PID-RANK` and
`err-PID-RANK` of the current folder, with the PID of the launcher: other worlds may run there, too.
"""

import ast
import ctypes
import os
import runpy
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))
from forks import OwnForks, fork_workers

PR_SET_PDEATHSIG = 1


def main():
    ranks, script, *arguments = sys.argv[1:]
    load_imports(Path(script))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    pids = []
    for rank in range(int(ranks)):
        pids.append(os.fork())
        if pids[-1] == 0:
            become(rank, ranks, port)
            fork_workers(OwnForks(), setattr)
            sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")
            return
    while pids:
        pid, status = os.wait()
        pids.remove(pid)
        if status:  # the others would wait for it
            for other in pids:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


def load_imports(script):
    """Run the import statements of a script; it runs them again, with its own search path."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            with suppress(ImportError):
                exec(compile(ast.Module([node], []), script, "exec"), {})


def become(rank, ranks, port):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{name}-{os.getppid()}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks,
        MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1",
    )  # fmt: skip


if __name__ == "__main__":
    main()
