"""The program of one rank of a ring of processes that measures links.

Started as ``python -m dcp_runtime.launch.link_worker FOLDER RANK SIZE SETTING``; SETTING is JSON.
Prints one JSON list: for each message size and count the median seconds from a barrier until every
message of this rank has left and arrived.
"""

import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # torch.distributed.FileStore, with its type

WARM_UP = 2


def main() -> None:
    """Measure and print."""
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    setting = json.loads(sys.argv[4])
    torch.set_num_threads(1)
    device = "cpu" if setting["backend"] == "gloo" else f"cuda:{rank}"
    if device != "cpu":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        setting["backend"],
        store=FileStore(str(folder / "store"), size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=setting["timeout_s"]),
    )
    rows = [
        {
            "size_bytes": size_bytes,
            "count": count,
            "seconds": _ring_seconds(setting, device, size_bytes, count),
        }
        for size_bytes in setting["sizes"]
        for count in setting["counts"]
    ]
    print(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def _ring_seconds(setting: dict[str, Any], device: str, size_bytes: int, count: int) -> float:
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
    for _ in range(WARM_UP + setting["repeats"]):
        dist.barrier()
        start = time.perf_counter()
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:])


if __name__ == "__main__":
    main()
