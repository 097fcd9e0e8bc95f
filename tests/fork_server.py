"""Run Python programs as forks of one process that has imported torch and the runtime already.

Each import costs two seconds of CPU, and tests start some fifty ranks. Who starts a program sends a
line of JSON and three files: standard output, standard error, and a pipe for its number and status.
A fork behaves as `python PROGRAM` does: its own arguments, folder, environment and exit. Of what
Python reads from the environment at its start only PYTHONWARNINGS=error has an effect.
"""

import json
import os
import runpy
import socket
import sys
import warnings
from contextlib import suppress
from pathlib import Path


def serve(requests: socket.socket) -> list[str]:
    """Fork for every request; return the program and its arguments in the fork."""
    while True:
        message, files, *_ = socket.recv_fds(requests, 2**20, 3)
        _forget_ended(0 if not message else os.WNOHANG)
        if not message:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            return begin(json.loads(message), files)
        for file in files:
            os.close(file)


def _forget_ended(how: int) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, how)[0]:
            pass


def begin(request: dict, files: list[int]) -> list[str]:
    """Become the program; a process between it and the server waits and tells how it ended."""
    out, err, told = files
    if pid := os.fork():
        os.write(told, f"{pid}\n".encode())
        status = os.waitpid(pid, 0)[1]
        os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for file in files:
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if os.environ.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    return request["arguments"]


if __name__ == "__main__":
    import torch.distributed  # noqa: F401

    from dcp_planner import build_plan  # noqa: F401
    from dcp_runtime import DCPAttn, DCPDataloader, DCPExecutor, run_plan  # noqa: F401

    sys.argv = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.path[0] = str(Path(sys.argv[0]).parent)
    del sys.modules["__main__"].__dict__["__file__"]
    runpy.run_path(sys.argv[0], run_name="__main__")
