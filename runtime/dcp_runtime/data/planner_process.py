"""The program of a planner process: requests in, plan files out.

Reads one line of JSON per request from standard input, ``{"request": ..., "path": ...}``, writes
the plan to the path and answers with one line, ``{"seconds": ...}`` or ``{"error": ...}``. Ends
with its parent: then standard input closes.
"""

import json
import os
import sys
import time

from dcp_dsl import DCPError
from dcp_planner import write_plan
from dcp_runtime.data.plan_request import PlanRequest, plan_request


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not end up among the answers
    for line in sys.stdin:
        task = json.loads(line)
        started = time.perf_counter()
        try:
            write_plan(task["path"], plan_request(PlanRequest.from_json(task["request"])))
            answer: dict[str, str | float] = {"seconds": time.perf_counter() - started}
        except DCPError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
