"""Plans and traces of any size for the benchmarks of the dashboard."""

import numpy as np

from dcp_dsl import BlockSparsity, Slabs
from dcp_dsl.forms import BatchShape
from dcp_planner import LANES, Cluster, ModelShape, Plan, PlanConfig, Trace, build_plan

DEVICES = 64


def causal_plan(blocks: int, tokens: int, devices: int = DEVICES) -> Plan:
    """Plan one causal sequence of so many blocks, on nodes of 8 devices."""
    config = PlanConfig(partitioner="static:zigzag", divisions=4)
    cluster = Cluster(nodes=devices // 8)
    return build_plan(causal_blocks(blocks, tokens), ModelShape(), cluster, config)


def causal_blocks(blocks: int, block: int) -> BlockSparsity:
    """Make a causal mask of one document of so many blocks of `block` tokens."""
    tokens = blocks * block
    rows, columns = np.tril_indices(blocks)
    half = block * (block + 1) // 2
    cuts = np.arange(0, tokens + 1, block)
    return BlockSparsity(
        BatchShape.of([tokens]), block, block, cuts, cuts,
        np.concatenate([[0], np.cumsum(np.arange(1, blocks + 1))]), columns,
        np.where(rows == columns, 1, 2), np.where(rows == columns, half, block**2),
        Slabs(tokens, [0], [tokens], [0], [1], [0], [1]),
    )  # fmt: skip


def synthetic_trace(events: int, seed: int) -> Trace:
    """Make a trace whose lanes are busy about three quarters of one second."""
    rng = np.random.default_rng(seed)
    per_lane = events // (DEVICES * len(LANES))
    gaps = rng.exponential(1.0, (DEVICES * len(LANES), 2 * per_lane)) + 0.01
    gaps[:, ::2] /= 3  # pauses are shorter than events
    edges = (np.cumsum(gaps, axis=1) / gaps.sum(axis=1, keepdims=True) * 1e9).astype(np.int64)
    device, lane = np.divmod(np.repeat(np.arange(DEVICES * len(LANES)), per_lane), len(LANES))
    is_message = (lane == LANES.index("send")) | (lane == LANES.index("receive"))
    names = np.array(["attention", "kv 1", "kv 2", "wait"])[lane]
    start, kind = edges[:, ::2].ravel(), np.array([0, 3, 4, 5])[lane]
    table = [
        start, edges[:, 1::2].ravel(), start, device, kind, start > 4e8,
        rng.integers(0, 4, len(start)), np.where(is_message, (device + 1) % DEVICES, -1),
        np.where(is_message, 4096, 0), np.where(is_message, 0, -1),
    ]  # fmt: skip
    return Trace.of_rows("simulated", np.column_stack(table), names.tolist())
