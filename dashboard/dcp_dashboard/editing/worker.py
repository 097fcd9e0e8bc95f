"""A worker process and its tasks: `python -m dcp_dashboard.editing.worker check|plan`.

It reads frames from standard input and answers each on standard output until the input ends. A text
that hangs or crashes it takes nobody along: the server ends it and starts another.
"""

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO

from dcp_dashboard.editing import checking
from dcp_dashboard.editing.worker_process import pack_frame, read_frame
from dcp_dsl import DCPError

MAX_DATA_BYTES = 16 * 2**30
"""Memory of a worker: beyond it, Python raises and the worker ends, not the machine."""

Request = Mapping[str, Any]
"""A JSON object with the name of the ``task``."""
Task = Callable[[Request, Callable[[str], None]], tuple[dict[str, Any], bytes]]
"""Takes the request and whom to tell the stages of a long task."""


def _plain(task: Callable[[Request], dict[str, Any]]) -> Task:
    return lambda request, _: (task(request), b"")


def _picture(request: Request, _: Callable[[str], None]) -> tuple[dict[str, Any], bytes]:
    from dcp_dashboard.editing.pictures import draw_text  # numpy is not needed to find errors

    return draw_text(request)


def _svg(request: Request, _: Callable[[str], None]) -> tuple[dict[str, Any], bytes]:
    from dcp_dashboard.editing.pictures import draw_svg

    return draw_svg(request), b""


def _preview(request: Request, _: Callable[[str], None]) -> tuple[dict[str, Any], bytes]:
    from dcp_dashboard.editing.planning import preview_plan

    return preview_plan(request), b""


def _plan(request: Request, tell: Callable[[str], None]) -> tuple[dict[str, Any], bytes]:
    from dcp_dashboard.editing.planning import make_plan

    return make_plan(request, tell)


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "check": _plain(checking.check_text),
        "hover": _plain(checking.describe_word),
        "complete": _plain(checking.propose),
        "format": _plain(checking.format_text),
        "picture": _picture,
        "svg": _svg,
        "preview": _preview,
        "plan": _plan,
    }
)


def run_worker(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the requests end; what a person can cause is an answer with an ``error``."""

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
