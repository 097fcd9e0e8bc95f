"""The program of a planner process: requests in, plans out.

Reads one line of JSON per request from standard input, ``{"request", "path", "kind"}``, writes to
the path either a plan file or the parts of all devices one behind the other, and answers with one
line: ``{"seconds", "sizes"}``, the bytes of each part, or ``{"error"}``. Ends with its parent: then
standard input closes.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from dcp_dsl import DCPError
from dcp_planner import encode_parts, write_plan
from dcp_runtime.data.plan_request import PlanRequest, plan_request


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not end up among the answers
    for line in sys.stdin:
        try:
            answer = carry_out(json.loads(line))
        except DCPError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def carry_out(task: dict[str, Any]) -> dict[str, Any]:  # Any: JSON documents
    """Plan one batch and write the result.

    Raises:
        DCPError: if it cannot be planned.
    """
    started = time.perf_counter()
    plan = plan_request(PlanRequest.from_json(task["request"]))
    sizes: list[int] = []
    if task["kind"] == "parts":
        parts = encode_parts(plan)
        sizes = [len(part) for part in parts]
        Path(task["path"]).write_bytes(b"".join(parts))
    else:
        write_plan(task["path"], plan)
    return {"seconds": time.perf_counter() - started, "sizes": sizes}


if __name__ == "__main__":
    main()
