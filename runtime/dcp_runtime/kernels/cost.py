"""Predict the time of a layer by kernel: launches, tiles, tiles at edges, rows moved beside them.

Speeds are relative to torch's own flash attention, whose rate `dcpm calibrate` measures for a
cluster. They are estimates from instructions per tile and published figures, not measured on a GPU.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from dcp_planner.model import BACKWARD_FLOPS_RATIO
from dcp_runtime.kernels.kernel import Kernel, TensorKind, Work
from dcp_runtime.plans.device_plan import DevicePlan


class _Speed(NamedTuple):
    forward: float
    backward: float
    edge: float  # time of a pair in a tile at an edge, as a multiple of that in a whole tile


# A pair at an edge of `triton` takes 3.1 times the instructions of a pair in a whole tile on sm_90.
# The ratio of times is lower: by count, tensor cores take longer for a whole tile than its other
# instructions do, and less long for a tile at an edge; the longer ones are 1.6 apart.
_SPEEDS = {"triton": _Speed(0.9, 0.55, 2.3), "flash4": _Speed(1.7, 1.8, 1.0)}
_LAUNCH_S = 5e-6  # seconds to launch a kernel, where the cluster names none
_COPY_BYTES_PER_S = 2e12
_GATHER_BYTES = 15
"""Bytes read and written per number of a row that is gathered: inputs, and sums by index."""
_MERGE_BYTES = 15
"""Bytes read and written per number of a row whose results are added to its float32 sums."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The predicted seconds of a layer, forward and backward, and the work of its forward."""

    seconds: float
    work: Work

    def __str__(self) -> str:
        w = self.work
        rows = f", {w.q_rows + w.kv_rows:,} rows gathered" if w.q_rows + w.kv_rows else ""
        return (
            f"{self.seconds * 1e3:.3g} ms a layer ({w.launches} launches, {w.whole:,} pairs in "
            f"whole tiles, {w.edge:,} at edges{rows})"
        )


def predict(kernel: Kernel, part: DevicePlan, kind: TensorKind) -> Cost:
    """Predict a layer of a device's part of a plan, without its messages."""
    speed, cluster, shape = _SPEEDS[kernel.name], part.plan.cluster, part.plan.shape
    rates = (
        cluster.flops_per_s * speed.forward,
        (cluster.backward_flops_per_s or cluster.flops_per_s)
        * speed.backward
        / BACKWARD_FLOPS_RATIO,
    )
    # The longer edges of backward are those of dkv, whose tiles hold rows of one head.
    kinds = kind, replace(kind, group=1)
    seconds, done = 0.0, []
    for direction, rate, each in zip((part.forward, part.backward), rates, kinds, strict=True):
        work = sum((kernel.work(table, each) for table in direction.tables), Work())
        # Two products of 2 head_dim FLOPs per pair and head; `rate` counts more in backward.
        flops = 4 * shape.head_dim * shape.q_heads * (work.whole + speed.edge * work.edge)
        # Elements that are gathered, of queries, and of keys and values, and those of sums.
        q_size, kv_size = (shape.head_dim * n for n in (shape.q_heads, 2 * shape.kv_heads))
        moved = _GATHER_BYTES * (work.q_rows * q_size + work.kv_rows * kv_size)
        moved += _MERGE_BYTES * work.merged * q_size
        seconds += work.launches * (cluster.kernel_launch_s or _LAUNCH_S) + flops / rate
        seconds += moved / (cluster.copy_bytes_per_s or _COPY_BYTES_PER_S)
        done.append(work)
    return Cost(seconds, done[0])
