"""The command `dcpm simulate`."""

import re

import click

from dcp_planner.commands.output import print_json, say


@click.command()
@click.argument("plan", type=click.Path())
@click.option(
    "--cluster",
    metavar="NxD|PRESET|FILE",
    help="Constants to predict with, on the plan's own nodes and devices.  [default: the plan's]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def simulate(plan: str, cluster: str | None, as_json: bool) -> None:
    """Predict how long PLAN, a .dcpplan file, takes on its cluster, device by device.

    `--cluster` gives other constants, for example of another machine or of `dcpm calibrate`.
    """
    from dataclasses import replace

    from dcp_planner.commands.tables import show_simulation
    from dcp_planner.model.cluster_file import find_cluster
    from dcp_planner.plan.file import read_plan
    from dcp_planner.simulation.simulator import simulate as run_simulation
    from dcp_planner.simulation.trace import measure_trace
    from dcp_planner.tables.memory import measure_memory
    from dcp_planner.tables.metrics import measure
    from dcp_planner.tables.programs import digest

    made = read_plan(plan).plan
    if cluster is not None:
        own = made.cluster
        constants = find_cluster(cluster)
        asked = re.search(r"(?:^|:)(\d+)x(\d+)$", cluster)
        if asked is not None and (int(asked[1]), int(asked[2])) != (
            own.nodes,
            own.devices_per_node,
        ):
            say(
                f"note: the plan is for {own.nodes}x{own.devices_per_node} devices and stays so; "
                f"only the constants of {cluster} are taken"
            )
        made = replace(
            made,
            cluster=replace(
                constants,
                nodes=own.nodes,
                devices_per_node=own.devices_per_node,
                devices=own.devices,
            ),
        )
    timings = measure_trace(run_simulation(made), made.num_devices)
    metrics, memory = measure(made), measure_memory(made)
    if not as_json:
        show_simulation(made, metrics, timings)
        return
    print_json(
        {
            "schema": "dcp.simulate/1",
            "file": plan,
            "digest": digest(made),
            "cluster": made.cluster.to_json(),
            "predicted": timings.to_json(),
            "metrics": metrics.to_json(),
            "memory": {
                "forward_bytes": memory.forward.tolist(),
                "backward_bytes": memory.backward.tolist(),
                "saved_bytes": memory.saved.tolist(),
            },
        }
    )
