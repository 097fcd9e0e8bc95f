"""Measure the host's work for a layer: seconds per direction, kernel call and message.

    python runtime/benchmarks/bench_host.py --json OUT [--recorded h100-dgx:4x8 ...]
    python runtime/benchmarks/bench_host.py --table OUT

The ranks of plans of different sizes run one after the other, with tensors of one head of one
element, a kernel that computes nothing and a transport that sends nothing, so what is left is the
host's work in Python and torch. A layer is forward and backward, without events; the lower quartile
of its repeats counts. The CPU seconds of all ranks are fitted to ``directions * pass_s + calls *
call_s + messages * message_s``; a message is counted at both ends. ``off`` is the mean error of the
fit. `prepare` is `DCPExecutor.prepare` of a rank, beside ranks on threads that take turns. The
command adds, for `--recorded` clusters, plans of recorded batches: the layer of the mean rank and
of the busiest. This CPU is not that of a machine with GPUs; calls of CUDA and NCCL are not in it.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "planner" / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recorded_masks import sequences_of
from recording import markdown, report

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, Direction, ModelShape, Plan, PlanConfig, build_plan
from dcp_planner.model.cluster_file import find_cluster
from dcp_planner.model.cuts import choose_block_size, cut_blocks
from dcp_planner.tables import Attention, Reduction
from dcp_runtime.execute.attention import DCPAttn
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.prepared_plan import PreparedBatch, PreparedPlan
from dcp_runtime.kernels.kernel import Kernel
from dcp_runtime.launch.calibration import fit_nonnegative
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld
from dcp_runtime.transport.transport import Parcel

LAYERS = 25
HEADER = (
    "plan", "kernel calls", "blocks", "messages", "a layer, CPU us: mean rank", "busiest"
)  # fmt: skip
WORKLOADS = Path(__file__).resolve().parents[2] / "planner" / "benchmarks/data/workloads.json"
Row: TypeAlias = dict[str, Any]  # one rank of a plan; `Any`: numbers and a text
SIZES = (
    (1, 1024, 2), (2, 256, 2), (2, 1024, 3), (4, 1024, 3), (4, 2048, 5), (8, 2048, 4), (8, 4096, 8),
)  # fmt: skip
"""Devices, tokens and divisions of each plan; blocks of 64 tokens."""


class NoKernel(Kernel):
    """Computes nothing."""

    name = "none"

    def forward(self, *_: Any) -> None:  # Any: the arguments of any kernel
        """Do nothing."""

    def backward(self, *_: Any) -> None:  # Any: as above
        """Do nothing."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the document."""
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)  # backward runs on the thread that is timed
    rows = [row for size in SIZES for row in measure(*size)]
    rows += [row for name in options.recorded for row in measure_recorded(name)]
    return {"schema": "dcp.bench_host/3", "rows": rows, "fit": fit(rows)}


def measure(devices: int, tokens: int, divisions: int) -> list[Row]:
    """Count and time the ranks of one plan."""
    mask = Spec.from_text("mask m = causal").mask("m").bind(Sample(length=tokens))
    config = PlanConfig(partitioner="static:zigzag", divisions=divisions)
    sparsity = block_sparsity([mask], 64, 64)
    plan = build_plan(sparsity, ModelShape(1, 1, 1, 4), Cluster(1, devices), config)
    prepared_s = max(LoopbackWorld(devices, lockstep=True).run(partial(prepare_s, plan=plan)))
    return rows_of(plan, plan=f"{devices} ranks, {tokens:,} tokens", prepare_s=prepared_s)


def measure_recorded(cluster_name: str) -> list[Row]:
    """Count and time the ranks of recorded batches, one of each mask, on their plans."""
    cluster, rows = find_cluster(cluster_name), list[Row]()
    for workload in json.loads(WORKLOADS.read_text())["workloads"][:4]:
        masks = sequences_of(workload)
        sparsity = cut_blocks(masks, choose_block_size(masks, cluster))
        plan = build_plan(sparsity, ModelShape(8, 2, 128), cluster, PlanConfig(head_groups=1))
        plan = replace(plan, shape=ModelShape(1, 1, 1, 4))
        rows += rows_of(plan, plan=f"{cluster_name}, {workload['id']}")
    return rows


def rows_of(planned: Plan, **more: Any) -> list[Row]:  # Any: of a row
    """Count and time a layer of every rank."""
    return [
        {**counts(planned, rank), **more, "directions": 2, "seconds": layer_s(planned, rank)}
        for rank in range(planned.num_devices)
    ]


def prepare_s(transport: LoopbackTransport, plan: Plan) -> float:
    """Return the CPU seconds of making a plan ready on one rank."""
    executor = DCPExecutor(transport=transport, kernel="reference")
    start = time.thread_time()
    executor.prepare(plan)
    return time.thread_time() - start


class SilentTransport(LoopbackTransport):
    """Sends nothing; every message has arrived when it starts."""

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Note that all have arrived."""
        for parcel in parcels:
            parcel.finish()

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Return at once."""


def layer_s(plan: Plan, rank: int) -> float:
    """Return the CPU seconds of a layer of one rank."""
    part = prepare_device(plan, rank, 128)
    transport = SilentTransport(LoopbackWorld(1), 0)
    batch = PreparedBatch("benchmark", ["m"], [], is_traced=False)
    prepared = PreparedPlan(part, transport, batch, "reference", False, None)
    q = torch.zeros(part.num_local, 1, 1, requires_grad=True)
    kv = torch.zeros(part.num_local, 2, 1, 1, requires_grad=True)
    prepared._check_tensors(q.detach(), kv.detach())
    assert prepared._engine is not None
    object.__setattr__(prepared._engine, "kernel", NoKernel())
    seconds, dout = [], torch.zeros(part.num_local, 1, 1)
    for _ in range(LAYERS):
        start = time.thread_time()
        torch.autograd.backward(DCPAttn.apply(prepared, q, kv), dout)
        seconds.append(time.thread_time() - start)
    return statistics.quantiles(seconds, n=4)[0]


def counts(plan: Plan, rank: int) -> dict[str, int]:
    """Count kernel calls, messages and blocks of messages of one rank in both directions."""
    calls = messages = blocks = 0
    part = prepare_device(plan, rank, 128)
    for step, _, bundles in (*part.forward.steps, *part.backward.steps):
        calls += isinstance(step, Attention) or (
            isinstance(step, Reduction) and bool(step.transfers)
        )
        messages += len(bundles)
        blocks += sum(len(bundle.transfers) for bundle in bundles)
    return {"calls": calls, "messages": messages, "blocks": blocks}


def fit(rows: list[Row]) -> dict[str, float]:
    """Fit the three constants to the seconds of all ranks."""
    terms = np.array([[r["directions"], r["calls"], r["messages"]] for r in rows])
    seconds = np.array([r["seconds"] for r in rows])
    found = fit_nonnegative(terms, seconds)
    off = float(np.abs(terms @ found / seconds - 1).mean())
    return {**dict(zip(("pass_s", "call_s", "message_s"), found.tolist(), strict=True)), "off": off}


def table_of(document: dict[str, Any]) -> str:  # Any: JSON values
    """Write a line per plan, then the fit."""
    lines = []
    for plan, ranks in groupby(document["rows"], lambda row: row["plan"]):
        rows = list(ranks)
        mean = [statistics.mean(r[key] for r in rows) for key in ("calls", "blocks", "messages")]
        spent = [1e6 * r["seconds"] for r in rows]
        cells = (*mean, statistics.mean(spent), max(spent))
        lines.append([plan, *(f"{x:.0f}" for x in cells)])
    f, prepared = document["fit"], [r["prepare_s"] for r in document["rows"] if "prepare_s" in r]
    return (
        f"{markdown(HEADER, lines)}\n\n"
        f"{f['pass_s'] * 1e6:.0f} us a direction, {f['call_s'] * 1e6:.0f} us a kernel call, "
        f"{f['message_s'] * 1e6:.0f} us an end of a message; off by {f['off']:.0%}. `prepare`: "
        f"{min(prepared) * 1e3:.1f} to {max(prepared) * 1e3:.1f} CPU ms."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", action="append", default=[], help="cluster of batches")
    report(parser, run, table_of)
