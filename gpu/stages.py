"""The stages of first light: each yields rows of a JSON document as it measures them.

A row with an ``error``, or with ``ok`` false, makes the stage fail. A stage that the machine cannot
run raises `Skip` with the reason.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from cases import HERE, SHARED, SMALL, SPREAD, TIMED, Case
from torch import Tensor

from dcp_dsl import dense_mask
from dcp_planner.plan import decode_part
from dcp_runtime import DCPAttn, DCPExecutor, RunError
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.kernels import triton_kernel
from dcp_runtime.kernels.choice import KERNELS, TRITON, choose_kernel
from dcp_runtime.kernels.kernel import (
    AttentionState,
    Gradients,
    Kernel,
    QueryRows,
    accumulator_dtype,
)
from dcp_runtime.plans.device_plan import DevicePlan, prepare_device
from dcp_runtime.transport.choice import make_transport
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld
from dcp_runtime.transport.transport import NoOverlapTransport

Json = dict[str, Any]  # Any: a JSON document
Call = Callable[[], object]
Calls = tuple[Call, Call]
"""Forward and backward."""

BACKWARD_OVER_FORWARD = 2.5
"""Matrix products of backward over those of forward: five over two."""
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest error against float64, relative to the largest value; one rounding of p and of out."""
MEASURE_S = 0.5
"""Time that a measurement takes, between 3 and 50 calls."""


class Skip(Exception):
    """A stage that this machine cannot run, with the reason."""


def machine() -> Iterator[Json]:
    """Yield versions, and the rates of a matrix product and of a copy."""
    found: Json = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "flash_attn": _version("flash_attn"),
        "device": torch.cuda.get_device_name() if has_cuda() else platform.processor(),
    }
    device, size = ("cuda", 8192) if has_cuda() else ("cpu", 512)
    dtype = torch.bfloat16 if has_cuda() else torch.float32
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    found["matmul_tflops"] = 2 * size**3 / seconds(lambda: a @ b) / 1e12
    source = torch.empty(2**30 if has_cuda() else 2**24, dtype=torch.uint8, device=device)
    found["copy_gb_per_s"] = 2 * source.numel() / seconds(source.clone) / 1e9
    yield found


def compilation() -> Iterator[Json]:
    """Compile the Triton kernels for sm_90: shared memory, spilled bytes, instructions of loops."""
    _need_triton()
    script = HERE.parent / "runtime" / "benchmarks" / "bench_kernels.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernels.json")
        command = [sys.executable, str(script), "--arch", "90", "--masks", "--json", str(out)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        yield from json.loads(out.read_text())["kernels"]


def kernels() -> Iterator[Json]:
    """Compare every kernel that runs here with dense attention in float64."""
    for case in SMALL if has_cuda() else [case for case in SMALL if case.head_dim == 64]:
        dense = torch.from_numpy(dense_mask(*case.mask_and_sample()))
        dtypes = [torch.bfloat16] if has_cuda() else [torch.float32]
        if has_cuda() and case.head_dim == 128:  # every type is compiled anew, which takes longest
            dtypes.append(torch.float16)
        for dtype in dtypes:
            for name in KERNELS:
                row: Json = {"case": case.name, "dtype": str(dtype), "kernel": name}
                yield row | attempt(partial(_compare, case, dense, dtype, name))


def attempt(work: Callable[[], Json]) -> Json:
    """Return what `work` finds, or its error: one kernel that fails leaves the others a turn."""
    try:
        return work()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:1000]}"}


def _compare(case: Case, dense: Tensor, dtype: torch.dtype, name: str) -> Json:
    if name in TRITON and not has_cuda():
        return {"skipped": "interpreted kernels take minutes; the default tests run them"}
    try:
        kernel = choose_kernel(dtype, device(), name, case.head_dim).kernel
    except RunError as error:
        return {"skipped": str(error)}
    part = device_plan(case, kernel)
    tensors = inputs(case, dtype)
    first = _values(kernel, part, *tensors)
    others = [_values(kernel, part, *tensors) for _ in range(20 if has_cuda() else 1)]
    expected = _dense_values(*tensors, dense.to(device()))
    errors = {
        key: float((first[key].double() - value).abs().max() / value.abs().max())
        for key, value in expected.items()
    }
    is_same = all(torch.equal(first[key], other[key]) for other in others for key in first)
    is_ok = max(errors.values()) <= TOLERANCE[dtype]
    return {"errors": errors, "ok": is_ok, "bitwise_repeatable": is_same}


def ranks() -> Iterator[Json]:
    """Run layers on 2, 4 and 8 ranks that share one device, and compare with dense attention."""
    dtype = torch.bfloat16 if has_cuda() else torch.float32
    for case in SHARED:
        yield {"case": case.name} | attempt(partial(_run_ranks, case, dtype))


def _run_ranks(case: Case, dtype: torch.dtype) -> Json:
    parts = [decode_part(data) for data in case.parts()]
    q, kv, dout = inputs(case, dtype)

    def work(transport: LoopbackTransport) -> dict[str, Tensor]:
        part = parts[transport.rank]
        mine = torch.from_numpy(part.local_tokens(transport.rank)).to(q.device)
        leaves = [q[mine].requires_grad_(), kv[mine].requires_grad_()]
        executor = DCPExecutor(transport=transport)
        out = DCPAttn.apply(executor.prepare(part), *leaves)
        dq, dkv = torch.autograd.grad(out, leaves, dout[mine])
        executor.close()
        return {"rows": mine, "out": out.detach(), "dq": dq, "dkv": dkv}

    found = LoopbackWorld(case.ranks, 120).run(work)
    dense = torch.from_numpy(dense_mask(*case.mask_and_sample())).to(device())
    errors = {}
    for key, value in _dense_values(q, kv, dout, dense).items():
        whole = torch.full_like(value, torch.nan)
        for part_found in found:
            whole[part_found["rows"]] = part_found[key].double()
        errors[key] = float((whole - value).abs().max() / value.abs().max())
    return {"errors": errors, "ok": max(errors.values()) <= TOLERANCE[dtype]}


def speed() -> Iterator[Json]:
    """Time every kernel beside torch's own: FlashAttention-2, cuDNN and, last, FlexAttention."""
    need_cuda()
    rivals = {"torch flash": _torch_calls, "torch cudnn": _torch_calls}
    for case in TIMED:
        for name in (*KERNELS[:4], *(rivals if case.mask == "causal" else ())):
            yield _speed_row(case, name, rivals.get(name, _our_calls))
    for case in TIMED[-3:]:  # compiles for half a minute each
        yield _speed_row(case, "flex", _flex_calls)


def _speed_row(case: Case, name: str, make: Callable[[Case, str], Calls]) -> Json:
    row: Json = {"case": case.name, "kernel": name}
    flops = 4 * case.head_dim * case.heads[0] * dense_pairs(case)
    try:
        forward, backward = make(case, name)
        row["forward_tflops"] = flops / seconds(forward) / 1e12
        row["backward_tflops"] = BACKWARD_OVER_FORWARD * flops / seconds(backward) / 1e12
    except Exception as error:  # others have their turn; what torch lacks is no failure of ours
        is_ours = name in KERNELS and not isinstance(error, RunError)
        row["error" if is_ours else "refused"] = f"{type(error).__name__}: {str(error)[:1000]}"
    torch.cuda.empty_cache()
    return row


def _our_calls(case: Case, name: str) -> Calls:
    kernel = choose_kernel(torch.bfloat16, device(), name, case.head_dim).kernel
    return kernel_calls(kernel, device_plan(case, kernel), *inputs(case, torch.bfloat16))


SHAPES = (
    (128, 64, 8, 3), (128, 64, 8, 2), (64, 128, 8, 2), (64, 64, 8, 2), (128, 128, 8, 2),
    (128, 64, 4, 3), (64, 128, 8, 3), (64, 64, 4, 2), (32, 128, 8, 2), (64, 128, 8, 1),
)  # fmt: skip
"""Rows of queries, rows of keys, warps, stages: the likely ones first."""


def tiles() -> Iterator[Json]:
    """Time launch shapes of the Triton kernels around the chosen ones."""
    need_cuda()
    _need_triton()
    case = next(case for case in TIMED if case.mask == "causal")
    flops = 4 * case.head_dim * case.heads[0] * dense_pairs(case)
    for shape in SHAPES:
        for which in ("forward", "dkv", "fused", "dq"):
            yield {"kernel": which, "shape": shape} | _tile_row(case, which, flops, shape)


def _tile_row(case: Case, which: str, flops: int, shape: tuple[int, int, int, int]) -> Json:
    with _launch_shape(which, triton_kernel.LaunchShape(*shape)):
        try:
            forward, backward = _our_calls(case, "triton_fused" if which == "fused" else "triton")
            if which == "forward":
                return {"forward_tflops": flops / seconds(forward) / 1e12}
            return {"backward_tflops": BACKWARD_OVER_FORWARD * flops / seconds(backward) / 1e12}
        except Exception as error:  # a shape that does not fit is a result
            return {"refused": f"{type(error).__name__}: {str(error)[:200]}"}


def executor() -> Iterator[Json]:
    """Time layers through the executor beside their kernel, and what preparing a plan costs."""
    need_cuda()
    for case in TIMED:
        yield {"case": case.name} | attempt(partial(_time_executor, case))
        torch.cuda.empty_cache()


def _time_executor(case: Case) -> Json:
    part = decode_part(case.parts()[0])
    q, kv, dout = inputs(case, torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    with DCPExecutor(transport=LoopbackTransport(LoopbackWorld(1), 0)) as runs:
        prepared, first_s = timed(partial(runs.prepare, part))
        (out, lse), layer_s = timed(partial(prepared.forward, q, kv))
        back = partial(prepared.backward, q, kv, out, lse, dout)
        back()
        peak = torch.cuda.max_memory_allocated()
        found = {
            "forward_s": seconds(partial(prepared.forward, q, kv)),
            "backward_s": seconds(back),
        }
        # A further batch: the kernel is chosen, and prepare moves its tables there.
        prepared, prepare_s = timed(partial(runs.prepare, part))
        _, queue_s = timed(partial(prepared.forward, q, kv), waits=False)
        assert prepared.latest_engine is not None
        kernel = prepared.latest_engine.kernel
    forward, backward = kernel_calls(kernel, device_plan(case, kernel), q, kv, dout)
    return found | {
        "kernel": kernel.name,
        "forward_over_kernel": found["forward_s"] / seconds(forward),
        "backward_over_kernel": found["backward_s"] / seconds(backward),
        "first_prepare_s": first_s,
        "prepare_s": prepare_s,
        "first_layer_s": layer_s,
        "host_forward_s": queue_s,
        "peak_bytes": peak,
        "input_bytes": q.nbytes + kv.nbytes + dout.nbytes,
    }


def timed(work: Callable[[], Any], *, waits: bool = True) -> tuple[Any, float]:  # Any: its result
    """Return a result, and the seconds until the device has it, or until the host goes on."""
    start_s = time.perf_counter()
    result = work()
    if waits and has_cuda():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start_s


def overlap() -> Iterator[Json]:
    """Run ranks as processes: NCCL on all GPUs, and gloo between two ranks; what do they wait?"""
    worlds = [("gloo", SPREAD[0] if has_cuda() else SHARED[0])]
    if has_cuda():
        most = torch.cuda.device_count()
        cases = [TIMED[0], *SPREAD]  # one rank too: communicators, streams and threads of NCCL
        worlds = [("nccl", case) for case in cases if case.ranks <= most] + worlds
    for backend, case in worlds:
        row: Json = {"backend": backend, "case": case.name}
        yield row | attempt(partial(_run_processes, case, backend))


def _run_processes(case: Case, backend: str) -> Json:
    with tempfile.TemporaryDirectory() as folder:
        arguments = (case, backend, folder)
        torch.multiprocessing.spawn(_run_process, arguments, case.ranks, join=True)
        return dict(json.loads(Path(folder, "found.json").read_text()))


def _run_process(rank: int, case: Case, backend: str, folder: str) -> None:
    """Run layers on one rank, with overlap and without; rank 0 leaves what all found."""
    if has_cuda():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store = torch.distributed.FileStore(f"{folder}/store", case.ranks)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=case.ranks)
    part = decode_part(case.parts()[rank])
    mine = torch.from_numpy(part.local_tokens(rank)).to(device())
    q, kv, dout = (x[mine] for x in inputs(case, torch.bfloat16 if has_cuda() else torch.float32))
    found = {}
    for name in ("overlap", "no overlap"):
        transport = make_transport(None, 60)
        used = transport if name == "overlap" else NoOverlapTransport(transport)
        with DCPExecutor(transport=used) as runs:
            for turn in range(3 if has_cuda() else 1):
                prepared = runs.prepare(part)
                layers = 4 if turn else 1

                def attend(prepared: PreparedPlan = prepared, layers: int = layers) -> None:
                    done = [prepared.forward(q, kv) for _ in range(layers)]
                    for out, lse in done:
                        prepared.backward(q, kv, out, lse, dout)

                _, step_s = timed(attend)
            timeline = runs.gather_timeline()
            if timeline is not None:
                waits = timeline.trace.lane_seconds("wait", case.ranks)
                total_s = timeline.trace.seconds()
                found[name] = {"step_s": step_s, "layers": layers, "trace_s": total_s,
                               "exposed": float(waits.max()) / total_s}  # fmt: skip
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


STAGES: dict[str, Callable[[], Iterator[Json]]] = {
    stage.__name__: stage
    for stage in (machine, kernels, ranks, speed, executor, overlap, tiles, compilation)
}


def has_cuda() -> bool:
    """Return whether torch sees a CUDA device."""
    return bool(torch.cuda.is_available())


def need_cuda() -> None:
    """Skip the stage where there is no CUDA device."""
    if not has_cuda():
        raise Skip("torch sees no CUDA device")


def device() -> torch.device:
    """Return where the stages compute."""
    return torch.device("cuda" if has_cuda() else "cpu")


def device_plan(case: Case, kernel: Kernel) -> DevicePlan:
    """Make the plan of a case for one rank ready."""
    return prepare_device(decode_part(case.parts()[0]).plan, 0, kernel.segment_rows)


def inputs(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, kv and the gradient of out, in packed order."""
    generator = torch.Generator(device()).manual_seed(0)  # 64k tokens take seconds on the host
    heads, kv_heads = case.heads
    shapes = (
        (case.tokens, heads, case.head_dim),
        (case.tokens, 2, kv_heads, case.head_dim),
        (case.tokens, heads, case.head_dim),
    )
    q, kv, dout = (
        torch.randn(s, generator=generator, device=device(), dtype=dtype) for s in shapes
    )
    return q, kv, dout


def kernel_calls(kernel: Kernel, part: DevicePlan, q: Tensor, kv: Tensor, dout: Tensor) -> Calls:
    """Return forward and backward of a kernel alone on the tables of a plan."""
    tokens = torch.from_numpy(part.plan.local_tokens(0)).to(q.device)
    q, kv, dout = q[tokens], kv[tokens], dout[tokens]
    scale, sums = q.shape[-1] ** -0.5, accumulator_dtype(q.dtype)

    def forward() -> AttentionState:
        state = AttentionState.empty(len(q), q.shape[1], q.shape[2], sums, q.device)
        for table in part.forward.tables:
            kernel.forward(q, kv, table, scale, state)
        return state

    state = forward()
    rows = QueryRows(q, dout, state.lse, (dout.to(sums) * state.out).sum(-1))

    def backward() -> Gradients:
        gradients = Gradients(torch.zeros_like(q, dtype=sums), torch.zeros_like(kv, dtype=sums))
        for table in part.backward.tables:
            kernel.backward(rows, kv, table, scale, gradients)
        return gradients

    return forward, backward


def _torch_calls(case: Case, name: str) -> Calls:
    """Return torch's causal attention by one of its backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backends = {
        "torch flash": SDPBackend.FLASH_ATTENTION,
        "torch cudnn": SDPBackend.CUDNN_ATTENTION,
    }
    q, kv, dout = inputs(case, torch.bfloat16)
    group = q.shape[1] // kv.shape[2]
    k, v = (kv[:, half].repeat_interleave(group, 1) for half in (0, 1))

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backends[name]):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return _autograd_calls(forward, (q, k, v), dout)


def _flex_calls(case: Case, name: str) -> Calls:
    """Return FlexAttention, compiled, on block lists of the same mask."""
    from torch.nn.attention.flex_attention import flex_attention

    from dcp_runtime.adapters.flex_mask import flex_block_mask

    q, kv, dout = inputs(case, torch.bfloat16)
    mask, sample = case.mask_and_sample()
    block_mask = flex_block_mask(mask.bind(sample), device=device())
    compiled = torch.compile(flex_attention, dynamic=False)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cast(Tensor, compiled(q, k, v, block_mask=block_mask, enable_gqa=True))

    return _autograd_calls(forward, (q, kv[:, 0], kv[:, 1]), dout)


def _autograd_calls(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    qkv: tuple[Tensor, Tensor, Tensor],
    dout: Tensor,
) -> Calls:
    """Return forward and backward of a function of ``[1, heads, tokens, head_dim]``."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0).detach().requires_grad_() for x in qkv)
    upstream = dout.transpose(0, 1).unsqueeze(0)
    out = attend(q, k, v)
    return (
        partial(attend, q, k, v),
        lambda: torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True),
    )


def dense_pairs(case: Case) -> int:
    """Return the visible pairs of a case."""
    mask, sample = case.mask_and_sample()
    return int(mask.bind(sample).num_pairs)


def seconds(call: Call) -> float:
    """Return the median time of a call, after two that are not counted."""
    timed(call)
    _, once_s = timed(call)
    repeats = int(min(max(MEASURE_S / max(once_s, 1e-9), 3), 50))
    if not has_cuda():
        return statistics.median(timed(call)[1] for _ in range(repeats))
    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(repeats)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1e3


def _values(
    kernel: Kernel, part: DevicePlan, q: Tensor, kv: Tensor, dout: Tensor
) -> dict[str, Tensor]:
    """Return out, dq and dkv of a kernel in packed order."""
    forward, backward = kernel_calls(kernel, part, q, kv, dout)
    state, gradients = forward(), backward()
    assert isinstance(state, AttentionState)
    assert isinstance(gradients, Gradients)
    tokens = torch.from_numpy(np.argsort(part.plan.local_tokens(0))).to(q.device)
    return {"out": state.out[tokens], "dq": gradients.dq[tokens], "dkv": gradients.dkv[tokens]}


def _dense_values(q: Tensor, kv: Tensor, dout: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return out and gradients of dense attention in float64; rows that see nothing give 0."""
    leaves = q.double().requires_grad_(), kv.double().requires_grad_()
    group = q.shape[1] // kv.shape[2]
    k, v = (leaves[1][:, half].repeat_interleave(group, 1) for half in (0, 1))
    scores = torch.einsum("qhd,khd->hqk", leaves[0], k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
    out = torch.einsum("hqk,khd->qhd", weights, v)
    dq, dkv = torch.autograd.grad(out, leaves, dout.double())
    return {"out": out.detach(), "dq": dq, "dkv": dkv}


@contextmanager
def _launch_shape(which: str, shape: triton_kernel.LaunchShape) -> Iterator[None]:
    """Use a launch shape for one kernel."""
    chosen = triton_kernel.launch_shape

    def changed(
        kernel: str, *args: Any, **options: Any
    ) -> triton_kernel.LaunchShape:  # Any: passed on
        return shape if kernel == which else chosen(kernel, *args, **options)

    triton_kernel.launch_shape = changed
    try:
        yield
    finally:
        triton_kernel.launch_shape = chosen


def _need_triton() -> None:
    if _version("triton") is None:
        raise Skip("Triton is not installed")


def _version(name: str) -> str | None:
    try:
        return str(getattr(__import__(name), "__version__", "unknown"))
    except ImportError:
        return None
