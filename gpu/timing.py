"""Time calls on the device of this machine: a GPU by events, a CPU by its clock."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], object]
MEASURE_S = 0.5  # time that a measurement takes, between 3 and 50 calls


def has_cuda() -> bool:
    """Return whether torch sees a CUDA device."""
    return bool(torch.cuda.is_available())


def device() -> torch.device:
    """Return the device on which the stages compute."""
    return torch.device("cuda" if has_cuda() else "cpu")


def timed(work: Callable[[], Any], *, waits: bool = True) -> tuple[Any, float]:  # Any: its result
    """Return the result of a call, and the seconds until the device, or just the host, is done."""
    start_s = time.perf_counter()
    result = work()
    if waits and has_cuda():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start_s


def seconds(call: Call) -> float:
    """Return the median seconds of a call, after two warm-up calls."""
    timed(call)
    _, once_s = timed(call)
    repeats = int(min(max(MEASURE_S / max(once_s, 1e-9), 3), 50))
    if not has_cuda():
        return statistics.median(timed(call)[1] for _ in range(repeats))
    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(repeats)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1e3
