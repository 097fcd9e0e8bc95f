"""Measure the constants of a `Cluster` on this machine: attention, messages, memory.

Attention is measured through `run_plan`, so that its rate and launch are those of the executor with
all ranks at work; messages through rings of point-to-point operations on the same backend
(`link_ring`). Both are fitted to the terms of the planner's cost model. One further run, of a
batch that no fit has seen, says how far predictions are off.

With a CUDA device attention is PyTorch's own flash attention in bfloat16, and messages travel over
NCCL if there are two devices.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import LANES, Cluster, ModelShape, Plan, PlanConfig, build_plan, simulate
from dcp_planner.model import BACKWARD_FLOPS_RATIO, tile_seconds
from dcp_runtime.errors import RunError
from dcp_runtime.launch.config import RunConfig
from dcp_runtime.launch.launcher import check_torch, open_world, run_plan
from dcp_runtime.launch.world import ProcessWorld

SHAPE = ModelShape(q_heads=4, kv_heads=2, head_dim=64, dtype_bytes=4)
"""The shape that is measured on CPUs: small, float32, as `dcpm demo` runs it."""
LENGTHS = (256, 512, 1024, 2048)
MESSAGE_BYTES = (1 << 10, 1 << 16, 1 << 20, 1 << 22)
MESSAGE_COUNTS = (1, 8)
REPEATS = 5
WORLD_TIMEOUT_S = 120.0
KERNEL_TILE = 256
"""Query rows that the CPU kernel computes at once, keys up to the end of their diagonal."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The constants that were measured.

    Attributes:
        cluster: this machine as one node of `ranks` devices.
        sources: how each constant was measured, by its name.
        predicted_s, measured_s: forward and backward of a batch that no constant was fitted to;
            ``None`` if no such run was made.
    """

    cluster: Cluster
    sources: Mapping[str, str]
    predicted_s: float | None
    measured_s: float | None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: what JSON holds."""
        values = {name: getattr(self.cluster, name) for name in self.cluster.__slots__}
        return {
            "cluster": values,
            "sources": dict(self.sources),
            "check": {"predicted_s": self.predicted_s, "measured_s": self.measured_s},
        }


def calibrate_cpu(ranks: int, say: Callable[[str], None]) -> Calibration:
    """Measure `ranks` processes of one thread each and gloo between them; some 20 seconds."""
    check_torch()
    say(f"memory, and messages between {ranks} processes, gloo")
    copy_rate = _copy_rate("cpu")
    with open_world(ranks, WORLD_TIMEOUT_S) as world:
        link = measure_links(world) if ranks > 1 else Line(0.0, 0.0, 0.0)
        say("attention, forward and backward")
        (forward, backward), launch = _attention_rates(world)
        cluster = Cluster(
            nodes=1,
            devices_per_node=ranks,
            intra_bytes_per_s=link.rate,
            inter_bytes_per_s=link.rate,
            latency_s=link.latency_s,
            flops_per_s=forward,
            memory_bytes=_memory_bytes() // ranks,
            name="calibrated-cpu",
            source=f"dcpm calibrate: {ranks} processes, one thread each, gloo over loopback",
            backward_flops_per_s=backward,
            kernel_tile=KERNEL_TILE,
            kernel_launch_s=launch,
            message_launch_s=link.launch_s,
            copy_bytes_per_s=copy_rate,
        )
        say("a batch to check the constants with")
        predicted, measured = _check(cluster, world)
    return Calibration(cluster, _sources(ranks, "gloo"), predicted, measured)


def calibrate_cuda(say: Callable[[str], None]) -> Calibration:
    """Measure the CUDA devices of this machine."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise RunError("expected a CUDA device, PyTorch sees none; calibrate with --device cpu")
    say(f"attention on {torch.cuda.get_device_name(0)}")
    (forward, backward), launch = _cuda_attention_rates()
    say("memory")
    copy_rate = _copy_rate("cuda")
    if count > 1:
        say(f"messages between {count} devices, NCCL")
        with open_world(count, WORLD_TIMEOUT_S, "nccl") as world:
            link = measure_links(world)
    else:
        link = Line(0.0, 0.0, 0.0)
    cluster = Cluster(
        nodes=1,
        devices_per_node=count,
        intra_bytes_per_s=link.rate,
        inter_bytes_per_s=link.rate,
        latency_s=link.latency_s,
        flops_per_s=forward,
        memory_bytes=int(torch.cuda.get_device_properties(0).total_memory),
        name="calibrated-cuda",
        source=f"dcpm calibrate: {count} x {torch.cuda.get_device_name(0)}",
        backward_flops_per_s=backward,
        kernel_tile=128,
        kernel_launch_s=launch,
        message_launch_s=link.launch_s,
        copy_bytes_per_s=copy_rate,
    )
    return Calibration(cluster, _sources(count, "nccl"), None, None)


@dataclass(frozen=True, slots=True)
class Line:
    """A fit of seconds to ``latency + launch * messages + bytes / rate``; nothing is below 0."""

    latency_s: float
    launch_s: float
    s_per_byte: float

    @property
    def rate(self) -> float:
        """Bytes per second; an unmeasured link is as fast as memory."""
        return 1 / self.s_per_byte if self.s_per_byte > 0 else 1e12


def fit_messages(samples: Sequence[Mapping[str, float]]) -> Line:
    """Fit rings of messages: each sample has ``size_bytes``, ``count`` and ``seconds``.

    Errors count relative to the seconds, so that small messages decide latency and launch, large
    ones the rate.
    """
    terms = np.array([[1.0, s["count"], s["count"] * s["size_bytes"]] for s in samples])
    seconds = np.array([s["seconds"] for s in samples])
    latency, launch, per_byte = (float(x) for x in fit_nonnegative(terms, seconds))
    return Line(latency, launch, per_byte)


def fit_nonnegative(
    terms: NDArray[np.float64], seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Fit coefficients ``[P]`` of at least 0 to terms ``[N, P]``, relative errors squared.

    >>> fit_nonnegative(np.array([[1.0, 1.0], [1.0, 3.0]]), np.array([3.0, 7.0])).round(6).tolist()
    [1.0, 2.0]
    """
    scaled = terms / seconds[:, None]
    chosen = list(range(terms.shape[1]))
    result = np.zeros(terms.shape[1])
    while chosen:
        found = np.linalg.lstsq(scaled[:, chosen], np.ones(len(seconds)), rcond=None)[0]
        if (found >= 0).all():
            result[chosen] = found
            break
        del chosen[int(np.argmin(found * terms[:, chosen].mean(axis=0)))]
    return result


def measure_links(world: ProcessWorld) -> Line:
    """Let every rank send to the next and receive from the one before, all at once; fit it."""
    ring = {"sizes": MESSAGE_BYTES, "counts": MESSAGE_COUNTS, "repeats": REPEATS}
    samples = [answer["ring"] for answer, _ in world.run({"ring": ring})]
    # The ring is as slow as its slowest rank.
    slowest = [
        {**rows[0], "seconds": max(row["seconds"] for row in rows)}
        for rows in zip(*samples, strict=True)
    ]
    return fit_messages(slowest)


def _attention_rates(world: ProcessWorld) -> tuple[tuple[float, float], float]:
    """Fit forward and backward rates and one launch to attention of several lengths."""
    lengths = [length for length in LENGTHS for _ in range(2)]
    plans = {length: _own_work_plan(world.ranks, length) for length in LENGTHS}
    flops: list[list[float]] = [[], []]
    seconds: list[list[float]] = [[], []]
    for length in (LENGTHS[0], *lengths):  # the first run of a process is slow
        plan = plans[length]
        trace = run_plan(plan, RunConfig(ranks=world.ranks), world).trace
        is_compute = trace.lane == LANES.index("compute")
        for side in (False, True):
            chosen = is_compute & (trace.is_backward == side)
            took = (trace.end_ns - trace.start_ns)[chosen] / 1e9
            flops[side].append(_flops(length, is_backward=side))
            # The slowest rank: where ranks share cores, a lucky one says little about a whole plan.
            seconds[side].append(float(took.max()))
    fits = [
        fit_nonnegative(
            np.stack([np.ones(len(flops[side]) - 1), np.array(flops[side][1:])], axis=1),
            np.array(seconds[side][1:]),
        )
        for side in (False, True)
    ]
    if any(fit[1] <= 0 for fit in fits):
        raise RunError(
            "attention took no longer for more work; run it again on a machine that is less busy"
        )
    return (float(1 / fits[0][1]), float(1 / fits[1][1])), float(np.mean([fit[0] for fit in fits]))


def _flops(length: int, *, is_backward: bool) -> float:
    """FLOPs that the kernel computes for one causal tile."""
    unit = Cluster(flops_per_s=1.0, kernel_tile=KERNEL_TILE)
    pairs = length * (length + 1) // 2
    return float(tile_seconds([pairs], [length], [length], SHAPE, unit, is_backward=is_backward)[0])


def _own_work_plan(ranks: int, length: int) -> Plan:
    """Plan one local causal sequence per rank, without communication."""
    mask = Spec.from_text("mask m = causal").mask("m").bind(Sample({}, length))
    sparsity = block_sparsity([mask] * ranks, length, length)
    config = PlanConfig(partitioner="static:contiguous")
    return build_plan(sparsity, SHAPE, Cluster(1, ranks), config)


def _check(cluster: Cluster, world: ProcessWorld) -> tuple[float, float]:
    """Predict and measure one long document in contiguous pieces: compute and messages."""
    length = 1024 * world.ranks
    mask = Spec.from_text("mask m = causal").mask("m").bind(Sample({}, length))
    sparsity = block_sparsity([mask], 512, 512)
    config = PlanConfig(partitioner="static:contiguous")
    plan = build_plan(sparsity, SHAPE, cluster, config)
    runs = [run_plan(plan, RunConfig(ranks=world.ranks), world) for _ in range(3)]
    measured = statistics.median(run.forward_s + run.backward_s for run in runs)
    return simulate(plan).seconds(), measured


def _copy_rate(device: str) -> float:
    """Return the bytes per second that a copy reads and writes."""
    import torch

    source = torch.ones(1 << 24, device=device)
    target = torch.empty_like(source)
    seconds = _timed(lambda: target.copy_(source), device)
    return 2 * source.numel() * source.element_size() / seconds


def _cuda_attention_rates() -> tuple[tuple[float, float], float]:
    """Time PyTorch's flash attention on one device, 8 heads of 128 in bfloat16."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as attend

    heads, length, dim = 8, 8192, 128
    q, k, v = (
        torch.randn(1, heads, length, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    small_q, small_k, small_v = (t[:, :, :128].detach() for t in (q, k, v))
    flops = 4 * heads * dim * length * length
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        launch = _timed(lambda: attend(small_q, small_k, small_v), "cuda")
        forward = _timed(lambda: attend(q, k, v), "cuda")
        out = attend(q, k, v)
        gradient = torch.ones_like(out)
        backward = _timed(
            lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), "cuda"
        )
    rates = flops / forward, BACKWARD_FLOPS_RATIO * flops / backward
    return rates, launch


def _timed(work: Callable[[], object], device: str) -> float:
    """Measure the median seconds of `work`, warm."""
    import torch

    seconds = []
    for _ in range(REPEATS + 2):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def _memory_bytes() -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _sources(ranks: int, backend: str) -> dict[str, str]:
    """Return for each constant how it was measured."""
    if backend == "gloo":
        attention = (
            f"fit over causal tiles of {LENGTHS[0]} to {LENGTHS[-1]} tokens, {SHAPE.q_heads} query "
            f"and {SHAPE.kv_heads} key/value heads of {SHAPE.head_dim}, float32, slowest of "
            f"{ranks} ranks at once"
        )
    else:
        attention = "PyTorch's flash attention, 8 heads of 128, 8,192 tokens, bfloat16"
    ring = (
        f"fit over rings of {MESSAGE_COUNTS[0]} or {MESSAGE_COUNTS[-1]} messages of "
        f"{MESSAGE_BYTES[0]} to {MESSAGE_BYTES[-1]} bytes, {backend}, {ranks} ranks at once"
    )
    if ranks == 1:
        ring = "not measured: there is no second device"
    return {
        "flops_per_s": attention,
        "backward_flops_per_s": attention,
        "kernel_tile": "rows that the kernel computes at once",
        "kernel_launch_s": attention if backend == "gloo" else "attention of 128 tokens",
        "intra_bytes_per_s": ring,
        "inter_bytes_per_s": "as inside the node: only one was measured",
        "latency_s": ring,
        "message_launch_s": ring,
        "devices_per_nic": "no network was measured",
        "copy_bytes_per_s": "copy of 64 MiB, read and written",
        "memory_bytes": "physical memory" + (f" over {ranks} ranks" if backend == "gloo" else ""),
    }
