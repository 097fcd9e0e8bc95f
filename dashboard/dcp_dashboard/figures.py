"""Plotly charts: pure functions from numbers to a figure, without ids, callbacks or themes.

Paper and plot are transparent; `assets/style.css` recolours text and grid lines for the light and
the dark theme, so a figure never has to be made twice.
"""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from dcp_dashboard.palette import KIND_COLOURS, NEUTRAL
from dcp_dashboard.quantities import count, ratio, size
from dcp_dashboard.summary import DeviceTotals, imbalance

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


def balance_figure(totals: DeviceTotals, devices_per_node: int) -> go.Figure:
    """Draw computed pairs, owned tokens, bytes sent and received per device, one row each.

    Each row says its max/mean and has a line at the mean; dotted lines separate nodes.
    """
    rows = (
        ("Computed pairs", totals.pairs, KIND_COLOURS["attention"], count),
        ("Tokens owned", totals.tokens, NEUTRAL, count),
        ("Bytes sent", totals.sent_bytes, KIND_COLOURS["send"], size),
        ("Bytes received", totals.received_bytes, KIND_COLOURS["receive"], size),
    )
    figure = make_subplots(rows=len(rows), cols=1, shared_xaxes=True, vertical_spacing=0.09)
    devices = np.arange(len(totals.tokens))
    for row, (title, values, colour, text) in enumerate(rows, start=1):
        _add_bars(figure, row, devices, values, colour, [f"{title}: {text(v)}" for v in values])
        _label_row(figure, row, title, values, text(float(values.mean()) if len(values) else 0))
    lines = [
        {
            "x0": x,
            "x1": x,
            "y0": 0,
            "y1": 1,
            "xref": f"x{n}",
            "yref": f"y{n} domain",
            "line": BORDER,
        }
        for x in node_borders(len(devices), devices_per_node)
        for n in ("", "2", "3", "4")
    ]
    figure.update_layout(shapes=[*figure.layout.shapes, *lines])
    figure.update_xaxes(**device_axis(len(devices)))
    figure.update_xaxes(title_text="device", title_standoff=4, row=len(rows), col=1)
    figure.update_yaxes(
        nticks=3, zeroline=False, fixedrange=True, tickformat="~s", rangemode="tozero"
    )
    finish(figure, {"l": 44, "r": 8, "t": 22, "b": 34})
    return figure


def traffic_figure(totals: DeviceTotals, devices_per_node: int) -> go.Figure:
    """Draw the bytes each device (row) sends to each other device (column), empty where none."""
    traffic = totals.traffic_bytes
    shown = np.where(traffic > 0, traffic.astype(float), np.nan)
    red, green, blue = (int(KIND_COLOURS["send"][i : i + 2], 16) for i in (1, 3, 5))
    scale = [[0.0, f"rgba({red},{green},{blue},0.10)"], [1.0, f"rgba({red},{green},{blue},1)"]]
    figure = go.Figure(
        go.Heatmap(
            z=shown,
            customdata=[[size(v) if v else "" for v in row] for row in traffic.tolist()],
            hovertemplate="device %{y} sends device %{x}<br>%{customdata}<extra></extra>",
            hoverongaps=False,
            colorscale=scale,
            zmin=0,
            zmax=int(traffic.max(initial=1)),
            xgap=1,
            ygap=1,
            colorbar={
                "thickness": 8, "outlinewidth": 0, "ticksuffix": "B", "tickformat": "~s",
                "nticks": 5, "len": 1.0, "x": 1.02, "xpad": 4,
            },
        )
    )  # fmt: skip
    borders = node_borders(len(traffic), devices_per_node)
    span = {"x0": -0.5, "x1": len(traffic) - 0.5, "y0": -0.5, "y1": len(traffic) - 0.5}
    figure.update_layout(
        shapes=[span | {"x0": at, "x1": at, "line": BORDER} for at in borders]
        + [span | {"y0": at, "y1": at, "line": BORDER} for at in borders]
    )
    axis = device_axis(len(traffic)) | {"constrain": "domain", "title_standoff": 4}
    figure.update_xaxes(title_text="to device", **axis)
    figure.update_yaxes(
        title_text="from device", scaleanchor="x", **axis | {"range": axis["range"][::-1]}
    )
    finish(figure, {"l": 44, "r": 8, "t": 8, "b": 34})
    return figure


def _add_bars(
    figure: go.Figure,
    row: int,
    devices: NDArray[np.int64],
    values: NDArray[np.int64],
    colour: str,
    hover: list[str],
) -> None:
    figure.add_trace(
        go.Bar(
            x=devices, y=values, marker={"color": colour, "line": {"width": 0}}, customdata=hover,
            hovertemplate="device %{x}<br>%{customdata}<extra></extra>", showlegend=False,
        ),
        row=row, col=1,
    )  # fmt: skip
    if len(values):
        figure.add_hline(
            float(values.mean()),
            row=row,
            col=1,
            line={"width": 1, "color": NEUTRAL, "dash": "dash"},
        )


def _label_row(
    figure: go.Figure, row: int, title: str, values: NDArray[np.int64], mean: str
) -> None:
    axis = "" if row == 1 else str(row)
    place: dict[str, Any] = {  # Any: plotly takes texts and numbers
        "xref": f"x{axis} domain", "yref": f"y{axis} domain", "y": 1.0, "yanchor": "bottom",
        "showarrow": False, "yshift": 2,
    }  # fmt: skip
    figure.add_annotation(text=f"<b>{title}</b>", x=0, xanchor="left", **place)
    claim = f"max/mean <b>{ratio(imbalance(values))}</b> · mean {mean}"
    figure.add_annotation(text=claim, x=1, xanchor="right", **place)


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
