"""`run_plan` executes a plan on processes of this machine, on random tensors, and verifies it.

`RunConfig` holds its options. This module loads torch only to verify: else the ranks alone need it.
"""

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.extras import install_line
from dcp_planner import LANES, Plan, Trace
from dcp_planner.tables import measure_memory
from dcp_runtime.errors import RunError
from dcp_runtime.launch.world import ProcessWorld, WorldTransport
from dcp_runtime.transport.limits import check_timeout

DtypeName: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The options of `run_plan`.

    Attributes:
        ranks: processes; the plan must be for as many devices.
        kernel: ``"cpu"``, ``"reference"``, or ``None`` for the fastest.
        dtype: element type of q, k, v and their gradients.
        seed: of the random tensors, at least 0.
        verify: compare with dense attention in float64.
        timeout_s: how long a rank may keep the others waiting before it counts as stalled; at most
            a day.
        layers: attention layers; all run forward, then all backward.
        transport: ``"gloo"``, a process per rank; ``"nccl"``, the same on a CUDA device each; or
            ``"loopback"``, all ranks as threads of one process that compute in turns.
        device: ``"cpu"`` or ``"cuda"``; NCCL needs the latter.
        check_finite: raise if a tensor that arrives or results is not finite.
        overlap: send while computing; a run with ``False`` shows the gain.
        warmup: passes before the pass that is timed and returned: the first pass of a process pays
            for threads, connections and memory that later passes find.
    """

    ranks: int
    kernel: str | None = None
    dtype: DtypeName = "float32"
    seed: int = 0
    verify: bool = False
    timeout_s: float = 60.0
    layers: int = 1
    transport: WorldTransport = "gloo"
    device: Literal["cpu", "cuda"] = "cpu"
    check_finite: bool = False
    overlap: bool = True
    warmup: int = 0

    def __post_init__(self) -> None:
        check_timeout(self.timeout_s)
        if self.ranks < 1 or self.layers < 1 or self.warmup < 0:
            raise RunError(
                "expected at least 1 rank, 1 layer and 0 passes of warm-up, got "
                f"{self.ranks}, {self.layers} and {self.warmup}"
            )
        if self.dtype not in get_args(DtypeName) or self.seed < 0:
            raise RunError(
                f"expected a dtype out of {', '.join(get_args(DtypeName))} and a seed of at least "
                f"0, got {self.dtype!r} and {self.seed}"
            )
        if self.transport not in get_args(WorldTransport) or self.device not in ("cpu", "cuda"):
            raise RunError(
                f"expected a transport out of {', '.join(get_args(WorldTransport))} and a device "
                f"out of cpu, cuda, got {self.transport!r} and {self.device!r}"
            )
        if self.transport == "nccl" and self.device != "cuda":
            raise RunError("transport 'nccl' moves CUDA tensors: say device 'cuda', or use 'gloo'")


if TYPE_CHECKING:
    import torch

    from dcp_runtime.verify.verification import MaskSource, TensorError, Verification

MAX_DENSE_TOKENS = 16_384
"""Longest sequence that is verified: its mask takes 256 MiB, its attention in float64 minutes."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The times, bytes and errors of a run.

    Attributes:
        verified: whether every tensor was exact enough; ``None`` without verification.
        errors: of out, dq, dk and dv, over all layers; empty without verification.
        mask_source: origin of the mask of the comparison; ``None`` without verification.
        seconds: from the first event of any rank to the last.
        forward_s, backward_s: the same per direction.
        exposed_s: seconds in which the rank that waited longest stood still for messages.
        sent_bytes: bytes of all messages.
        prepare_s: seconds in which the slowest rank made the plan ready.
        clock_uncertainty_s: how far the clocks of two ranks can be apart in the trace.
        trace: measured events of all ranks.
        kernels: the name of the kernel that each rank chose.
    """

    verified: bool | None
    errors: "tuple[TensorError, ...]"
    mask_source: "MaskSource | None"
    seconds: float
    forward_s: float
    backward_s: float
    exposed_s: float
    sent_bytes: int
    prepare_s: float
    clock_uncertainty_s: float
    trace: Trace
    kernels: tuple[str, ...]


@contextmanager
def open_world(
    ranks: int, timeout_s: float = 60.0, transport: WorldTransport = "gloo"
) -> Iterator[ProcessWorld]:
    """Start processes that can run several plans one after the other.

    The start takes seconds, because every rank loads torch; a plan then takes only its own time.

    Raises:
        RunError: if torch is not installed, or no clock accepts the timeout.
    """
    check_timeout(timeout_s)
    check_torch()
    with ProcessWorld(ranks, timeout_s, transport) as world:
        yield world


def check_torch() -> None:
    """Refuse to start processes that would each fail to load torch."""
    if find_spec("torch") is None:
        raise RunError(
            f"running a plan needs PyTorch, which is not installed; {install_line('run')}"
        )


def check_ranks(plan: Plan, ranks: int) -> None:
    """Refuse a number of ranks that differs from the plan's devices."""
    if plan.num_devices != ranks:
        raise RunError(
            f"the plan is for {plan.num_devices} devices, {ranks} ranks were asked for; run it on "
            f"{plan.num_devices} ranks, or plan for a cluster of {ranks} devices"
        )


def machine_bytes() -> int:
    """Return the memory of this machine, free or not."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def check_memory(plan: Plan, config: RunConfig) -> None:
    """Refuse a plan whose tensors exceed this machine: a small file can name many tokens."""
    # All ranks share the machine's memory, and inputs are drawn in float64, tensor by tensor.
    # The name of a dtype ends in its bits. The plan counts elements of its own size.
    wider = max(1.0, int(config.dtype[-2:]) / 8 / plan.shape.dtype_bytes)
    held = float(measure_memory(plan).peak.sum()) * config.layers * wider
    drawn = 8.0 * plan.num_tokens * plan.shape.q_heads * plan.shape.head_dim  # float64
    there = machine_bytes()
    if config.device == "cpu" and held + drawn > there:
        raise RunError(
            f"expected a plan that fits into this machine's {there / 1e9:.0f} GB, got one that "
            f"needs {(held + drawn) / 1e9:.0f} GB on {config.ranks} ranks; run fewer tokens"
        )


def run_plan(plan: Plan, config: RunConfig, world: ProcessWorld | None = None) -> RunResult:
    """Execute a plan, forward and backward, on real processes with seeded random tensors.

    Args:
        plan: validated plan.
        config: how to run it.
        world: processes that are already running (`open_world`), or ``None`` to start and end some.

    Returns:
        Times, bytes and the measured trace, and with ``config.verify`` the errors against float64.

    Raises:
        RunError: if the plan is for another number of devices or too long to verify, or a rank
            died, stalled or failed; every process has ended then.
    """
    from dcp_planner.plan import decode_plan, encode_plan  # loads pyarrow; options need none

    check_ranks(plan, config.ranks)
    check_memory(plan, config)
    # Before processes start: dense attention would fail only after the whole run.
    longest = int(np.diff(plan.cu_seqlens).max(initial=0))
    if config.verify and longest > MAX_DENSE_TOKENS:
        raise RunError(
            f"verification computes dense attention of sequences up to {MAX_DENSE_TOKENS} tokens, "
            f"this plan has one of {longest}; verify a smaller batch, or run without verification"
        )
    if world is None:
        with open_world(config.ranks, config.timeout_s, config.transport) as started:
            return run_plan(plan, config, started)
    if (world.ranks, world.transport) != (config.ranks, config.transport):
        raise RunError(
            f"the world has {world.ranks} ranks on {world.transport}, {config.ranks} on "
            f"{config.transport} were asked for; open another one"
        )
    found: dict[str, NDArray[Any]] = {}  # Any: each array has a type of its own
    for _, blob in world.run({"config": asdict(config)}, encode_plan(plan)):
        with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
            found.update(arrays)
    verification = _verify(plan, config, found) if config.verify else None
    trace = decode_plan(found["trace"].tobytes()).traces[0]
    return RunResult(
        verified=verification.is_ok if verification else None,
        errors=verification.errors if verification else (),
        mask_source=verification.mask_source if verification else None,
        seconds=trace.seconds(),
        forward_s=trace.seconds(is_backward=False),
        backward_s=trace.seconds(is_backward=True),
        exposed_s=float(trace.lane_seconds("wait", plan.num_devices).max()),
        sent_bytes=int(trace.size_bytes[trace.lane == LANES.index("send")].sum()),
        prepare_s=max(float(found[f"{rank}/prepare_s"]) for rank in range(config.ranks)),
        clock_uncertainty_s=float(found["clock_uncertainty_s"]),
        trace=trace,
        kernels=tuple(str(found[f"{rank}/kernel"]) for rank in range(config.ranks)),
    )


def _verify(plan: Plan, config: RunConfig, found: Mapping[str, NDArray[Any]]) -> "Verification":
    from dcp_runtime.verify.verification import DTYPES, random_inputs, verify

    dtype = DTYPES[config.dtype]
    blocks = list(range(len(plan.blocks)))
    results = _join_tensors(plan, found, config.layers)
    layers = [
        (random_inputs(plan, blocks, layer, config.seed, dtype), results[layer])
        for layer in range(config.layers)
    ]
    return verify(plan, layers, dtype)


def _join_tensors(
    plan: Plan, found: Mapping[str, NDArray[Any]], layers: int
) -> "list[dict[str, torch.Tensor]]":
    """Put the tensors of all ranks together, per layer, in packed order."""
    import torch

    whole: list[dict[str, torch.Tensor]] = [{} for _ in range(layers)]
    for rank in range(plan.num_devices):
        tokens = plan.local_tokens(rank)
        for layer, key in ((n, k) for n in range(layers) for k in ("out", "dq", "dkv")):
            part = torch.from_numpy(found[f"{rank}/{key}{layer}"])
            if key not in whole[layer]:
                # NaN, since a token that no rank computed must not pass for a result.
                shape = plan.num_tokens, *part.shape[1:]
                whole[layer][key] = torch.full(shape, torch.nan, dtype=part.dtype, device="cpu")
            whole[layer][key][tokens] = part
    return whole
