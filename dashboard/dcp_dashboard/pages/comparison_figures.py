"""Plotly charts of a comparison: what B has more or less of than A, per device and per link."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from dcp_dashboard.api.palette import NEUTRAL
from dcp_dashboard.facts.comparison import Deltas
from dcp_dashboard.facts.quantities import signed, size
from dcp_dashboard.pages.figures import BORDER, device_axis, finish, node_borders

LESS, MORE = "#0072b2", "#d55e00"
"""Blue: less in B, vermillion: more in B (Okabe & Ito); the side of the zero line says so too."""


def deltas_figure(deltas: Sequence[Deltas], devices_per_node: int) -> go.Figure:
    """Draw B minus A per device, one row for each quantity; up is more in B."""
    figure = make_subplots(
        rows=len(deltas), cols=1, shared_xaxes=True, vertical_spacing=0.4 / len(deltas)
    )
    lines = []
    for row, delta in enumerate(deltas, start=1):
        values, axis = delta.difference, "" if row == 1 else str(row)
        figure.add_trace(
            go.Bar(
                x=np.arange(len(values)),
                y=values,
                marker={"color": [MORE if v > 0 else LESS for v in values], "line": {"width": 0}},
                customdata=[
                    f"{delta.heading}: A {delta.text(a)}, B {delta.text(b)}, "
                    f"{signed(b - a, delta.text)}"
                    for a, b in zip(delta.first, delta.second, strict=True)
                ],
                hovertemplate="device %{x}<br>%{customdata}<extra></extra>",
                showlegend=False,
            ),
            row=row, col=1,
        )  # fmt: skip
        _label(figure, axis, delta)
        lines += [
            {"x0": x, "x1": x, "y0": 0, "y1": 1, "xref": f"x{axis}", "yref": f"y{axis} domain",
             "line": BORDER}
            for x in node_borders(len(values), devices_per_node)
        ]  # fmt: skip
        low, high = float(values.min(initial=0)), float(values.max(initial=0))
        margin = 0.08 * (high - low) or 1.0
        ends = (end for end in (low, high) if abs(end) > 2.5 * margin)  # others would touch the 0
        ticks = sorted({0.0, *ends})
        figure.update_yaxes(
            range=[low - margin, high + margin],
            tickvals=ticks,
            ticktext=[signed(value, delta.text) if value else "0" for value in ticks],
            row=row,
            col=1,
        )
    figure.update_layout(shapes=lines)
    figure.update_xaxes(**device_axis(len(deltas[0].first)))
    figure.update_xaxes(title_text="device", title_standoff=4, row=len(deltas), col=1)
    figure.update_yaxes(zeroline=True, zerolinecolor=NEUTRAL, fixedrange=True)
    finish(figure, {"l": 56, "r": 8, "t": 22, "b": 34})
    return figure


def _label(figure: go.Figure, axis: str, delta: Deltas) -> None:
    place = {
        "xref": f"x{axis} domain", "yref": f"y{axis} domain", "y": 1.0, "yanchor": "bottom",
        "showarrow": False, "yshift": 1,
    }  # fmt: skip
    mean = float(delta.difference.mean()) if len(delta.first) else 0.0
    figure.add_annotation(text=f"<b>{delta.heading}</b>", x=0, xanchor="left", **place)
    claim = f"mean {signed(mean, delta.text)}"
    figure.add_annotation(text=claim, x=1, xanchor="right", **place)


def traffic_difference_figure(
    first: NDArray[np.int64], second: NDArray[np.int64], devices_per_node: int
) -> go.Figure:
    """Draw how many bytes more or less each device (row) sends to each other device in B.

    Both matrices hold bytes from row to column, int64 ``[R, R]``.
    """
    change = second - first
    is_used = (first > 0) | (second > 0)
    reach = int(np.abs(change).max(initial=0)) or 1
    texts = [
        [f"A {size(a)}, B {size(b)}, {signed(b - a, size)}" for a, b in zip(*rows, strict=True)]
        for rows in zip(first.tolist(), second.tolist(), strict=True)
    ]
    figure = go.Figure(
        go.Heatmap(
            z=np.where(is_used, change.astype(float), np.nan),
            customdata=texts,
            hovertemplate="device %{y} to device %{x}<br>%{customdata}<extra></extra>",
            hoverongaps=False,
            colorscale=[[0.0, LESS], [0.5, "rgba(138,148,163,0.18)"], [1.0, MORE]],
            zmin=-reach,
            zmax=reach,
            xgap=1,
            ygap=1,
            colorbar={
                "thickness": 8, "outlinewidth": 0, "ticksuffix": "B", "tickformat": "~s",
                "nticks": 5, "len": 1.0, "x": 1.02, "xpad": 4,
            },
        )
    )  # fmt: skip
    borders = node_borders(len(change), devices_per_node)
    span = {"x0": -0.5, "x1": len(change) - 0.5, "y0": -0.5, "y1": len(change) - 0.5}
    figure.update_layout(
        shapes=[span | {"x0": at, "x1": at, "line": BORDER} for at in borders]
        + [span | {"y0": at, "y1": at, "line": BORDER} for at in borders]
    )
    axis = device_axis(len(change)) | {"constrain": "domain", "title_standoff": 4}
    figure.update_xaxes(title_text="to device", **axis)
    figure.update_yaxes(
        title_text="from device", scaleanchor="x", **axis | {"range": axis["range"][::-1]}
    )
    finish(figure, {"l": 44, "r": 8, "t": 8, "b": 34})
    return figure
