"""`audit`: judges a training that cannot be run twice, from inside it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from dcp_runtime.auditing.findings import to_text
from dcp_runtime.auditing.judge import judge
from dcp_runtime.auditing.observer import Observer
from dcp_runtime.auditing.record import read_run


@contextmanager
def audit(folder: str | Path | None = None, *, steps: int = 2) -> Iterator[None]:
    """Audit the first steps of the training in the block; rank 0 prints what is found.

    Without a run on one process, gradients are compared with the mean over all targets, as the
    ranks added to it. Nothing is changed, and nothing is done where no folder is named::

        with dcp_runtime.audit():  # DCP_AUDIT=runs/audit torchrun ... train.py
            train()

    Args:
        folder: for the records, the same for all ranks; by default that of the environment variable
            ``DCP_AUDIT``. Without either the block runs as ever.
        steps: of the optimizer that are recorded, from the first in the block on.

    Raises:
        RunError: if the block ended before a step of an optimizer.
    """
    where = folder or os.environ.get("DCP_AUDIT")
    if not where:
        yield
        return
    rank = int(os.environ.get("RANK", "0"))
    mine = Path(where, f"rank-{rank}")
    for old in mine.glob("step-*.npz"):
        old.unlink()
    full = False

    def stop() -> None:
        nonlocal full
        full = True
        observer.close(has_ended=False)

    observer = Observer(mine, steps, stop, is_audit=False)
    observer.watch()
    try:
        yield
    finally:
        if not full:
            observer.close(has_ended=True)
    is_group = dist.is_initialized()
    if is_group:
        dist.barrier()
    if rank == 0:
        ranks = dist.get_world_size() if is_group else 1
        found = judge(None, read_run(Path(where), ranks), steps)
        title = f"{ranks} rank{'s' * (ranks > 1)}, judged by themselves"
        print(to_text(title, found), flush=True)
