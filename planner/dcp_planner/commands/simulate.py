"""The command `dcpm simulate`."""

import re
from typing import TYPE_CHECKING

import click

from dcp_planner.commands.output import print_json, say

if TYPE_CHECKING:
    from dcp_planner.model.cluster import Cluster
    from dcp_planner.simulation.trace import Trace


@click.command()
@click.argument("plan", type=click.Path())
@click.option(
    "--cluster",
    metavar="NxD|PRESET|FILE",
    help="Constants for the prediction; the plan keeps its devices.  [default: the plan's]",
)
@click.option(
    "--measured",
    type=click.Path(),
    metavar="TRACE",
    help="Compare with this run of PLAN, a file from `dcpm run PLAN --trace TRACE`.",
)
@click.option(
    "--single", is_flag=True,
    help="Predict one layer alone, whose hosts start with it, instead of one in a stack of layers.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def simulate(
    plan: str, cluster: str | None, measured: str | None, single: bool, as_json: bool
) -> None:
    """Predict the time of PLAN, a .dcpplan file, on its cluster, device by device.

    The time is that of a layer in a stack of equal layers: on GPUs hosts queue work ahead of their
    devices, so the slower of the two decides. `--single` predicts a layer that no other precedes.
    `--cluster` sets other constants, for example those of another machine or from `dcpm calibrate`.
    `--measured` shows predicted and measured times by class of work, the constant of the cluster
    that explains each difference, and a better value for this constant.
    """
    from dataclasses import replace

    from dcp_planner.causes.constants import compare_with_run
    from dcp_planner.commands.tables import show_run, show_simulation
    from dcp_planner.plan.file import read_plan
    from dcp_planner.simulation.simulator import clocks_of
    from dcp_planner.simulation.simulator import simulate as run_simulation
    from dcp_planner.simulation.trace import measure_trace
    from dcp_planner.tables.metrics import measure, measure_memory
    from dcp_planner.tables.programs import digest

    made = read_plan(plan).plan
    # Before the constants change: the digest covers them, and a run keeps those of its plan.
    recorded = None if measured is None else _read_run(measured, plan, digest(made))
    if cluster is not None:
        made = replace(made, cluster=_with_constants(made.cluster, cluster))
    if single:
        made = replace(made, cluster=replace(made.cluster, host_runs_ahead=False))
    run = None if recorded is None else compare_with_run(made, recorded)
    timings = measure_trace(run_simulation(made), made.num_devices)
    metrics, memory = measure(made), measure_memory(made)
    if not as_json:
        if run is None:
            show_simulation(made, metrics, timings)
        else:
            show_run(run)
        return
    print_json(
        {
            "schema": "dcp.simulate/1",
            "file": plan,
            "digest": digest(made),
            "cluster": made.cluster.to_json(),
            "predicted": timings.to_json(),
            "clocks": {name: one._asdict() for name, one in clocks_of(made).items()},
            "metrics": metrics.to_json(),
            "memory": {
                "forward_bytes": memory.forward.tolist(),
                "backward_bytes": memory.backward.tolist(),
                "saved_bytes": memory.saved.tolist(),
            },
            **({} if run is None else {"measured": run.to_json()}),
        }
    )


def _with_constants(own: "Cluster", name: str) -> "Cluster":
    """Return the constants of a named cluster for the plan's own nodes and devices."""
    from dataclasses import replace

    from dcp_planner.model.cluster_file import find_cluster

    # A plan names its devices, so another size in `h100-dgx:8x8` or `8x8` cannot be obeyed.
    size = own.nodes, own.devices_per_node
    asked = re.search(r"(?:^|:)(\d+)x(\d+)$", name)
    if asked is not None and (int(asked[1]), int(asked[2])) != size:
        say(
            f"note: the plan stays on {size[0]}x{size[1]} devices; only the constants of {name} "
            "are used"
        )
    return replace(find_cluster(name), nodes=size[0], devices_per_node=size[1], devices=own.devices)


def _read_run(path: str, plan: str, expected: str) -> "Trace":
    """Read the measured trace of a plan file with the expected digest."""
    from dcp_planner.errors import PlanError
    from dcp_planner.plan.file import read_plan
    from dcp_planner.tables.programs import digest

    found = read_plan(path)
    if digest(found.plan) != expected:
        raise PlanError(f"{path} is a run of another plan; record one: dcpm run {plan} --trace OUT")
    for trace in found.traces:
        if trace.source == "measured":
            return trace
    raise PlanError(f"{path} holds no run; record one: dcpm run {plan} --trace {path}")
