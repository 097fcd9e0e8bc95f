"""Measure the host's work for a layer: seconds per direction, kernel call and message.

    python runtime/benchmarks/bench_host.py --json OUT
    python runtime/benchmarks/bench_host.py --table OUT

Plans of different sizes run on threads that take turns (loopback), with tensors of one head of one
element and a kernel that computes nothing, so what is left is the host's work. CPU seconds of all
ranks are fitted to ``directions * pass_s + calls * call_s + messages * message_s``; a message is
counted at both ends. ``off`` is the mean error of the fit. The time of a table is that of
`DCPExecutor.prepare`, all ranks. This CPU is not that of a machine with GPUs, and CUDA's own calls
are not in it.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, build_plan
from dcp_planner.tables import Attention, CommLaunch, Reduction
from dcp_runtime.execute.attention import DCPAttn
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.kernels.kernel import Kernel
from dcp_runtime.launch.calibration import fit_nonnegative
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

REPEATS = 5
SIZES = ((2, 256, 2), (2, 1024, 3), (4, 1024, 3), (4, 2048, 5), (8, 2048, 4), (8, 4096, 8))
"""Devices, tokens and divisions of each plan; blocks of 64 tokens."""


class NoKernel(Kernel):
    """Computes nothing."""

    name = "none"

    def forward(self, *_: Any) -> None:  # Any: the arguments of any kernel
        """Do nothing."""

    def backward(self, *_: Any) -> None:  # Any: as above
        """Do nothing."""


@click.command()
@click.option("--json", "out", type=click.Path(dir_okay=False), help="File to write.")
@click.option("--table", type=click.Path(exists=True), help="Print the table of such a file.")
def main(out: str | None, table: str | None) -> None:
    """Run the benchmark, or print the table of its results."""
    if table is not None:
        click.echo(table_of(json.loads(Path(table).read_text())))
        return
    torch.set_num_threads(1)
    rows = [measure(*size) for size in SIZES]
    document = {"schema": "dcp.bench_host/1", "rows": rows, "fit": fit(rows)}
    if out is not None:
        Path(out).write_text(json.dumps(document, indent=1) + "\n")
    click.echo(table_of(document))


def measure(devices: int, tokens: int, divisions: int) -> dict[str, float]:
    """Count and time one plan."""
    mask = Spec.from_text("mask m = causal").mask("m").bind(Sample(length=tokens))
    config = PlanConfig(partitioner="static:zigzag", divisions=divisions)
    sparsity = block_sparsity([mask], 64, 64)
    plan = build_plan(sparsity, ModelShape(1, 1, 1, 4), Cluster(1, devices), config)
    prepared_s, seconds = [], []
    for _ in range(REPEATS):
        world = LoopbackWorld(devices, lockstep=True)
        prepared_s.append(max(world.run(lambda transport: run(transport, plan, seconds))))
    return {
        **counts(plan), "directions": 2 * devices, "prepare_s": statistics.median(prepared_s),
        "seconds": statistics.median(
            sum(seconds[i : i + devices]) for i in range(0, len(seconds), devices)
        ),
    }  # fmt: skip


def run(transport: LoopbackTransport, plan: Plan, seconds: list[float]) -> float:
    """Run one layer on one rank; add its CPU seconds, return those of making the plan ready."""
    torch.autograd.set_multithreading_enabled(False)  # a rank's backward runs on its own thread
    executor = DCPExecutor(transport=transport, kernel="reference")
    start = time.thread_time()
    prepared = executor.prepare(plan)
    prepared_s = time.thread_time() - start
    q = torch.zeros(prepared.part.num_local, 1, 1, requires_grad=True)
    kv = torch.zeros(prepared.part.num_local, 2, 1, 1, requires_grad=True)
    prepared._check_tensors(q.detach(), kv.detach())
    assert prepared._engine is not None
    object.__setattr__(prepared._engine, "kernel", NoKernel())
    start = time.thread_time()
    out = DCPAttn.apply(prepared, q, kv)
    torch.autograd.backward(out, torch.zeros_like(out))
    seconds.append(time.thread_time() - start)
    return prepared_s


def counts(plan: Plan) -> dict[str, float]:
    """Count kernel calls and ends of messages, all devices and both directions."""
    calls = messages = 0
    for programs in (plan.forward, plan.backward):
        for program in programs:
            for step in program.instructions:
                calls += isinstance(step, Attention) or (
                    isinstance(step, Reduction) and bool(step.transfers)
                )
                messages += len(step.transfers) if isinstance(step, CommLaunch) else 0
    return {"calls": calls, "messages": messages}


def fit(rows: list[dict[str, float]]) -> dict[str, float]:
    """Fit the three constants to the seconds of all plans."""
    terms = np.array([[r["directions"], r["calls"], r["messages"]] for r in rows])
    seconds = np.array([r["seconds"] for r in rows])
    found = fit_nonnegative(terms, seconds)
    off = float(np.abs(terms @ found / seconds - 1).mean())
    return {**dict(zip(("pass_s", "call_s", "message_s"), found.tolist(), strict=True)), "off": off}


def table_of(document: dict[str, Any]) -> str:  # Any: JSON values
    """Write a line per plan, then the fit."""
    lines = ["| directions | kernel calls | messages | CPU ms | tables ready, CPU ms a rank |"]
    lines.append("|---:|---:|---:|---:|---:|")
    lines += [
        f"| {r['directions']:.0f} | {r['calls']:.0f} | {r['messages']:.0f} "
        f"| {r['seconds'] * 1e3:.2f} | {r['prepare_s'] * 1e3:.2f} |"
        for r in document["rows"]
    ]
    f = document["fit"]
    lines += ["", f"{f['pass_s'] * 1e6:.0f} us a direction, {f['call_s'] * 1e6:.0f} us a kernel "
              f"call, {f['message_s'] * 1e6:.0f} us a message; off by {f['off']:.0%}."]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
