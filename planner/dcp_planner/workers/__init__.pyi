from .pool import WorkerPool
from .process import WorkerProgram
from .worker import TaskError, Worker, WorkerLost, WorkerOverdue

__all__ = [
    "TaskError",
    "Worker",
    "WorkerLost",
    "WorkerOverdue",
    "WorkerPool",
    "WorkerProgram",
]
