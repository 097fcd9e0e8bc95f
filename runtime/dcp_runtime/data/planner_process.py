"""The program of a planner process: it reads requests and writes plans.

Reads one line of JSON per request from standard input, ``{"request", "path", "kind"}``. Writes
either plan files, path and number of each, or to the path the parts of all devices one behind the
other. Answers with one line: ``{"seconds", "sizes", "plans"}``, the bytes of each part (none for
plan files) and how many plans, and with them `PlannedBatch.notes`; or ``{"error", "is_data"}``.
Ends with its parent: then standard input closes.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from dcp_dsl import DatasetError, DCPError
from dcp_planner import Plan, stopwatch, write_plan
from dcp_runtime.data.plan_request import PlanRequest, encode_batch, plan_request


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not end up among the answers
    for line in sys.stdin:
        try:
            answer = carry_out(json.loads(line))
        except DCPError as error:
            answer = {"error": str(error), "is_data": isinstance(error, DatasetError)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def carry_out(task: dict[str, Any]) -> dict[str, Any]:  # Any: JSON documents
    """Plan one batch and write the result.

    Raises:
        DCPError: if it cannot be planned.
    """
    request = PlanRequest.from_json(task["request"])
    sizes: list[int] = []
    with stopwatch() as watch:
        batch = plan_request(request)
        if task["kind"] == "parts":
            parts = encode_batch(batch, request.cluster.num_devices)
            sizes = [len(part) for part in parts]
            Path(task["path"]).write_bytes(b"".join(parts))
        else:
            for number, plan in enumerate(batch.plans):
                assert isinstance(plan, Plan), "plans are made whole"
                write_plan(f"{task['path']}.{number}", plan)
    return {
        "seconds": watch.seconds,
        "sizes": sizes,
        "plans": len(batch.plans),
        **batch.notes,
    }


if __name__ == "__main__":
    main()
