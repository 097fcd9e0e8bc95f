"""Attention through the executor against torch's own, and the time to prepare.

``python runtime/benchmarks/bench_attention.py [--device cpu|cuda] [--json OUT]`` measures, on one
thread of the CPU or on one GPU, medians of runs in turn; ``--table JSON`` prints the tables of such
a document. The executor runs a plan for one rank: copying, merging, recording and checking are in
its time, messages are not; those are measured on gloo ranks with the links held down.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any, cast

import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recording import machine, report

from dcp_dsl import Sample, Slabs, Spec, block_sparsity
from dcp_dsl.forms import as_slabs
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, build_plan
from dcp_runtime import flex_block_mask
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.kernels.choice import choose_kernel
from dcp_runtime.kernels.kernel import AttentionState, Gradients, QueryRows, accumulator_dtype
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

SCHEMA = "dcp.bench_attention/1"
MASKS = {"causal": "causal", "StreamingLLM 64 + 1,024": "streaming(64, 1024)"}
DIRECTIONS = ("forward", "backward")
LONG = 16_384
"""From here on each point takes minutes: StreamingLLM alone, timed twice, not warmed up."""


def main() -> None:
    """Measure and write a JSON document, or print the tables of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--heads", type=int, nargs=2, default=(4, 2), metavar=("Q", "KV"))
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--flex", action=argparse.BooleanOptionalAction, default=which("g++") is not None
    )
    report(parser, run, to_tables)


def run(options: argparse.Namespace) -> dict[str, object]:
    """Measure; return the document."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return {
        "schema": SCHEMA,
        "machine": machine("torch")
        | {"device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu"},
        "attention": [
            measure(name, call, tokens, options)
            for tokens in options.tokens
            for name, call in MASKS.items()
            if not is_long(tokens, options) or name != "causal"
        ],
        "prepare": [measure_prepare(name, call) for name, call in MASKS.items()],
    }


def is_long(tokens: int, options: argparse.Namespace) -> bool:
    """Return whether a point takes minutes, as it does on the CPU."""
    return options.device == "cpu" and tokens >= LONG


def measure(name: str, call: str, tokens: int, options: argparse.Namespace) -> dict[str, object]:
    """Time one mask: ours, masked and causal in turn, so that a noisy machine hits all alike."""
    slabs = as_slabs(Spec.from_text("").mask(call).bind(Sample(length=tokens)))
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    like = {"device": options.device, "dtype": dtype}
    q, dout = torch.randn(2, tokens, options.heads[0], options.head_dim, **like)
    kv = torch.randn(tokens, 2, options.heads[1], options.head_dim, **like)
    plan = plan_of(slabs, 1, ModelShape(*options.heads, options.head_dim, q.element_size()))
    calls: dict[str, Calls] = {
        "executor": executor_calls(plan, q, kv, dout),
        "kernel": kernel_calls(plan, q, kv, dout),
        "masked": sdpa_calls(q, kv, dout, torch.from_numpy(slabs.tile(0, tokens, 0, tokens))),
        "causal": sdpa_calls(q, kv, dout, None),
    }
    if options.flex:
        calls["flex"] = flex_calls(q, kv, dout, slabs)
    row: dict[str, object] = {
        "mask": name,
        "tokens": tokens,
        "heads": list(options.heads),
        "head_dim": options.head_dim,
        "dtype": str(dtype),
        "density": slabs.num_pairs / tokens**2,
    }
    for index, what in enumerate(DIRECTIONS):
        turns = {key: call for key, pair in calls.items() if (call := pair[index]) is not None}
        repeats = 2 if is_long(tokens, options) else options.repeats
        row[what] = medians(turns, options.device, repeats, warms_up=not is_long(tokens, options))
    return row


def plan_of(slabs: Slabs, ranks: int, shape: ModelShape, block: int = 1024) -> Plan:
    """Plan one sequence by zigzag, the layout that every system knows."""
    sparsity = block_sparsity([slabs], block, block)
    place = Cluster(devices_per_node=ranks)
    return build_plan(sparsity, shape, place, PlanConfig(partitioner="static:zigzag"))


Calls = tuple[Callable[[], object], Callable[[], object] | None]
"""Forward and backward; ``None`` where there is none."""


def executor_calls(plan: Plan, q: torch.Tensor, kv: torch.Tensor, dout: torch.Tensor) -> Calls:
    """Return forward and backward as layers call them, on one rank."""
    executor = DCPExecutor(transport=LoopbackTransport(LoopbackWorld(1), 0))
    prepared = executor.prepare(plan)
    out, lse = prepared.forward(q, kv)
    return lambda: prepared.forward(q, kv), lambda: prepared.backward(q, kv, out, lse, dout)


def kernel_calls(plan: Plan, q: torch.Tensor, kv: torch.Tensor, dout: torch.Tensor) -> Calls:
    """Return forward and backward of the kernel alone, on the tables of the plan."""
    kernel = choose_kernel(q.dtype, q.device).kernel
    part = prepare_device(plan, 0, kernel.segment_rows)
    tables, scale, sums = part.forward.tables, q.shape[-1] ** -0.5, accumulator_dtype(q.dtype)

    def forward() -> AttentionState:
        state = AttentionState.empty(len(q), q.shape[1], q.shape[2], sums, q.device)
        for table in tables:
            kernel.forward(q, kv, table, scale, state)
        return state

    state = forward()
    rows = QueryRows(q, dout, state.lse, (dout.to(sums) * state.out).sum(-1))

    def backward() -> Gradients:
        gradients = Gradients(torch.zeros_like(q, dtype=sums), torch.zeros_like(kv, dtype=sums))
        for table in tables:
            kernel.backward(rows, kv, table, scale, gradients)
        return gradients

    return forward, backward


def sdpa_calls(
    q: torch.Tensor, kv: torch.Tensor, dout: torch.Tensor, mask: torch.Tensor | None
) -> Calls:
    """Return forward and backward of torch's attention, dense mask or causal."""
    leaves, bias = leaves_of(q, kv), None
    if mask is not None:
        bias = torch.zeros(mask.shape, device=q.device, dtype=q.dtype)
        bias.masked_fill_(~mask.to(q.device), -torch.inf)

    def forward() -> torch.Tensor:
        return scaled_dot_product_attention(
            *leaves, attn_mask=bias, is_causal=mask is None, enable_gqa=True
        )

    return forward, backward_of(forward(), leaves, dout)


def leaves_of(q: torch.Tensor, kv: torch.Tensor) -> list[torch.Tensor]:
    """Return q, k and v as torch's attention takes them, with gradients."""
    parts = (x.transpose(0, 1).unsqueeze(0).detach() for x in (q, kv[:, 0], kv[:, 1]))
    return [part.requires_grad_() for part in parts]


def backward_of(
    out: torch.Tensor, leaves: list[torch.Tensor], dout: torch.Tensor
) -> Callable[[], object]:
    """Return the backward of an output."""
    upstream = dout.transpose(0, 1).unsqueeze(0)
    return lambda: torch.autograd.grad(out, leaves, upstream, retain_graph=True)


def flex_calls(q: torch.Tensor, kv: torch.Tensor, dout: torch.Tensor, slabs: Slabs) -> Calls:
    """Return FlexAttention, compiled, on block lists of the same mask; no backward on the CPU."""
    # Sizes as variables do not compile on the CPU: torch 2.13 writes C++ that lacks a declaration.
    compiled = torch.compile(flex_attention, dynamic=False)
    leaves, block_mask = leaves_of(q, kv), flex_block_mask(slabs, device=q.device)
    if q.device.type == "cpu":
        leaves = [leaf.detach() for leaf in leaves]

    def forward() -> torch.Tensor:
        return cast(torch.Tensor, compiled(*leaves, block_mask=block_mask, enable_gqa=True))

    return forward, None if q.device.type == "cpu" else backward_of(forward(), leaves, dout)


def medians(
    calls: dict[str, Callable[[], object]], device: str, repeats: int, *, warms_up: bool
) -> dict[str, dict[str, float | list[float]]]:
    """Warm up once, if at all, then time all calls in turn, `repeats` times."""
    is_cpu = device == "cpu"
    clock = time.process_time if is_cpu else time.perf_counter  # CPU time: blind to other processes
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(1 - warms_up, repeats + 1):
        for name, call in calls.items():
            start_s = clock()
            call()
            if not is_cpu:
                torch.cuda.synchronize()
            if turn:
                times[name].append(clock() - start_s)
    return {
        name: {"median_s": statistics.median(t), "range_s": [min(t), max(t)]}
        for name, t in times.items()
    }


def measure_prepare(name: str, call: str, tokens: int = 131_072) -> dict[str, object]:
    """Time `DCPExecutor.prepare` of every rank of eight: tables, digest, and agreement.

    In CPU seconds of its one thread; it sleeps while it waits for the others.
    """
    slabs = as_slabs(Spec.from_text("").mask(call).bind(Sample(length=tokens)))
    plan, times = plan_of(slabs, 8, ModelShape(32, 8, 128, 2), 2048), list[float]()

    def prepare(transport: LoopbackTransport) -> None:
        executor = DCPExecutor(transport=transport)
        start_s = time.thread_time()
        executor.prepare(plan)
        times.append(time.thread_time() - start_s)

    for _ in range(5):
        LoopbackWorld(8).run(prepare)
    spread = [min(times), max(times)]
    return {
        "mask": name, "tokens": tokens, "median_s": statistics.median(times), "range_s": spread
    }  # fmt: skip


def to_tables(document: dict[str, Any]) -> str:
    """Write the document as Markdown (`Any`: JSON)."""
    attention = document["attention"]
    yardsticks = {"masked": "masked SDPA", "causal": "causal SDPA"}
    if any("flex" in row["forward"] for row in attention):
        yardsticks["flex"] = "FlexAttention"
    head = ["mask", "tokens", "direction", "executor, s", "over kernel", *yardsticks.values()]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in attention:
        for what in DIRECTIONS:
            found = {key: point["median_s"] for key, point in row[what].items()}
            ours = found["executor"]
            cells = [row["mask"], f"{row['tokens']:,}", what, f"{ours:.3f}"]
            cells.append(f"{100 * (ours / found['kernel'] - 1):+.0f} %")
            cells += [
                f"{found[key]:.3f} ({found[key] / ours:.1f}x)" if key in found else "-"
                for key in yardsticks
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| prepare | tokens | median | range |", "|---|---|---|---|"]
    for row in document["prepare"]:
        low, high = row["range_s"]
        lines.append(
            f"| {row['mask']}, 8 ranks | {row['tokens']:,} | {1e3 * row['median_s']:.1f} ms | "
            f"{1e3 * low:.1f}-{1e3 * high:.1f} ms |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
