"""A ring of processes that measures links: each sends to the next, all at once."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

WARM_UP = 2


def measure_ring(
    transport: str, sizes: Sequence[int], counts: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """Measure messages of every size and count, in the default process group.

    Returns:
        ``size_bytes``, ``count``, and ``seconds``: the median from a barrier until every message of
        this rank has left and arrived.
    """
    device = "cpu"
    if transport == "nccl":
        device = f"cuda:{dist.get_rank()}"
        torch.cuda.set_device(device)
    return [
        {"size_bytes": size, "count": n, "seconds": _ring_seconds(repeats, device, size, n)}
        for size in sizes
        for n in counts
    ]


def _ring_seconds(repeats: int, device: str, size_bytes: int, count: int) -> float:
    """Measure the median seconds of `count` messages to the next rank and as many from the last."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent, received = (
        [torch.zeros(size_bytes, dtype=torch.uint8, device=device) for _ in range(count)]
        for _ in range(2)
    )
    operations = [
        *(
            dist.P2POp(dist.irecv, tensor, (rank - 1) % size, tag=i)
            for i, tensor in enumerate(received)
        ),
        *(
            dist.P2POp(dist.isend, tensor, (rank + 1) % size, tag=i)
            for i, tensor in enumerate(sent)
        ),
    ]
    seconds = []
    for _ in range(WARM_UP + repeats):
        dist.barrier()
        start = time.perf_counter()
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:])
