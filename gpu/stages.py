"""Define the stages of `first_light.py`: each yields rows of a JSON document as it measures them.

A row with an ``error``, or with ``ok`` false, makes the stage fail. A stage that the machine cannot
run raises `Skip` with the reason.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import cases
import torch
from apart import Apart, attempt
from attention_calls import (
    Calls,
    dense_values,
    device_plan,
    flex_calls,
    inputs,
    kernel_calls,
    torch_calls,
    values_of,
)
from cases import HERE, SHARED, SMALL, SPREAD, TIMED, Case
from timing import device, has_cuda, seconds, timed
from torch import Tensor

from dcp_dsl import dense_mask
from dcp_planner.plan import decode_part
from dcp_runtime import DCPAttn, DCPExecutor, RunError
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.kernels import triton_kernel
from dcp_runtime.kernels.choice import KERNELS, choose_kernel
from dcp_runtime.transport.choice import make_transport
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld
from dcp_runtime.transport.transport import without_overlap

Json = dict[str, Any]  # Any: a JSON document
BACKWARD_OVER_FORWARD = 2.5  # matrix products of backward over those of forward: five over two
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest error against float64, over the largest value: p and out are rounded once each."""


class Skip(Exception):
    """A stage that this machine cannot run, with the reason."""


def machine() -> Iterator[Json]:
    """Yield versions, and the rates of a matrix product and of a copy."""
    found: Json = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _installed("triton"),
        "flash_attn_4": _installed("flash-attn-4"),
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
    """Compare every kernel that runs here with dense attention in float64.

    On a GPU in a process of their own: after an illegal access the others go on in a new one.
    """
    rows = [(c, dtype, name) for c in small_cases() for dtype in _types(c) for name in KERNELS]
    for case in small_cases():
        case.parts()  # a plan that is missing ends the stage
    with Apart() as apart:
        for case, dtype, name in rows:
            row: Json = {"case": case.name, "dtype": str(dtype), "kernel": name}
            work = partial(_compare, case, dtype, name)
            if has_cuda():
                yield row | apart.attempt(partial(_with_plans, cases.PLANS, work))
            else:
                yield row | attempt(work)


def small_cases() -> list[Case]:
    """Return the cases that `kernels` compares."""
    return SMALL if has_cuda() else [case for case in SMALL if case.head_dim == 64]


def _types(case: Case) -> list[torch.dtype]:
    """Return the types of a case: each compiles its kernels, which takes longest."""
    if not has_cuda():
        return [torch.float32]
    others = {128: [torch.float16], 64: [torch.float32] if case.mask == "sparse" else []}
    return [torch.bfloat16, *others.get(case.head_dim, [])]


def _with_plans(folder: Path, work: Callable[[], Json]) -> Json:
    """Do work in a process that may look for plans elsewhere."""
    cases.PLANS = folder
    return work()


@cache
def _dense(case: Case) -> Tensor:
    return torch.from_numpy(dense_mask(*case.mask_and_sample()))


def _compare(case: Case, dtype: torch.dtype, name: str) -> Json:
    if name == "triton" and not has_cuda():
        return {"skipped": "interpreted kernels take minutes; the default tests run them"}
    try:
        kernel = choose_kernel(dtype, device(), name, case.head_dim).kernel
    except RunError as error:
        return {"skipped": str(error)}
    part = device_plan(case, kernel)
    tensors = inputs(case, dtype)
    first = values_of(kernel, part, *tensors)
    others = [values_of(kernel, part, *tensors) for _ in range(20 if has_cuda() else 1)]
    expected = dense_values(*tensors, _dense(case).to(device()))
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
    dense = _dense(case).to(device())
    errors = {}
    for key, value in dense_values(q, kv, dout, dense).items():
        whole = torch.full_like(value, torch.nan)
        for part_found in found:
            whole[part_found["rows"]] = part_found[key].double()
        errors[key] = float((whole - value).abs().max() / value.abs().max())
    return {"errors": errors, "ok": max(errors.values()) <= TOLERANCE[dtype]}


def speed() -> Iterator[Json]:
    """Time every kernel beside torch's own: FlashAttention-2, cuDNN and, last, FlexAttention."""
    need_cuda()
    rivals = {"torch flash": torch_calls, "torch cudnn": torch_calls}
    for case in TIMED:
        for name in (*KERNELS[:5], *(rivals if case.mask == "causal" else ())):
            yield _speed_row(case, name, rivals.get(name, _our_calls))
    for case in TIMED[-3:]:  # each compiles for half a minute
        yield _speed_row(case, "flex", flex_calls)


def _speed_row(case: Case, name: str, make: Callable[[Case, str], Calls]) -> Json:
    row: Json = {"case": case.name, "kernel": name}
    flops = 4 * case.head_dim * case.heads[0] * dense_pairs(case)
    try:
        forward, backward = make(case, name)
        row["forward_tflops"] = flops / seconds(forward) / 1e12
        row["backward_tflops"] = BACKWARD_OVER_FORWARD * flops / seconds(backward) / 1e12
    except Exception as error:  # others are still tried; a backend that torch lacks is no failure
        is_ours = name in KERNELS and not isinstance(error, RunError)
        row["error" if is_ours else "refused"] = f"{type(error).__name__}: {str(error)[:1000]}"
    torch.cuda.empty_cache()
    return row


def _our_calls(case: Case, name: str) -> Calls:
    kernel = choose_kernel(torch.bfloat16, device(), name, case.head_dim).kernel
    return kernel_calls(kernel, device_plan(case, kernel), *inputs(case, torch.bfloat16))


SHAPES = (
    (128, 128, 8, 2, 32, 4), (128, 128, 8, 2), (64, 128, 8, 2), (128, 64, 8, 3),
    (128, 128, 8, 2, 64), (64, 128, 8, 2, 64), (128, 64, 8, 2), (64, 64, 8, 2), (64, 128, 8, 3),
)  # fmt: skip
"""Rows of queries, rows of keys, warps, stages, steps at edges, and heads of a tile; shapes that
are likely to be fastest come first."""


def tiles() -> Iterator[Json]:
    """Time launch shapes of the Triton kernels around the chosen ones."""
    need_cuda()
    _need_triton()
    for shape in SHAPES:
        # Edges are a larger part of a window: both masks decide whether heads share a tile.
        for case in TIMED[: 2 if shape in SHAPES[:2] else 1]:
            flops = 4 * case.head_dim * case.heads[0] * dense_pairs(case)
            for which in ("forward", "dkv", "dq"):
                row: Json = {"case": case.name, "kernel": which, "shape": shape}
                row["in_use"] = triton_kernel.LaunchShape(*shape) == _shape_in_use(case, which)
                yield row | _tile_row(case, which, flops, shape)


def _shape_in_use(case: Case, which: str) -> triton_kernel.LaunchShape:
    major, minor = torch.cuda.get_device_capability()
    group = case.heads[0] // case.heads[1]
    return triton_kernel.launch_shape(which, torch.bfloat16, 10 * major + minor, group)


def _tile_row(case: Case, which: str, flops: int, shape: tuple[int, ...]) -> Json:
    with _launch_shape(which, triton_kernel.LaunchShape(*shape)):
        try:
            forward, backward = _our_calls(case, "triton")
            if which == "forward":
                return {"forward_tflops": flops / seconds(forward) / 1e12}
            return {"backward_tflops": BACKWARD_OVER_FORWARD * flops / seconds(backward) / 1e12}
        except Exception as error:  # a shape that does not fit is a result
            return {"refused": f"{type(error).__name__}: {str(error)[:200]}"}


def executor() -> Iterator[Json]:
    """Time layers through the executor beside their kernel, and the preparation of a plan."""
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


def overlap() -> Iterator[Json]:
    """Run ranks as processes and measure their waits: NCCL on all GPUs, gloo between two ranks."""
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
    """Run layers on one rank, with overlap and without; rank 0 writes the figures of all ranks."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # whatever the host's name resolves to
    if has_cuda():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store = torch.distributed.FileStore(f"{folder}/store", case.ranks)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=case.ranks)
    part = decode_part(case.parts()[rank])
    mine = torch.from_numpy(part.local_tokens(rank)).to(device())
    q, kv, dout = (x[mine] for x in inputs(case, torch.bfloat16 if has_cuda() else torch.float32))
    found: Json = {}
    for name in ("overlap", "no overlap"):
        transport = make_transport(None, 60)
        used = transport if name == "overlap" else without_overlap(transport)
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


def need_cuda() -> None:
    """Raise `Skip` if there is no CUDA device."""
    if not has_cuda():
        raise Skip("torch sees no CUDA device")


def dense_pairs(case: Case) -> int:
    """Return the visible pairs of a case."""
    mask, sample = case.mask_and_sample()
    return int(mask.bind(sample).num_pairs)


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
    if _installed("triton") is None:
        raise Skip("Triton is not installed")


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
