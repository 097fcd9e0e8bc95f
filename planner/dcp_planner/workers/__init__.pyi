from .process import WorkerProgram
from .worker import TaskError, Worker, WorkerLost, WorkerOverdue, WorkerPool

__all__ = [
    "TaskError",
    "Worker",
    "WorkerLost",
    "WorkerOverdue",
    "WorkerPool",
    "WorkerProgram",
]
