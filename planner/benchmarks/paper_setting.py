"""The microbenchmark of DCP (SOSP'25), Sec. 7.2: its batches, and its rings by formula.

Lengths are mimics: the paper publishes no length arrays, so they are drawn from the quantiles of
the two data sets (log-linear in between), scaled, packed and filtered as the artifact does.

The ring systems have no plans of ours; their step times follow from their messages alone, with the
constants of the same `Cluster`:

- ring (RFA): every device passes its keys and values on, 31 times; in backward the gradients of
  keys and values in float32 travel as well, 32 times.
- a2a+p2p (TransformerEngine): heads over pairs of devices of a node, a ring of 16 over the rest;
  gradients travel in bfloat16.

A step takes the longer of the slowest device's computation and a message over the network, and one
launch and latency. Each document is cut into as many equal parts as the ring has devices (twice as
many for zigzag, where device r takes the parts r and 2R-1-r).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dcp_planner import Cluster, ModelShape, preset
from dcp_planner.model import tile_seconds

# The paper times attention alone. Its hosts do not run ahead: they launch each kernel, from Python,
# as they come to it (40 us, an estimate).
CLUSTER = replace(
    preset("a100-p4de", 4, 8), host_runs_ahead=False, host_kernel_s=0.0, kernel_launch_s=40e-6
)
TOKENS = 131_072
SEED = 42
SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
QUANTILES = {
    "longalign": (8100, 8517, 11058, 15532, 22990, 41025, 63640, 128_000),
    "ldc": (273, 584, 1921, 5103, 13119, 62534, 149_051, 541_930),
}
"""Tokens at `SHARES`, and the longest, of the two data sets."""
FULL_SHARE = 0.75
"""Batches with fewer tokens are dropped."""
FLOAT32_OVER_BFLOAT16 = 2

Ring = Literal["RFA_ring", "RFA_zigzag", "TE"]


def batches_of(dataset: str, scale: float, count: int) -> list[list[int]]:
    """Return the sequence lengths of the first `count` batches of a data set at a length scale."""
    rng = np.random.default_rng(SEED)
    shares = np.array([0.0, *SHARES, 1.0])
    tokens = QUANTILES[dataset]
    logs = np.log(np.array([tokens[0] / 2, *tokens], np.float64))
    drawn = np.exp(np.interp(rng.random(400 * count), shares, logs)) * scale
    batches: list[list[int]] = []
    batch: list[int] = []
    for length in np.maximum(1, drawn).astype(int).tolist():
        if length > TOKENS:
            continue
        if sum(batch) + length > TOKENS:
            batches += [batch] if sum(batch) >= FULL_SHARE * TOKENS else []
            batch = []
        batch.append(length)
    return batches[:count]


@dataclass(frozen=True, slots=True)
class RingSetting:
    """The configuration of one of the systems.

    Attributes:
        head_parallel: devices of a node over which heads are split.
        is_zigzag: whether a device holds a part from either end of each document.
        gradient_bytes: bytes of a gradient element over those of a key.
    """

    head_parallel: int
    is_zigzag: bool
    gradient_bytes: int


RINGS: dict[Ring, RingSetting] = {
    "RFA_ring": RingSetting(1, False, FLOAT32_OVER_BFLOAT16),
    "RFA_zigzag": RingSetting(1, True, FLOAT32_OVER_BFLOAT16),
    "TE": RingSetting(2, True, 1),
}


def ring_seconds(
    ring: Ring, lengths: Sequence[int], shape: ModelShape, cluster: Cluster, *, is_backward: bool
) -> float:
    """Compute the seconds of one causal batch; O(R^2 S) for S sequences on rings of R devices."""
    setting = RINGS[ring]
    devices = cluster.num_devices // setting.head_parallel
    part = ModelShape(
        shape.q_heads // setting.head_parallel,
        max(1, shape.kv_heads // setting.head_parallel),
        shape.head_dim,
        shape.dtype_bytes,
    )
    compute = _step_seconds(setting, lengths, part, cluster, devices, is_backward=is_backward)
    size = sum(lengths) / devices * part.kv_bytes
    if is_backward:
        size *= 1 + setting.gradient_bytes
    link = cluster.link(is_inter=cluster.nodes > 1)
    message = link.busy_s(size) + link.latency_s
    steps = devices if is_backward else devices - 1  # gradients travel once more, back home
    hidden = np.maximum(compute[: devices - 1], message)
    return float(
        hidden.sum()
        + compute[devices - 1]
        + (steps - devices + 1) * message
        + devices * cluster.kernel_launch_s
    )


def _step_seconds(
    setting: RingSetting,
    lengths: Sequence[int],
    shape: ModelShape,
    cluster: Cluster,
    devices: int,
    *,
    is_backward: bool,
) -> NDArray[np.float64]:
    """Return the computation of the slowest device at every step, float64 ``[R]``."""
    parts = 2 * devices if setting.is_zigzag else devices
    tokens = np.maximum(1, np.array(lengths, np.float64) / parts)
    square = tile_seconds(tokens**2, tokens, tokens, shape, cluster, is_backward=is_backward).sum()
    diagonal = tile_seconds(
        tokens * (tokens + 1) / 2, tokens, tokens, shape, cluster, is_backward=is_backward
    ).sum()
    held = [(r, parts - 1 - r) if setting.is_zigzag else (r,) for r in range(devices)]
    steps = np.zeros(devices)
    for step in range(devices):
        for device in range(devices):
            pairs = [(q, k) for q in held[device] for k in held[(device - step) % devices]]
            full, own = sum(q > k for q, k in pairs), sum(q == k for q, k in pairs)
            steps[step] = max(steps[step], full * square + own * diagonal)
    return steps
