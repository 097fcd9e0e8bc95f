"""Measure the constants of a `Cluster` on this machine: attention, messages, memory.

On CPUs attention is measured through `run_plan`, so that its rate and launch are those of the
executor with all ranks at work; messages through rings of point-to-point operations on the same
backend (`measure_ring`). Both are fitted to the terms of the planner's cost model. Further runs, of
plans that no fit has seen (`CHECKS`), show the errors of predictions.

With CUDA devices attention is PyTorch's own flash attention in bfloat16, and messages travel over
NCCL if there are two devices.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import LANES, Cluster, ModelShape, Plan, PlanConfig, Trace, build_plan, simulate
from dcp_planner.model import BACKWARD_FLOPS_RATIO, tile_seconds
from dcp_planner.simulation import EVENT_KINDS
from dcp_runtime.errors import RunError
from dcp_runtime.launch.launcher import RunConfig, check_torch, machine_bytes, open_world, run_plan
from dcp_runtime.launch.world import ProcessWorld
from dcp_runtime.transport.gloo_transport import GlooTransport
from dcp_runtime.transport.nccl_transport import NcclTransport

SHAPE = ModelShape(q_heads=4, kv_heads=2, head_dim=64, dtype_bytes=4)
"""The shape that is measured on CPUs: small, float32, as `dcpm demo` runs it."""
LENGTHS = (256, 512, 1024, 2048)
"""Tokens of the causal sequences that are timed, each of them one tile."""
MESSAGE_BYTES = (1 << 10, 1 << 16, 1 << 20, 1 << 22)
MESSAGE_COUNTS = (1, 8)
REPEATS = 5
MOST_NOISE = 0.2  # relative spread of repeated measurements above which a machine counts as busy
WORLD_TIMEOUT_S = 120.0
KERNEL_TILE = 256
"""Query rows that the CPU kernel computes at once, with the keys up to the last row's diagonal."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The constants that were measured."""

    cluster: Cluster  # this machine as one node of `ranks` devices
    sources: Mapping[str, str]  # how each constant was measured, by its name
    checks: tuple["PredictionCheck", ...]  # of plans to which no constant was fitted
    # Median over pairs of equal measurements of their difference, relative to their mean.
    noise: float

    @property
    def is_busy(self) -> bool:
        """True if other work on the machine spoiled the measurement."""
        return self.noise > MOST_NOISE

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""  # Any: JSON values
        return {
            "cluster": self.cluster.to_json(),
            "sources": dict(self.sources),
            "checks": [asdict(check) | {"error": check.error} for check in self.checks],
            "noise": self.noise,
            "is_busy": self.is_busy,
        }


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """A plan to which no constant was fitted: forward and backward, the median of several runs."""

    plan: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Error of the prediction, relative to the measurement."""
        return abs(self.predicted_s / self.measured_s - 1)


def calibrate_cpu(ranks: int, say: Callable[[str], None]) -> Calibration:
    """Measure `ranks` processes of one thread each and gloo between them; some 20 seconds."""
    check_torch()
    say(f"memory, and messages between {ranks} processes, gloo")
    copy_rate = _copy_rate("cpu")
    with open_world(ranks, WORLD_TIMEOUT_S) as world:
        link = measure_links(world) if ranks > 1 else Line(0.0, 0.0, 0.0)
        say("attention, forward and backward")
        # All ranks compute at once: they share caches and memory, as they do in a real run.
        rates, launch, host, noise = _attention_rates(world)
        cluster = _cluster(
            ranks, link, rates, launch, name="calibrated-cpu",
            source=f"dcpm calibrate: {ranks} processes, one thread each, gloo over loopback",
            memory_bytes=machine_bytes() // ranks, kernel_tile=KERNEL_TILE,
            copy_bytes_per_s=copy_rate, pass_s=host, message_order=GlooTransport.message_order,
        )  # fmt: skip
        say("plans to check the constants with")
        checks = _check(cluster, world)
    return Calibration(cluster, _sources(ranks, "gloo"), checks, noise)


def calibrate_cuda(say: Callable[[str], None]) -> Calibration:
    """Measure the CUDA devices of this machine."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise RunError("expected a CUDA device, PyTorch sees none; calibrate with --device cpu")
    say(f"attention on {torch.cuda.get_device_name(0)}")
    rates, launch = _cuda_attention_rates()
    say("memory")
    copy_rate = _copy_rate("cuda")
    if count > 1:
        say(f"messages between {count} devices, NCCL")
        with open_world(count, WORLD_TIMEOUT_S, "nccl") as world:
            link = measure_links(world)
    else:
        link = Line(0.0, 0.0, 0.0)
    cluster = _cluster(
        count, link, rates, launch, name="calibrated-cuda",
        source=f"dcpm calibrate: {count} x {torch.cuda.get_device_name(0)}",
        memory_bytes=int(torch.cuda.get_device_properties(0).total_memory), kernel_tile=128,
        copy_bytes_per_s=copy_rate, message_order=NcclTransport.message_order,
    )  # fmt: skip
    return Calibration(cluster, _sources(count, "nccl"), (), 0.0)


def _cluster(
    ranks: int, link: "Line", rates: tuple[float, float], launch: float, **others: Any
) -> Cluster:  # Any: further constants
    """Return one node; only links inside it were measured, those to others count as equal."""
    return Cluster(
        nodes=1, devices_per_node=ranks, intra_bytes_per_s=link.rate, inter_bytes_per_s=link.rate,
        latency_s=link.latency_s, message_launch_s=link.launch_s, flops_per_s=rates[0],
        backward_flops_per_s=rates[1], kernel_launch_s=launch, **others,
    )  # fmt: skip


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
    """Fit rings of messages: each sample has ``size_bytes``, ``count`` and ``seconds``."""
    # Errors count relative to the seconds, so that small messages decide latency and launch, and
    # large messages the rate.
    # A row per sample: the factors of latency, launch and seconds per byte.
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
    # Divided by its seconds each sample should give 1: the residual is then its relative error.
    scaled = terms / seconds[:, None]
    chosen = list(range(terms.shape[1]))
    result = np.zeros(terms.shape[1])
    while chosen:
        found = np.linalg.lstsq(scaled[:, chosen], np.ones(len(seconds)), rcond=None)[0]
        if (found >= 0).all():
            result[chosen] = found
            break
        # No work takes less than no time: the most negative term is noise, and the fit repeats
        # without it.
        del chosen[int(np.argmin(found * terms[:, chosen].mean(axis=0)))]
    return result


def measure_links(world: ProcessWorld) -> Line:
    """Time messages from every rank to the next, all ranks at once, and fit their seconds."""
    ring = {"sizes": MESSAGE_BYTES, "counts": MESSAGE_COUNTS, "repeats": REPEATS}
    samples = [answer["ring"] for answer, _ in world.run({"ring": ring})]
    # The ring is as slow as its slowest rank.
    slowest = [
        {**rows[0], "seconds": max(row["seconds"] for row in rows)}
        for rows in zip(*samples, strict=True)
    ]
    return fit_messages(slowest)


def _attention_rates(world: ProcessWorld) -> tuple[tuple[float, float], float, float, float]:
    """Fit rates of both directions and one launch to attention of several lengths.

    Returns also the seconds of a direction beside its attention, and the noise.
    """
    flops: list[list[float]] = [[], []]  # forward, backward
    seconds: list[list[float]] = [[], []]
    beside: list[float] = []
    config = RunConfig(ranks=world.ranks)
    # The first run of a process is slow, and its times are dropped.
    run_plan(_own_work_plan(world.ranks, LENGTHS[0]), config, world)
    for length in LENGTHS:
        plan = _own_work_plan(world.ranks, length)
        for trace in [run_plan(plan, config, world).trace for _ in range(2)]:
            is_compute = trace.lane == LANES.index("compute")
            for side in (False, True):
                chosen = is_compute & (trace.is_backward == side)
                took = (trace.end_ns - trace.start_ns)[chosen] / 1e9
                flops[side].append(_flops(length, is_backward=side))
                # The slowest rank: where ranks share cores, the time of a lucky rank says little
                # about a whole plan.
                seconds[side].append(float(took.max()))
                beside.append(_beside(trace, is_backward=side))
    fits = [
        fit_nonnegative(np.stack([np.ones(len(work)), work], axis=1), np.array(took_s))
        for work, took_s in zip(flops, seconds, strict=True)
    ]
    # Noise of a busy machine can be larger than what length adds; the rate is its inverse.
    if any(fit[1] <= 0 for fit in fits):
        raise RunError(
            "attention took no longer for more work; run it again on a machine that is less busy"
        )
    rates = float(1 / fits[0][1]), float(1 / fits[1][1])
    launch = float(np.mean([fit[0] for fit in fits]))
    spreads = []
    for took_s in seconds:
        pairs = zip(took_s[::2], took_s[1::2], strict=True)  # the two runs of each length
        spreads += [abs(a - b) / ((a + b) / 2) for a, b in pairs]
    return rates, launch, statistics.median(beside), statistics.median(spreads)


def _beside(trace: Trace, *, is_backward: bool) -> float:
    """Return the seconds outside attention in a direction, on the rank with most of them."""
    chosen = trace.is_backward == is_backward
    attends = chosen & (trace.kind == EVENT_KINDS.index("attention"))
    spans = []
    for device in np.unique(trace.device[chosen]):
        own, busy = (rows & (trace.device == device) for rows in (chosen, attends))
        took = (trace.end_ns[busy] - trace.start_ns[busy]).sum()
        spans.append(float(trace.end_ns[own].max() - trace.start_ns[own].min() - took) / 1e9)
    return max(spans)


def _flops(length: int, *, is_backward: bool) -> float:
    """Return the FLOPs that the kernel computes for one causal tile."""
    # At 1 FLOP per second the seconds of the cost model are FLOPs.
    unit = Cluster(flops_per_s=1.0, kernel_tile=KERNEL_TILE)
    pairs = length * (length + 1) // 2
    return float(tile_seconds([pairs], [length], [length], SHAPE, unit, is_backward=is_backward)[0])


def _own_work_plan(ranks: int, length: int) -> Plan:
    """Plan one local causal sequence per rank, without communication."""
    mask = Spec.from_text("mask m = causal").mask("m").bind(Sample(length=length))
    sparsity = block_sparsity([mask] * ranks, length, length)
    config = PlanConfig(partitioner="static:contiguous")
    return build_plan(sparsity, SHAPE, Cluster(1, ranks), config)


CHECKS = (
    ("causal, contiguous", "causal", "static:contiguous"),
    ("causal, zigzag", "causal", "static:zigzag"),
    ("causal, searched", "causal", "native"),
    ("sliding window, contiguous", "causal and q - k < 512", "static:contiguous"),
    ("full, grid", "k <= q or q < k", "static:grid"),
)
"""Name, mask and partitioner of the plans that check the constants."""


def _check(cluster: Cluster, world: ProcessWorld) -> tuple[PredictionCheck, ...]:
    """Predict and measure plans of one long document; the median of three runs, after a first."""
    length, found = 1024 * world.ranks, []
    for name, text, partitioner in CHECKS:
        mask = Spec.from_text(f"mask m = {text}").mask("m").bind(Sample(length=length))
        config = PlanConfig(partitioner=partitioner, budget="fast")
        plan = build_plan(block_sparsity([mask], 512, 512), SHAPE, cluster, config)
        runs = [run_plan(plan, RunConfig(ranks=world.ranks), world) for _ in range(4)][1:]
        measured = statistics.median(run.forward_s + run.backward_s for run in runs)
        found.append(PredictionCheck(name, simulate(plan).seconds(), measured))
    return tuple(found)


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
    # Without a mask, every pair: a multiplication and an addition per dim in each of two products.
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
        "pass_s": (
            "a direction of those runs without its attention, slowest rank"
            if backend == "gloo"
            else "not measured"
        ),
        "message_order": f"what the {backend} transport does",
        "devices_per_nic": "no network was measured",
        "copy_bytes_per_s": "copy of 64 MiB, read and written",
        "memory_bytes": "physical memory" + (f" over {ranks} ranks" if backend == "gloo" else ""),
    }
