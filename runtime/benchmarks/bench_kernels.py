"""The CPU kernel against torch's attention with a dense mask and with plain causal, in one run.

``python runtime/benchmarks/bench_kernels.py [--tokens 8192] [--json OUT]``; one thread, medians.
Our kernel sees one device that owns all tokens, so gathering, masking and merging are in its time
and communication is not.
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

from dcp_dsl import Sample, Slabs, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime.device_plan import prepare_device
from dcp_runtime.kernels.cpu import CpuKernel
from dcp_runtime.kernels.kernel import AttentionState, Gradients, QueryRows

SPEC = """
mask streaming(sink: tokens = 64, window: tokens = 1k) = causal and (k < sink or q - k < window)
mask whole = causal
"""
MASKS = {"causal": "whole", "streaming 64+1024": "streaming"}


def main() -> None:
    """Measure every mask and print a table, or write a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, nargs=2, default=(8, 2), metavar=("Q", "KV"))
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [measure(name, call, options) for name, call in MASKS.items()]
    document = {"schema": "dcp.bench_kernels/1", "machine": machine(), "rows": rows}
    for row in rows:
        print(row["mask"], f"density {row['density']:.3f}")
        for what in ("forward", "backward"):
            times = row[what]
            print(
                f"  {what:8} cpu kernel {times['kernel']['median_s']:.3f} s, "
                f"masked SDPA {times['masked']['median_s']:.3f} s "
                f"({times['masked']['median_s'] / times['kernel']['median_s']:.1f}x), "
                f"dense causal SDPA {times['causal']['median_s']:.3f} s "
                f"({times['causal']['median_s'] / times['kernel']['median_s']:.1f}x)"
            )
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def measure(name: str, call: str, options: argparse.Namespace) -> dict[str, object]:
    """Time one mask: ours, masked and causal in turn, so that a noisy machine hits all alike."""
    slabs = Spec.from_text(SPEC).mask(call).bind(Sample(length=options.tokens))
    q_heads, kv_heads = options.heads
    q, dout = torch.randn(2, options.tokens, q_heads, options.head_dim)
    kv = torch.randn(options.tokens, 2, kv_heads, options.head_dim)
    dense = dense_of(slabs)
    forward, backward = our_calls(slabs, q, kv, dout, options)
    calls = {
        "kernel": (forward, backward),
        "masked": sdpa_calls(q, kv, dout, dense),
        "causal": sdpa_calls(q, kv, dout, None),
    }
    result: dict[str, object] = {
        "mask": name,
        "tokens": options.tokens,
        "heads": list(options.heads),
        "head_dim": options.head_dim,
        "density": slabs.num_pairs / options.tokens**2,
    }
    for what, index in (("forward", 0), ("backward", 1)):
        result[what] = medians({key: pair[index] for key, pair in calls.items()}, options.repeats)
    return result


def our_calls(
    slabs: Slabs, q: torch.Tensor, kv: torch.Tensor, dout: torch.Tensor, options: argparse.Namespace
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Give forward and backward of the kernel on the tables of a plan for one device."""
    sparsity = block_sparsity([slabs], options.block_size, options.block_size)
    plan = build_plan(
        sparsity,
        ModelShape(q.shape[1], kv.shape[2], q.shape[2], 4),
        Cluster(devices_per_node=1),
        PlanConfig(partitioner="static:contiguous"),
    )
    kernel = CpuKernel()
    part = prepare_device(plan, 0, kernel.segment_rows)
    tables = [table for _, table in part.forward if table is not None]
    scale = q.shape[-1] ** -0.5

    def forward() -> AttentionState:
        state = AttentionState.empty(len(q), q.shape[1], q.shape[2], torch.float32)
        for table in tables:
            kernel.forward(q, kv, table, scale, state)
        return state

    state = forward()
    rows = QueryRows(q, dout, state.lse, (dout * state.out).sum(-1))

    def backward() -> Gradients:
        sums = Gradients(torch.zeros_like(q), torch.zeros_like(kv))
        for table in tables:
            kernel.backward(rows, kv, table, scale, sums)
        return sums

    return forward, backward


def sdpa_calls(
    q: torch.Tensor, kv: torch.Tensor, dout: torch.Tensor, mask: torch.Tensor | None
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Give forward and backward of torch's attention, dense mask or causal."""
    leaves = [x.transpose(0, 1).unsqueeze(0).detach() for x in (q, kv[:, 0], kv[:, 1])]
    for leaf in leaves:
        leaf.requires_grad_()
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)

    def forward() -> torch.Tensor:
        return scaled_dot_product_attention(
            *leaves, attn_mask=bias, is_causal=mask is None, enable_gqa=True
        )

    out = forward()
    upstream = dout.transpose(0, 1).unsqueeze(0)

    def backward() -> object:
        return torch.autograd.grad(out, leaves, upstream, retain_graph=True)

    return forward, backward


def dense_of(slabs: Slabs) -> torch.Tensor:
    """Fill a bool matrix from slabs, row by row."""
    dense = torch.zeros(slabs.num_tokens, slabs.num_tokens, dtype=torch.bool)
    for q0, q1, k0, k1, a, b in slabs.table().tolist():
        for q in range(q0, q1):
            dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)] = True
    return dense


def medians(
    calls: dict[str, Callable[[], object]], repeats: int
) -> dict[str, dict[str, float | list[float]]]:
    """Warm up once, then time all calls in turn, `repeats` times."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start_s = time.process_time()  # one thread: CPU time, blind to other processes
            call()
            times[name].append(time.process_time() - start_s)
    return {
        name: {"median_s": statistics.median(t), "range_s": [min(t), max(t)]}
        for name, t in times.items()
    }


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
