"""The stages of first light: each function measures one thing and returns a JSON document.

A stage that the machine cannot run raises `Skip` with the reason.
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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import HERE, SHARED, SMALL, TIMED, Case
from torch import Tensor

from dcp_dsl import dense_mask
from dcp_planner.plan import decode_part
from dcp_runtime import DCPAttn, DCPExecutor, RunError
from dcp_runtime.kernels import triton_kernel
from dcp_runtime.kernels.choice import KERNELS, choose_kernel
from dcp_runtime.kernels.kernel import (
    AttentionState,
    Gradients,
    Kernel,
    QueryRows,
    accumulator_dtype,
)
from dcp_runtime.plans.device_plan import DevicePlan, prepare_device
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

Json = dict[str, Any]  # Any: a JSON document
Call = Callable[[], object]

BACKWARD_OVER_FORWARD = 2.5
"""Matrix products of backward over those of forward: five over two."""
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest error against float64, relative to the largest value; one rounding of p and of out."""
REPEATS = 50


class Skip(Exception):
    """A stage that this machine cannot run, with the reason."""


def machine() -> Json:
    """Return versions, and the rates of a matrix product and of a copy."""
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
    return found


def compilation() -> Json:
    """Compile the Triton kernels for sm_90 and return shared memory and spilled bytes."""
    _need_triton()
    script = HERE.parent / "runtime" / "benchmarks" / "bench_kernels.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernels.json")
        command = [sys.executable, str(script), "--arch", "90", "--masks", "--json", str(out)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return dict(json.loads(out.read_text()))


def kernels() -> Json:
    """Compare every kernel that runs here with dense attention in float64."""
    dtypes = [torch.bfloat16, torch.float16] if has_cuda() else [torch.float32]
    cases = SMALL if has_cuda() else [case for case in SMALL if case.head_dim == 64]
    rows = []
    for case in cases:
        dense = torch.from_numpy(dense_mask(*case.mask_and_sample()))
        rows += [_compare(case, dense, dtype, name) for dtype in dtypes for name in KERNELS]
    return {"rows": rows, "failed": [row for row in rows if row.get("ok") is False]}


def _compare(case: Case, dense: Tensor, dtype: torch.dtype, name: str) -> Json:
    row: Json = {"case": case.name, "dtype": str(dtype), "kernel": name}
    if name == "triton" and not has_cuda():
        return row | {"skipped": "interpreted kernels take minutes; the default tests run them"}
    try:
        kernel = choose_kernel(dtype, device(), name, case.head_dim).kernel
    except RunError as error:
        return row | {"skipped": str(error)}
    part = device_plan(case, kernel)
    tensors = inputs(case, dtype)
    first = _values(kernel, part, *tensors)
    again = _values(kernel, part, *tensors)
    expected = _dense_values(*tensors, dense.to(device()))
    errors = {
        key: float((first[key].double() - value).abs().max() / value.abs().max())
        for key, value in expected.items()
    }
    is_same = all(torch.equal(first[key], again[key]) for key in first)
    is_ok = max(errors.values()) <= TOLERANCE[dtype]
    return row | {"errors": errors, "ok": is_ok, "bitwise_repeatable": is_same}


def ranks() -> Json:
    """Run layers on 2, 4 and 8 ranks that share one device, and compare with dense attention."""
    dtype = torch.bfloat16 if has_cuda() else torch.float32
    rows = [_run_ranks(case, dtype) for case in SHARED]
    return {"rows": rows, "failed": [row for row in rows if not row["ok"]]}


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
    return {"case": case.name, "errors": errors, "ok": max(errors.values()) <= TOLERANCE[dtype]}


def speed() -> Json:
    """Time every kernel, and torch's own attention where its masks reach, in one run."""
    need_cuda()
    rows = []
    for case in TIMED:
        pairs = int(dense_pairs(case))
        q, kv, dout = inputs(case, torch.bfloat16)
        calls: dict[str, tuple[Call, Call]] = {}
        refused = {}
        for name in KERNELS[:3]:
            try:
                kernel = choose_kernel(q.dtype, q.device, name, case.head_dim).kernel
            except RunError as error:
                refused[name] = str(error)
                continue
            calls[name] = kernel_calls(kernel, device_plan(case, kernel), q, kv, dout)
        if case.mask == "causal":
            calls |= torch_calls(q, kv, dout)
        flops = 4 * case.head_dim * case.heads[0] * pairs
        row: Json = {"case": case.name, "pairs": pairs, "refused": refused}
        for name, (forward, backward) in calls.items():
            row[name] = {
                "forward_tflops": flops / seconds(forward) / 1e12,
                "backward_tflops": BACKWARD_OVER_FORWARD * flops / seconds(backward) / 1e12,
            }
        rows.append(row)
        del calls, q, kv, dout
        torch.cuda.empty_cache()
    return {"rows": rows}


def tiles() -> Json:
    """Time launch shapes of the Triton kernels around the chosen ones."""
    need_cuda()
    _need_triton()
    case = next(case for case in TIMED if case.mask == "causal")
    q, kv, dout = inputs(case, torch.bfloat16)
    kernel = choose_kernel(q.dtype, q.device, "triton", case.head_dim).kernel
    flops = 4 * case.head_dim * case.heads[0] * dense_pairs(case)
    rows = []
    for which in ("forward", "dq", "dkv"):
        for m, n, warps, stages in (
            (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (128, 128, 8, 2), (64, 64, 4, 2),
            (64, 128, 8, 2), (64, 128, 8, 1), (32, 128, 8, 2), (64, 64, 8, 2),
        ):  # fmt: skip
            shape = triton_kernel.LaunchShape(m, n, warps, stages)
            row: Json = {"kernel": which, "shape": [m, n, warps, stages]}
            with _launch_shape(which, shape):
                try:
                    part = device_plan(case, kernel)
                    forward, backward = kernel_calls(kernel, part, q, kv, dout)
                    call, share = (forward, 1.0) if which == "forward" else (backward, 2.5)
                    row["tflops"] = share * flops / seconds(call, 10) / 1e12
                except Exception as error:  # a shape that does not fit is a result
                    row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
            rows.append(row)
    return {"rows": rows}


def executor() -> Json:
    """Time layers through the executor beside their kernel, and what preparing a plan costs."""
    need_cuda()
    return {"rows": [_time_executor(case) for case in TIMED]}


def _time_executor(case: Case) -> Json:
    part = decode_part(case.parts()[0])
    q, kv, dout = inputs(case, torch.bfloat16)
    runs = DCPExecutor(transport=LoopbackTransport(LoopbackWorld(1), 0))
    torch.cuda.reset_peak_memory_stats()
    start_s = time.perf_counter()
    prepared = runs.prepare(part)
    out, lse = prepared.forward(q, kv)
    torch.cuda.synchronize()
    first_s = time.perf_counter() - start_s
    kernel = choose_kernel(q.dtype, q.device, head_dim=case.head_dim).kernel
    forward, backward = kernel_calls(kernel, device_plan(case, kernel), q, kv, dout)
    layer_s = seconds(lambda: prepared.forward(q, kv))
    back_s = seconds(lambda: prepared.backward(q, kv, out, lse, dout))
    return {
        "case": case.name,
        "kernel": kernel.name,
        "prepare_and_first_layer_s": first_s,
        "forward_over_kernel": layer_s / seconds(forward),
        "backward_over_kernel": back_s / seconds(backward),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "input_bytes": q.nbytes + kv.nbytes + dout.nbytes,
    }


STAGES: dict[str, Callable[[], Json]] = {
    stage.__name__: stage
    for stage in (machine, compilation, kernels, ranks, speed, tiles, executor)
}
"""In the order in which they run: right first, then fast."""


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
    generator = torch.Generator().manual_seed(0)
    heads, kv_heads = case.heads
    shapes = (
        (case.tokens, heads, case.head_dim),
        (case.tokens, 2, kv_heads, case.head_dim),
        (case.tokens, heads, case.head_dim),
    )
    q, kv, dout = (torch.randn(s, generator=generator).to(device(), dtype) for s in shapes)
    return q, kv, dout


def kernel_calls(
    kernel: Kernel, part: DevicePlan, q: Tensor, kv: Tensor, dout: Tensor
) -> tuple[Call, Call]:
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


def torch_calls(q: Tensor, kv: Tensor, dout: Tensor) -> dict[str, tuple[Call, Call]]:
    """Return torch's causal attention by backend: FlashAttention-2 and cuDNN."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    group = q.shape[1] // kv.shape[2]
    k, v = (kv[:, half].repeat_interleave(group, 1) for half in (0, 1))
    leaves = [x.transpose(0, 1).unsqueeze(0).detach().requires_grad_() for x in (q, k, v)]
    upstream = dout.transpose(0, 1).unsqueeze(0)
    calls: dict[str, tuple[Call, Call]] = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

        def forward(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*leaves, is_causal=True)

        try:
            out = forward()
        except RuntimeError:  # this build or GPU has no such backend
            continue

        def backward(out: Tensor = out) -> object:
            return torch.autograd.grad(out, leaves, upstream, retain_graph=True)

        calls[f"torch {backend.name.lower()}"] = forward, backward
    return calls


def dense_pairs(case: Case) -> int:
    """Return the visible pairs of a case."""
    mask, sample = case.mask_and_sample()
    return int(mask.bind(sample).num_pairs)


def seconds(call: Call, repeats: int = REPEATS) -> float:
    """Return the median time of a call, after three that are not counted."""
    for _ in range(3):
        call()
    if not has_cuda():
        times = []
        for _ in range(min(repeats, 5)):
            start_s = time.perf_counter()
            call()
            times.append(time.perf_counter() - start_s)
        return statistics.median(times)
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
