"""Measure the host's work for a layer: seconds per direction, kernel call and message.

    python runtime/benchmarks/bench_host.py --json OUT [--recorded h100-dgx:4x8 ...]
    python runtime/benchmarks/bench_host.py --table OUT

Plans of different sizes run on threads that take turns (loopback), with tensors of one head of one
element and a kernel that computes nothing, so what is left is the host's work. A layer is forward
and backward; the median of several layers behind the first counts, without events. CPU seconds of
all ranks are fitted to ``directions * pass_s + calls * call_s + messages * message_s``; a message
is counted at both ends. ``off`` is the mean error of the fit. The time of a table is that of
`DCPExecutor.prepare`, all ranks. `--recorded` adds plans of recorded batches: the layer of the mean
rank and of the busiest. This CPU is not that of a machine with GPUs, and CUDA's own calls are not
in it.
"""

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

PLANNER = Path(__file__).resolve().parents[2] / "planner" / "benchmarks"
sys.path.insert(0, str(PLANNER))
from recorded_masks import sequences_of

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, build_plan
from dcp_planner.model.cluster_file import find_cluster
from dcp_planner.model.cuts import choose_block_size, cut_blocks
from dcp_planner.tables import Attention, Reduction
from dcp_runtime.execute.attention import DCPAttn
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.kernels.kernel import Kernel
from dcp_runtime.launch.calibration import fit_nonnegative
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

LAYERS = 7
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
@click.option("--recorded", multiple=True, help="Cluster of recorded batches; may be repeated.")
@click.option("--table", type=click.Path(exists=True), help="Print the table of such a file.")
def main(out: str | None, recorded: tuple[str, ...], table: str | None) -> None:
    """Run the benchmark, or print the table of its results."""
    if table is not None:
        click.echo(table_of(json.loads(Path(table).read_text())))
        return
    torch.set_num_threads(1)
    rows = [measure(*size) for size in SIZES]
    document = {
        "schema": "dcp.bench_host/2",
        "rows": rows,
        "fit": fit(rows),
        "recorded": [row for name in recorded for row in measure_recorded(name)],
    }
    if out is not None:
        Path(out).write_text(json.dumps(document, indent=1) + "\n")
    click.echo(table_of(document))


def measure(devices: int, tokens: int, divisions: int) -> dict[str, float]:
    """Count and time one plan."""
    mask = Spec.from_text("mask m = causal").mask("m").bind(Sample(length=tokens))
    config = PlanConfig(partitioner="static:zigzag", divisions=divisions)
    sparsity = block_sparsity([mask], 64, 64)
    plan = build_plan(sparsity, ModelShape(1, 1, 1, 4), Cluster(1, devices), config)
    seconds, prepared_s = layers_of(plan)
    return {
        **counts(plan), "directions": 2 * devices, "seconds": sum(seconds),
        "prepare_s": max(prepared_s),
    }  # fmt: skip


def measure_recorded(cluster_name: str) -> list[dict[str, Any]]:  # Any: JSON values
    """Time a layer of recorded batches, one of each mask, on their plans for a cluster."""
    cluster, rows = find_cluster(cluster_name), []
    for workload in json.loads((PLANNER / "data" / "workloads.json").read_text())["workloads"][:4]:
        masks = sequences_of(workload)
        sparsity = cut_blocks(masks, choose_block_size(masks, cluster))
        plan = build_plan(sparsity, ModelShape(8, 2, 128), cluster, PlanConfig(head_groups=1))
        seconds, _ = layers_of(replace(plan, shape=ModelShape(1, 1, 1, 4)))
        busiest = max(seconds)
        mean = statistics.mean(seconds)
        rows.append(
            {"cluster": cluster_name, "workload": workload["id"], **counts(plan), "mean_s": mean,
             "busiest_s": busiest}
        )  # fmt: skip
    return rows


def layers_of(plan: Plan) -> tuple[list[float], list[float]]:
    """Return the CPU seconds of a layer, and of `prepare`, of every rank."""
    world = LoopbackWorld(plan.num_devices, lockstep=True)
    layers, prepared = zip(*world.run(lambda transport: run(transport, plan)), strict=True)
    return list(layers), list(prepared)


def run(transport: LoopbackTransport, plan: Plan) -> tuple[float, float]:
    """Run layers on one rank; return the CPU seconds of one, and of making the plan ready."""
    torch.autograd.set_multithreading_enabled(False)  # a rank's backward runs on its own thread
    executor = DCPExecutor(transport=transport, kernel="reference")
    start = time.thread_time()
    prepared = executor.prepare(plan)
    prepared_s = time.thread_time() - start
    prepared.recorder.is_on = False  # as behind the first batches of a run
    q = torch.zeros(prepared.part.num_local, 1, 1, requires_grad=True)
    kv = torch.zeros(prepared.part.num_local, 2, 1, 1, requires_grad=True)
    prepared._check_tensors(q.detach(), kv.detach())
    assert prepared._engine is not None
    object.__setattr__(prepared._engine, "kernel", NoKernel())
    seconds, dout = [], torch.zeros(prepared.part.num_local, 1, 1)
    for _ in range(LAYERS):
        start = time.thread_time()
        torch.autograd.backward(DCPAttn.apply(prepared, q, kv), dout)
        seconds.append(time.thread_time() - start)
    return statistics.median(seconds[2:]), prepared_s


def counts(plan: Plan) -> dict[str, float]:
    """Count kernel calls, ends of messages and of blocks, all devices and both directions."""
    calls = messages = blocks = 0
    for device in range(plan.num_devices):
        part = prepare_device(plan, device, 128)
        for step, _, bundles in (*part.forward.steps, *part.backward.steps):
            calls += isinstance(step, Attention) or (
                isinstance(step, Reduction) and bool(step.transfers)
            )
            messages += len(bundles)
            blocks += sum(len(bundle.transfers) for bundle in bundles)
    return {"calls": calls, "messages": messages, "blocks": blocks}


def fit(rows: list[dict[str, float]]) -> dict[str, float]:
    """Fit the three constants to the seconds of all plans."""
    terms = np.array([[r["directions"], r["calls"], r["messages"]] for r in rows])
    seconds = np.array([r["seconds"] for r in rows])
    found = fit_nonnegative(terms, seconds)
    off = float(np.abs(terms @ found / seconds - 1).mean())
    return {**dict(zip(("pass_s", "call_s", "message_s"), found.tolist(), strict=True)), "off": off}


def table_of(document: dict[str, Any]) -> str:  # Any: JSON values
    """Write a line per plan, then the fit."""
    lines = ["| directions | kernel calls | blocks | messages | CPU ms | `prepare`, CPU ms |"]
    lines.append("|---:|---:|---:|---:|---:|---:|")
    lines += [
        f"| {r['directions']:.0f} | {r['calls']:.0f} | {r['blocks']:.0f} | {r['messages']:.0f} "
        f"| {r['seconds'] * 1e3:.2f} | {r['prepare_s'] * 1e3:.2f} |"
        for r in document["rows"]
    ]
    f = document["fit"]
    lines += ["", f"{f['pass_s'] * 1e6:.0f} us a direction, {f['call_s'] * 1e6:.0f} us a kernel "
              f"call, {f['message_s'] * 1e6:.0f} us a message; off by {f['off']:.0%}."]  # fmt: skip
    if document["recorded"]:
        lines += ["", "| plan | blocks | messages | a layer, CPU us: mean rank | busiest |"]
        lines.append("|---|---:|---:|---:|---:|")
    lines += [
        f"| {r['cluster']}, {r['workload']} | {r['blocks']} | {r['messages']} "
        f"| {r['mean_s'] * 1e6:.0f} | {r['busiest_s'] * 1e6:.0f} |"
        for r in document["recorded"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
