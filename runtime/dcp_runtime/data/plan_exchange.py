"""Parts of plans on their way from the rank that plans to all others, through the group's store."""

import time
from collections.abc import Sequence

import torch.distributed as dist

from dcp_dsl import DatasetError, DCPError
from dcp_runtime.data.planned_batch import PlannedBatch, decode_batch
from dcp_runtime.errors import RunError
from dcp_runtime.transport.deadline_store import SERVER, open_store

FIRST_NAP_S, LONGEST_NAP_S = 0.0005, 0.02

_PART, _FAILURE, _BAD_DATA = b"p", b"f", b"d"


class PlanExchange:
    """Where rank 0 of a group leaves parts of planned batches and every rank takes its own.

    Making one is collective: the n-th exchange of a rank is the n-th of all others.

    Args:
        group: ranks that share the batches, ``None`` for all.
        timeout_s: how long a rank waits for a plan.

    Raises:
        RunError: if there is no process group, or its store does not answer.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        if not dist.is_initialized():
            raise RunError(
                "planner='first' sends plans through a process group: call "
                "torch.distributed.init_process_group first, or choose planner='each'"
            )
        found = group or dist.group.WORLD
        assert found is not None, "torch.distributed is initialised"
        self.rank, self.size = found.rank(), found.size()
        self._store = open_store(group, "dcp-exchanges", timeout_s)
        self._timeout_s = timeout_s

    def publish(self, number: int, parts: Sequence[bytes]) -> None:
        """Leave the parts of a batch, in rank order.

        Raises:
            RunError: if the store is lost.
        """
        for rank, part in enumerate(parts):
            self._set(number, rank, _PART + part)

    def fail(self, number: int, error: DCPError) -> None:
        """Tell all ranks why there will be no such batch."""
        kind = _BAD_DATA if isinstance(error, DatasetError) else _FAILURE
        for rank in range(self.size):
            self._set(number, rank, kind + str(error).encode())

    def take(self, number: int) -> PlannedBatch:
        """Wait for this rank's part of a batch.

        Raises:
            DatasetError: if a row of it cannot be used.
            RunError: if rank 0 could not plan, ended, or took too long.
        """
        key = f"{number}/{self.rank}"
        deadline, nap_s = time.monotonic() + self._timeout_s, FIRST_NAP_S
        try:
            # Not wait(): it keeps the store's client to itself, and others publish through it.
            while not self._store.check([key]):
                if time.monotonic() > deadline:
                    raise self._missing(number)
                time.sleep(nap_s)
                nap_s = min(2 * nap_s, LONGEST_NAP_S)
            message = self._store.get(key)
            self._store.delete_key(key)
        except RuntimeError as error:  # the process that serves the store is gone or stands still
            raise self._lost(number, error) from error
        if message[:1] == _FAILURE:
            raise RunError(message[1:].decode(), rank=0)
        if message[:1] == _BAD_DATA:
            raise DatasetError(message[1:].decode())
        return decode_batch(message[1:])

    def _missing(self, number: int) -> RunError:
        return RunError(
            f"rank {self.rank} got no plan of batch {number} from rank 0 within "
            f"{self._timeout_s:g} s; rank 0 may have failed, its message says why",
            rank=0,
        )

    def _lost(self, number: int, error: RuntimeError) -> RunError:
        return RunError(
            f"rank {self.rank} lost the store that brings the plan of batch {number}: "
            f"{str(error).splitlines()[0]}; the cause is {SERVER}",
            rank=0,
        )

    def _set(self, number: int, rank: int, message: bytes) -> None:
        try:
            self._store.set(f"{number}/{rank}", message)
        except RuntimeError as error:
            raise self._lost(number, error) from error
