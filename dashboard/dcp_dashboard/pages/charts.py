"""Plotly charts: differences of two plans, lengths and speed-ups of a data set.

Paper and plot are transparent, and `assets/style.css` recolours text and grid lines for the light
and the dark theme. So a figure is made once for both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from dash import dcc
from dash.development.base_component import Component
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from dcp_dashboard.api.encoding import KIND_COLOURS, NEUTRAL
from dcp_dashboard.facts.comparison import Deltas
from dcp_dashboard.facts.quantities import count, duration, percent, ratio, signed, size
from dcp_dashboard.library.index import BatchLine, DatasetReport
from dcp_dashboard.pages.layout import FONT

GRAPH_CONFIG: Any = {  # Any: Dash has a type of its own for it
    "displayModeBar": False,
    "plotlyServerURL": "",
    "responsive": True,
}
"""For every graph: nothing that talks to a cloud, no tool bar."""

# Axes are fixed: on a page that scrolls, a chart must not take the wheel and the drag for itself.
TEMPLATE = go.layout.Template(
    layout={
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "bargap": 0.18,
        "font": {"family": FONT, "size": 11}, "annotationdefaults": {"font": {"size": 12}},
        "hoverlabel": {"font": {"family": FONT, "size": 12}}, "dragmode": False,
        "xaxis": {"fixedrange": True, "zeroline": False, "showgrid": False, "title_standoff": 4},
        "yaxis": {"fixedrange": True, "zeroline": False, "title_standoff": 4},
    }
)  # fmt: skip
"""Settings that all charts share."""

BORDER = {"width": 1, "dash": "dot", "color": NEUTRAL}

LESS, MORE = "#0072b2", "#d55e00"
"""Blue: less in B, vermillion: more in B (Okabe & Ito); the side of the zero line says so too."""

BINS = 24
BLUE = KIND_COLOURS["attention"]
BAR = {"color": BLUE, "line": {"width": 0}}

SPREADS: Sequence[tuple[str, str, Callable[[float], str], str, str]] = (
    ("density", "Density", percent, ".1~%", ""),
    ("compute_imbalance", "Compute max/mean", ratio, ".3~f", ""),
    ("token_imbalance", "Token max/mean", ratio, ".3~f", ""),
    ("bytes", "Bytes moved", size, "~s", "B"),
    ("seconds", "Predicted time", duration, "~s", "s"),
    ("plan_s", "Planning time", duration, "~s", "s"),
)
"""Name, heading, how a value is written, tick format and unit of the distributions."""


def graph(name: str, figure: go.Figure) -> Component:
    """Build the component of a chart."""
    return dcc.Graph(id=name, figure=figure, config=GRAPH_CONFIG, className="dcp-graph")


def _margins(left: int, top: int, bottom: int) -> dict[str, Any]:
    """Return the layout of a chart: the shared settings and its margins in pixels."""
    return {"template": TEMPLATE, "margin": {"l": left, "r": 8, "t": top, "b": bottom}}


def node_borders(node_ptr: NDArray[np.int64]) -> list[float]:
    """Return the positions between the last device of a node and the first of the next."""
    return [at - 0.5 for at in node_ptr[1:-1].tolist()]


def device_axis(num_devices: int) -> dict[str, Any]:  # Any: plotly takes texts and numbers
    """Return the settings of an axis with one place per device and a few ticks."""
    # At most 17 ticks; beyond 1,087 devices only one.
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, num_devices) if step * 17 > num_devices)
    return {"range": [-0.5, num_devices - 0.5], "dtick": step, "tick0": 0, "showgrid": False}


def deltas_figure(deltas: Sequence[Deltas], node_ptr: NDArray[np.int64]) -> go.Figure:
    """Draw B minus A per device, one row for each quantity; up is more in B."""
    # The spacing is a share of the whole height: 0.4 of a row, where the headings stand.
    figure = make_subplots(
        rows=len(deltas), cols=1, shared_xaxes=True, vertical_spacing=0.4 / len(deltas)
    )
    size, lines = len(deltas[0].first), []
    for row, delta in enumerate(deltas, start=1):
        axis = "" if row == 1 else str(row)  # Plotly numbers axes x, x2, x3
        figure.add_trace(_delta_bars(delta), row=row, col=1)
        figure.update_yaxes(**_delta_axis(delta), row=row, col=1)
        mean = float(delta.difference.mean())
        annotate(figure, axis, f"<b>{delta.heading}</b>", "left")
        annotate(figure, axis, f"mean {signed(mean, delta.text)}", "right")
        lines += [
            {"x0": x, "x1": x, "y0": 0, "y1": 1, "xref": f"x{axis}", "yref": f"y{axis} domain",
             "line": BORDER}
            for x in node_borders(node_ptr)
        ]  # fmt: skip
    figure.update_layout(shapes=lines, **_margins(56, 22, 34))
    figure.update_xaxes(**device_axis(size))
    figure.update_xaxes(title_text="device", row=len(deltas), col=1)
    return figure


def _delta_bars(delta: Deltas) -> go.Bar:
    sides = zip(delta.first, delta.second, strict=True)
    texts = [
        f"{delta.heading}: A {delta.text(a)}, B {delta.text(b)}, {signed(b - a, delta.text)}"
        for a, b in sides
    ]
    return go.Bar(
        x=np.arange(len(texts)), y=delta.difference, customdata=texts, showlegend=False,
        marker={"color": [MORE if v > 0 else LESS for v in delta.difference], "line": {"width": 0}},
        hovertemplate="device %{x}<br>%{customdata}<extra></extra>",
    )  # fmt: skip


def _delta_axis(delta: Deltas) -> dict[str, Any]:
    """Return the settings of an axis with ticks at 0 and at those ends that are not close to 0."""
    low, high = float(delta.difference.min(initial=0)), float(delta.difference.max(initial=0))
    # Without any difference the axis still needs a width.
    margin = 0.08 * (high - low) or 1.0
    ticks = sorted({0.0, *(end for end in (low, high) if abs(end) > 2.5 * margin)})
    return {
        "range": [low - margin, high + margin], "tickvals": ticks, "zeroline": True,
        "ticktext": [signed(value, delta.text) if value else "0" for value in ticks],
        "zerolinecolor": NEUTRAL,
    }  # fmt: skip


def annotate(figure: go.Figure, axis: str, text: str, side: str, shift: int = 1) -> None:
    """Write a text above the left or right end of a subplot."""
    figure.add_annotation(
        text=text, x=0 if side == "left" else 1, xanchor=side, y=1.0, yanchor="bottom",
        yshift=shift, xref=f"x{axis} domain", yref=f"y{axis} domain", showarrow=False,
    )  # fmt: skip


def traffic_difference_figure(
    first: NDArray[np.int64], second: NDArray[np.int64], node_ptr: NDArray[np.int64]
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
            # NaN leaves a cell blank: nothing is sent there in either plan.
            z=np.where(is_used, change.astype(float), np.nan),
            customdata=texts,
            hovertemplate="device %{y} to device %{x}<br>%{customdata}<extra></extra>",
            hoverongaps=False,
            colorscale=[[0.0, LESS], [0.5, "rgba(138,148,163,0.18)"], [1.0, MORE]],
            zmin=-reach, zmax=reach, xgap=1, ygap=1,
            colorbar={
                "thickness": 8, "outlinewidth": 0, "ticksuffix": "B", "tickformat": "~s",
                "nticks": 5, "len": 1.0, "x": 1.02, "xpad": 4,
            },
        )
    )  # fmt: skip
    span = {"x0": -0.5, "x1": len(change) - 0.5, "y0": -0.5, "y1": len(change) - 0.5}
    shapes = [
        span | {f"{axis}0": at, f"{axis}1": at, "line": BORDER}
        for axis in ("x", "y")
        for at in node_borders(node_ptr)
    ]
    axis = device_axis(len(change)) | {"constrain": "domain"}
    # Device 0 at the top, as in the mask; cells are squares.
    upward = axis | {"range": axis["range"][::-1], "scaleanchor": "x"}
    figure.update_xaxes(title_text="to device", **axis)
    figure.update_yaxes(title_text="from device", **upward)
    figure.update_layout(shapes=shapes, **_margins(44, 8, 34))
    return figure


def lengths_figure(report: DatasetReport) -> go.Figure | None:
    """Draw how many sequences have which length; without counts, the range of every batch.

    Return ``None`` if the report has no lengths.
    """
    counts = report.length_counts
    lines = [batch for batch in report.batches if {"shortest", "longest"} <= batch.figures.keys()]
    if any(counts):
        figure = _length_bars(counts)
    elif lines:
        figure = _length_ranges(lines)
    else:
        return None
    figure.update_layout(**_margins(48, 10, 36))
    return figure


def _length_bars(counts: Sequence[int]) -> go.Figure:
    """Draw a bar per power of two: the sequences of 2**i to 2**(i + 1) - 1 tokens."""
    used = [power for power, number in enumerate(counts) if number]
    powers = range(used[0], used[-1] + 1)
    bars = go.Bar(
        x=[count(2**i) for i in powers], y=[counts[i] for i in powers], marker=BAR,
        customdata=[f"{count(2**i)} to {count(2 ** (i + 1) - 1)} tokens" for i in powers],
        hovertemplate="%{customdata}<br>%{y} sequences<extra></extra>",
    )  # fmt: skip
    figure = go.Figure(bars)
    figure.update_xaxes(title_text="tokens of a sequence, at least", type="category")
    figure.update_yaxes(title_text="sequences", tickformat="~s")
    return figure


def _length_ranges(batches: Sequence[BatchLine]) -> go.Figure:
    least, most = ([b.figures[name] for b in batches] for name in ("shortest", "longest"))
    middle = [b.figures.get("median_length", b.figures["shortest"]) for b in batches]
    points = go.Scatter(
        x=[b.index for b in batches], y=middle, mode="markers", showlegend=False,
        marker={"color": BLUE, "size": 6},
        # Plotly takes the distances from the middle to both ends.
        error_y={
            "type": "data", "symmetric": False, "color": NEUTRAL, "thickness": 1, "width": 2,
            "array": [b - a for a, b in zip(middle, most, strict=True)],
            "arrayminus": [b - a for a, b in zip(least, middle, strict=True)],
        },
        customdata=[f"{count(a)} to {count(b)}" for a, b in zip(least, most, strict=True)],
        hovertemplate="batch %{x}<br>median %{y} tokens<br>%{customdata}<extra></extra>",
    )  # fmt: skip
    figure = go.Figure(points)
    figure.update_xaxes(title_text="batch", nticks=12)
    figure.update_yaxes(title_text="tokens, shortest to longest", type="log", dtick=1)
    return figure


def spread_figure(report: DatasetReport) -> go.Figure | None:
    """Draw a histogram of every figure of `SPREADS` that the batches have."""
    known = [spread for spread in SPREADS if len(report.column(spread[0]))]
    if not known:
        return None
    columns = min(3, len(known))  # a row of three fits the width of a page
    rows = -(-len(known) // columns)
    figure = make_subplots(
        rows=rows, cols=columns, vertical_spacing=0.34 / rows, horizontal_spacing=0.06
    )
    figure.update_yaxes(nticks=3)
    for at, (name, heading, text, ticks, unit) in enumerate(known):
        place = {"row": at // columns + 1, "col": at % columns + 1}
        values = report.column(name)
        centres, counts = histogram(values)
        bars = go.Bar(
            x=centres, y=counts, marker=BAR, customdata=[text(float(c)) for c in centres],
            showlegend=False, hovertemplate="about %{customdata}<br>%{y} batches<extra></extra>",
        )  # fmt: skip
        figure.add_trace(bars, **place)
        figure.update_xaxes(tickformat=ticks, ticksuffix=unit, nticks=5, **place)
        middle = text(float(np.median(values)))
        annotate(
            figure, str(at + 1) if at else "", f"<b>{heading}</b> · median {middle}", "left", 2
        )
        if len(centres) == 1:  # equal values give a bin, and the axis, no width of their own
            figure.update_xaxes(range=[centres[0] - 6, centres[0] + 6], tickvals=centres, **place)
        if counts.max() < 4:  # no ticks at half batches
            figure.update_yaxes(dtick=1, **place)
    figure.update_layout(bargap=0.05, **_margins(32, 24, 28))
    return figure


def histogram(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Count values in at most `BINS` equal bins; one bin if all are equal.

    >>> histogram(np.array([1.0, 1.0]))[1].tolist()
    [2]
    """
    low, high = float(values.min()), float(values.max())
    # Values that differ by rounding alone are one bin.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        return np.array([(low + high) / 2]), np.array([len(values)])
    counts, edges = np.histogram(values, bins=min(BINS, len(values)))
    return (edges[:-1] + edges[1:]) / 2, counts
