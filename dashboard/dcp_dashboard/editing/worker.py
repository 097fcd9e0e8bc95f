"""The loop of a worker process: `python -m dcp_dashboard.editing.worker check|plan`.

It reads frames from standard input and answers each on standard output until the input ends. A text
that hangs or crashes it takes nobody along: the server ends it and starts another.
"""

import os
import resource
import sys
import threading
import time
from typing import Any, BinaryIO

from dcp_dashboard.editing.frames import pack_frame, read_frame

MAX_DATA_BYTES = 16 * 2**30
"""Memory of a worker: beyond it, Python raises and the worker ends, not the machine."""


def run_worker(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the requests end; what a person can cause is an answer with an ``error``."""
    from dcp_dashboard.editing.tasks import TASKS
    from dcp_dsl import DCPError

    def send(message: dict[str, Any], blob: bytes = b"") -> None:  # Any: JSON values
        answers.write(pack_frame(message, blob))
        answers.flush()

    send({"ready": True})
    while (frame := read_frame(requests)) is not None:
        request = frame[0]
        try:
            message, blob = TASKS[request["task"]](request, lambda stage: send({"stage": stage}))
        except DCPError as error:
            message, blob = {"error": str(error)}, b""
        except RecursionError:
            message, blob = {"error": "expected a shallower text: it is nested too deeply"}, b""
        except MemoryError:
            message, blob = {"error": "expected a smaller batch: the worker's memory is full"}, b""
        send({"done": True, **message}, blob)


def _private_output() -> BinaryIO:
    """Keep standard output for frames: whatever prints goes to standard error instead."""
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return frames


def end_with_parent() -> None:
    """End this process within seconds when the server is gone without a word, as after a kill."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run the worker of the kind that the command line names."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    output = _private_output()
    end_with_parent()
    if sys.argv[1:] == ["plan"]:
        from dcp_dashboard.editing.planning import warm_up

        warm_up()
    run_worker(sys.stdin.buffer, output)


if __name__ == "__main__":
    main()
