"""What Plotly charts have in common: settings, fonts, axes with one place per device.

Paper and plot are transparent; `assets/style.css` recolours text and grid lines for the light and
the dark theme, so a figure never has to be made twice.
"""

from typing import Any

import plotly.graph_objects as go

from dcp_dashboard.api.palette import NEUTRAL

GRAPH_CONFIG: Any = {  # Any: Dash has a type of its own for it
    "displaylogo": False,
    "displayModeBar": False,
    "plotlyServerURL": "",
    "responsive": True,
    "showSendToCloud": False,
}
"""For every graph: nothing that talks to a cloud, no tool bar."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"

BORDER = {"width": 1, "dash": "dot", "color": NEUTRAL}


def node_borders(num_devices: int, devices_per_node: int) -> list[float]:
    """Give the positions between the last device of a node and the first of the next."""
    return [at - 0.5 for at in range(devices_per_node, num_devices, devices_per_node)]


def device_axis(num_devices: int) -> dict[str, Any]:  # Any: plotly takes texts and numbers
    """Give the settings of an axis with one place per device and a few ticks."""
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, num_devices) if step * 17 > num_devices)
    return {
        "range": [-0.5, num_devices - 0.5], "dtick": step, "tick0": 0, "showgrid": False,
        "zeroline": False, "fixedrange": True,
    }  # fmt: skip


def finish(figure: go.Figure, margin: dict[str, int]) -> None:
    """Give a chart what all have in common: no paper, one font, no dragging."""
    figure.update_annotations(font={"size": 12})
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 11},
        margin=margin,
        bargap=0.18,
        hoverlabel={"font": {"family": FONT, "size": 12}},
        dragmode=False,
    )
