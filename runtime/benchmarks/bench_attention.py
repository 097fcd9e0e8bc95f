"""Attention through the executor against torch's own, overlap on slowed links, time to prepare.

``python runtime/benchmarks/bench_attention.py [--device cpu|cuda] [--json OUT]`` measures, on one
thread of the CPU or on one GPU, medians of runs in turn; ``--table JSON`` prints the tables of such
a document. The executor runs a plan for one rank: copying, merging, recording and checking are in
its time, messages are not; those are measured on four gloo ranks with the links held down.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from dcp_dsl import Sample, Slabs, Spec, as_slabs, block_sparsity
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, build_plan
from dcp_runtime import RunConfig, open_world, run_plan
from dcp_runtime.device_plan import prepare_device
from dcp_runtime.executor import DCPExecutor
from dcp_runtime.kernels.choice import choose_kernel
from dcp_runtime.kernels.kernel import AttentionState, Gradients, QueryRows, accumulator_dtype
from dcp_runtime.link import LinkLimit
from dcp_runtime.loopback import LoopbackTransport, LoopbackWorld

SCHEMA = "dcp.bench_attention/1"
MASKS = {"causal": "causal", "StreamingLLM 64 + 1,024": "streaming(64, 1024)"}
DIRECTIONS = ("forward", "backward")


def main() -> None:
    """Measure and write a JSON document, or print the tables of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--heads", type=int, nargs=2, default=(4, 2), metavar=("Q", "KV"))
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-overlap", action="store_true")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--table", type=Path, metavar="JSON")
    options = parser.parse_args()
    if options.table:
        print(to_tables(json.loads(options.table.read_text())))
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
    document: dict[str, object] = {
        "schema": SCHEMA,
        "machine": machine() | {"device": device_name(options.device)},
        "attention": [
            measure(name, call, tokens, options)
            for tokens in options.tokens
            for name, call in MASKS.items()
        ],
        "prepare": [measure_prepare(name, call) for name, call in MASKS.items()],
        "overlap": [] if options.skip_overlap else measure_overlap(),
    }
    print(to_tables(document))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def measure(name: str, call: str, tokens: int, options: argparse.Namespace) -> dict[str, object]:
    """Time one mask: ours, masked and causal in turn, so that a noisy machine hits all alike."""
    slabs = as_slabs(Spec.from_text("").mask(call).bind(Sample(length=tokens)))
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    like = {"device": options.device, "dtype": dtype}
    q, dout = torch.randn(2, tokens, options.heads[0], options.head_dim, **like)
    kv = torch.randn(tokens, 2, options.heads[1], options.head_dim, **like)
    plan = plan_of(slabs, 1, ModelShape(*options.heads, options.head_dim, q.element_size()))
    calls = {
        "executor": executor_calls(plan, q, kv, dout),
        "kernel": kernel_calls(plan, q, kv, dout),
        "masked": sdpa_calls(q, kv, dout, dense_of(slabs)),
        "causal": sdpa_calls(q, kv, dout, None),
    }
    row: dict[str, object] = {
        "mask": name,
        "tokens": tokens,
        "heads": list(options.heads),
        "head_dim": options.head_dim,
        "dtype": str(dtype),
        "density": slabs.num_pairs / tokens**2,
    }
    for index, what in enumerate(DIRECTIONS):
        row[what] = medians({key: pair[index] for key, pair in calls.items()}, options)
    return row


def plan_of(slabs: Slabs, ranks: int, shape: ModelShape, block: int = 1024) -> Plan:
    """Plan one sequence by zigzag, the layout that every system knows."""
    sparsity = block_sparsity([slabs], block, block)
    cluster = Cluster(devices_per_node=ranks)
    return build_plan(sparsity, shape, cluster, PlanConfig(partitioner="static:zigzag"))


Calls = tuple[Callable[[], object], Callable[[], object]]


def executor_calls(plan: Plan, q: torch.Tensor, kv: torch.Tensor, dout: torch.Tensor) -> Calls:
    """Give forward and backward as layers call them, on one rank."""
    executor = DCPExecutor(transport=LoopbackTransport(LoopbackWorld(1), 0))
    prepared = executor.prepare(plan)
    out, lse = prepared.forward(q, kv)
    return lambda: prepared.forward(q, kv), lambda: prepared.backward(q, kv, out, lse, dout)


def kernel_calls(plan: Plan, q: torch.Tensor, kv: torch.Tensor, dout: torch.Tensor) -> Calls:
    """Give forward and backward of the kernel alone, on the tables of the plan."""
    kernel = choose_kernel(q.dtype, q.device).kernel
    part = prepare_device(plan, 0, kernel.segment_rows)
    tables = [table for _, table in part.forward.steps if table is not None]
    scale, sums = q.shape[-1] ** -0.5, accumulator_dtype(q.dtype)

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
    """Give forward and backward of torch's attention, dense mask or causal."""
    leaves = [x.transpose(0, 1).unsqueeze(0).detach() for x in (q, kv[:, 0], kv[:, 1])]
    for leaf in leaves:
        leaf.requires_grad_()
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, device=q.device, dtype=q.dtype)
        bias.masked_fill_(~mask.to(q.device), -torch.inf)

    def forward() -> torch.Tensor:
        return scaled_dot_product_attention(
            *leaves, attn_mask=bias, is_causal=mask is None, enable_gqa=True
        )

    out = forward()
    upstream = dout.transpose(0, 1).unsqueeze(0)

    def backward() -> object:
        return torch.autograd.grad(out, leaves, upstream, retain_graph=True)

    return forward, backward


def medians(
    calls: dict[str, Callable[[], object]], options: argparse.Namespace
) -> dict[str, dict[str, float | list[float]]]:
    """Warm up once, then time all calls in turn, `repeats` times."""
    is_cpu = options.device == "cpu"
    clock = time.process_time if is_cpu else time.perf_counter  # CPU time: blind to other processes
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(options.repeats + 1):
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
    """Time `prepare_device` of every rank of eight, in CPU seconds of its one thread."""
    slabs = as_slabs(Spec.from_text("").mask(call).bind(Sample(length=tokens)))
    plan = plan_of(slabs, 8, ModelShape(32, 8, 128, 2), 2048)
    times = []
    for _ in range(5):
        for rank in range(8):
            start_s = time.process_time()
            prepare_device(plan, rank, 256)
            times.append(time.process_time() - start_s)
    spread = [min(times), max(times)]
    return {
        "mask": name, "tokens": tokens, "median_s": statistics.median(times), "range_s": spread
    }  # fmt: skip


def measure_overlap(tokens: int = 32_768, ranks: int = 4) -> list[dict[str, object]]:
    """Run causal attention on links as slow as its computation, with overlap and without."""
    slabs = as_slabs(Spec.from_text("").mask("causal").bind(Sample(length=tokens)))
    plan = plan_of(slabs, ranks, ModelShape(1, 1, 64, 4))
    rows: list[dict[str, object]] = []
    with open_world(ranks, timeout_s=300) as world:
        run_plan(plan, RunConfig(ranks, timeout_s=300), world)
        free = run_plan(plan, RunConfig(ranks, timeout_s=300), world)
        # Each rank's messages then take as long as the whole run took on free links.
        limit = LinkLimit(free.sent_bytes / ranks / free.seconds)
        for is_overlapped in (True, False):
            config = RunConfig(ranks, timeout_s=300, link=limit, overlap=is_overlapped)
            result = run_plan(plan, config, world)
            rows.append(
                {
                    "tokens": tokens,
                    "ranks": ranks,
                    "overlap": is_overlapped,
                    "bytes_per_s": limit.bytes_per_s,
                    "free_s": free.seconds,
                    "seconds": result.seconds,
                    "exposed_s": result.exposed_s,
                }
            )
    return rows


def dense_of(slabs: Slabs) -> torch.Tensor:
    """Give the mask as a bool matrix."""
    return torch.from_numpy(slabs.tile(0, slabs.num_tokens, 0, slabs.num_tokens))


def to_tables(document: dict[str, object]) -> str:
    """Write the document as Markdown."""
    attention, overlap = document["attention"], document["overlap"]
    assert isinstance(attention, list), "the schema says so"
    assert isinstance(overlap, list), "the schema says so"
    lines = [
        "| mask | tokens | direction | executor, s | over kernel | masked SDPA | causal SDPA |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in attention:
        for what in DIRECTIONS:
            ours, kernel, masked, causal = (
                row[what][key]["median_s"] for key in ("executor", "kernel", "masked", "causal")
            )
            lines.append(
                f"| {row['mask']} | {row['tokens']:,} | {what} | {ours:.3f} | "
                f"{100 * (ours / kernel - 1):+.0f} % | {masked:.3f} ({masked / ours:.1f}x) | "
                f"{causal:.3f} ({causal / ours:.1f}x) |"
            )
    lines += ["", "| prepare | tokens | median | range |", "|---|---|---|---|"]
    prepare = document["prepare"]
    assert isinstance(prepare, list), "the schema says so"
    for row in prepare:
        low, high = row["range_s"]
        lines.append(
            f"| {row['mask']}, 8 ranks | {row['tokens']:,} | {1e3 * row['median_s']:.1f} ms | "
            f"{1e3 * low:.1f}-{1e3 * high:.1f} ms |"
        )
    if overlap:
        lines += ["", "| 4 gloo ranks, slow links | seconds | exposed |", "|---|---|---|"]
    lines += [
        f"| causal, {row['tokens']:,} tokens, {'overlap' if row['overlap'] else 'no overlap'} | "
        f"{row['seconds']:.2f} | {row['exposed_s']:.2f} s "
        f"({100 * row['exposed_s'] / row['seconds']:.0f} %) |"
        for row in overlap
    ]
    return "\n".join(lines)


def device_name(device: str) -> str:
    """Say what the tensors were on."""
    return torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu"


def machine() -> dict[str, str]:
    """Say where and with what this was measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    return {
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": "1",
        "seed": "0",
        "commit": commit.stdout.strip(),
    }


if __name__ == "__main__":
    main()
