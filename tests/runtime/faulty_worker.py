"""A rank of `ProcessWorld` that breaks at a named point.

Started like ``dcp_runtime.launch.worker``.

The environment variable ``DCP_TEST_FAULT`` holds ``SIGNAL POINT``. In its second job, rank 1 sends
itself the signal where the job starts (``start``), or where it begins to compute in the second
layer's forward pass, while the other ranks wait for its messages (``division``). ``BUG`` instead of
a signal raises what no rank expects.
"""

import os
import signal

from dcp_planner.tables import Attention
from dcp_runtime.execute.interpreter import Interpreter
from dcp_runtime.launch import worker
from dcp_runtime.launch.worker import run_job

VICTIM = 1


def arm(name, point):
    """Let this process send itself the signal of this name at the point."""
    job_number, layers = 0, 0
    execute = Interpreter._execute

    def break_here():
        if name == "BUG":
            raise ZeroDivisionError("by nought")
        os.kill(os.getpid(), signal.Signals[name])

    def run_job_that_may_break(*arguments):
        nonlocal job_number
        job_number += 1
        if job_number == 2 and point == "start":
            break_here()
        return run_job(*arguments)

    def execute_that_may_break(self, current, instruction, *rest):
        nonlocal layers
        if job_number == 2 and isinstance(instruction, Attention):
            layers += current.direction == "forward" and instruction.division == 0
            if layers == 2:
                break_here()
        return execute(self, current, instruction, *rest)

    worker.run_job = run_job_that_may_break
    if point == "division":
        Interpreter._execute = execute_that_may_break


def start(rank, *place):
    if int(rank) == VICTIM:
        arm(*os.environ["DCP_TEST_FAULT"].split())
    return worker.start(rank, *place)
