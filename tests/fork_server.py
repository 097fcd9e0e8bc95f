"""Run Python programs as forks of one process that has imported torch and the product already.

Each import costs two seconds of CPU, loading what numba has compiled another, and tests start some
hundred processes. Every worker of pytest that connects gets a fork of that process to itself, and
asks it for programs: it sends a line of JSON, a pipe for the program's number and status, and the
files that it gets, with their numbers in the JSON. A fork behaves as `python PROGRAM` does: its
own arguments, folder, environment and exit. Of what Python reads from the environment at its start
only PYTHONPATH and PYTHONWARNINGS=error have an effect. Where it ends without an error its modules
are not taken apart, which takes a third of a second, unless the variable TAKE_APART is set.
"""

import atexit
import fcntl
import gc
import json
import os
import runpy
import socket
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path

MOST_FILES = 16


def accept(listener: socket.socket) -> socket.socket:
    """Fork for every process that connects, until all have left; return its connection there."""
    listener.settimeout(60)
    while True:
        with suppress(TimeoutError):
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                connection.send(b"ready")
                return connection
            connection.close()
        listener.settimeout(1)
        if not forget_ended(os.WNOHANG):
            sys.exit()


def serve(requests: socket.socket) -> list[str]:
    """Fork for every request; return the program and its arguments in the fork."""
    while True:
        message, files, *_ = socket.recv_fds(requests, 2**20, MOST_FILES)
        forget_ended(0 if not message else os.WNOHANG)
        if not message:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            return begin(json.loads(message), files)
        for file in files:
            os.close(file)


def forget_ended(how: int) -> bool:
    """Forget forks that have ended, whose processes tell how; return whether others are left."""
    try:
        while os.waitpid(-1, how)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def begin(request: dict, files: list[int]) -> list[str]:
    """Become the program; a process between it and the server waits and tells how it ended."""
    told, *given = (fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 600) for file in files)
    for file in files:
        os.close(file)
    if pid := os.fork():
        for file in given:
            os.close(file)
        os.write(told, f"{pid}\n".encode())
        status = os.waitpid(pid, 0)[1]
        os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(told)
    for file, number in zip(given, request["numbers"], strict=True):
        os.dup2(file, number)
        os.close(file)
    sys.path[:1] = [] if request["session"] else [str(Path(request["arguments"][0]).parent)]
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for place in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if place and place not in sys.path:
            sys.path.insert(0 if request["session"] else 1, place)
    if os.environ.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    return request["arguments"]


def run(program: str) -> None:
    """Run a program to its end, with what is left for the end, and leave its modules as they are.

    An error, or a sentence for `sys.exit`, is left to Python.
    """
    status = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    if "TAKE_APART" in os.environ:
        sys.exit(status)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    import torch._dynamo  # FSDP and FlexAttention load it
    import torch.distributed.tensor  # noqa: F401

    from dcp_dashboard.editing.planning import warm_up
    from dcp_runtime import DCPAttn, DCPDataloader, DCPExecutor, run_plan  # noqa: F401
    from dcp_runtime.data import make_plans  # noqa: F401
    from dcp_runtime.launch import worker  # noqa: F401

    warm_up()
    gc.collect()
    gc.freeze()  # a fork that looks for garbage would copy every page of these modules
    sys.argv = serve(accept(socket.socket(fileno=int(sys.argv[1]))))
    del sys.modules["__main__"].__dict__["__file__"]
    run(sys.argv[0])
