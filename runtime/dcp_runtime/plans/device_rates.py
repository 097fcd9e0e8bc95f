"""`DeviceRates`: how fast each rank computes attention, as measured, for the plans that come next.

A rate is work over time, so it does not depend on how much work a plan gives to a rank. It is
adopted only if it stays off for two periods: a single slow step changes nothing, and a changed
cluster makes no plan that changes it back.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dcp_dsl.arrays import Floats
from dcp_planner import Cluster
from dcp_runtime.errors import RunError

logger = logging.getLogger(__name__)


class DeviceRates:
    """The cluster of one replica, with rates of its devices as they are measured.

    Give the same one to `DCPExecutor` and to `Planning`. All ranks compare what they measured once
    a period, in `prepare`, and so plan for the same cluster. Batches that are planned already stay
    as they are. A batch is measured when the second one behind it is prepared; on CUDA it counts if
    the device is done with it by then. The executor records the events of all batches there.

    Args:
        cluster: of the first plans.
        every: batches of a period.
        change: share by which a rate must differ from the one in use, in two periods running.

    Raises:
        RunError: if `every` is no count, or `change` not above 0.

    >>> rates = DeviceRates(Cluster(1, 2), every=1)
    >>> for _ in range(2):  # rank 1 takes twice as long for the same work
    ...     rates.update(["[[300, 0.1]]", "[[300, 0.2]]"])
    >>> rates.cluster.devices
    ((1.0, 0.5),)
    """

    def __init__(self, cluster: Cluster, *, every: int = 16, change: float = 0.15) -> None:
        if every < 1 or not change > 0:
            raise RunError(
                f"DeviceRates: expected every of at least 1 and change above 0, got {every} and "
                f"{change}"
            )
        self.cluster = cluster
        self._every, self._change = every, change
        self._period: list[tuple[int, float | None]] = []
        self._is_measured = True
        self._before: Floats | None = None  # work and seconds of a period that was off, [2, R]

    def add(self, work: int, seconds: float | None) -> str | None:
        """Count a batch of this rank; return the note that ends a period, else ``None``."""
        self._period.append((work, seconds))
        if len(self._period) < self._every:
            return None
        note, self._period = json.dumps(self._period), []
        return note

    def update(self, notes: Sequence[str]) -> None:
        """Adopt the rates that the notes of all ranks give, if they stay off; the same on all."""
        batches = [json.loads(note) for note in notes]
        known = [b for b in zip(*batches, strict=True) if all(s is not None for _, s in b)]
        if self._is_measured and not known:
            logger.warning(
                "no rank's rate is adopted: no batch of a period was measured on all ranks; a "
                "device has to finish each batch before the second one behind it is prepared"
            )
        self._is_measured = bool(known)
        total = np.array(known, np.float64).reshape(-1, len(notes), 2).sum(0).T
        if not (total > 0).all():
            self._before = None
            return
        if not self._is_off(total):
            self._before = None
        elif self._before is None:
            self._before = total
        else:
            self._adopt(total + self._before)
            self._before = None

    def _is_off(self, total: Floats) -> bool:
        used = _relative(self.cluster.speed_of_device)
        return bool((np.abs(_relative(total[0] / total[1]) / used - 1) > self._change).any())

    def _adopt(self, total: Floats) -> None:
        speed = _relative(total[0] / total[1])
        speed = np.where(np.abs(speed - 1) < self._change / 2, 1.0, speed.round(2)).clip(0.01, 100)
        pointer = self.cluster.node_ptr.tolist()
        nodes = [speed[a:b].tolist() for a, b in pairwise(pointer)]
        self.cluster = replace(self.cluster, devices=tuple(map(tuple, nodes)))
        logger.info("next plans are for devices of the measured rates %s", speed.tolist())


def _relative(speed: Floats) -> Floats:
    """Divide by the upper median: the rate that most devices have at least."""
    return np.asarray(speed / np.sort(speed)[len(speed) // 2])
