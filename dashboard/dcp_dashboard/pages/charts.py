"""Plotly charts: differences of two plans, lengths and speed-ups of a data set.

Paper and plot are transparent; `assets/style.css` recolours text and grid lines for the light and
the dark theme, so a figure never has to be made twice.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from dcp_dashboard.api.palette import KIND_COLOURS, NEUTRAL
from dcp_dashboard.facts.comparison import Deltas
from dcp_dashboard.facts.quantities import count, duration, percent, ratio, signed, size
from dcp_dashboard.library.dataset_report import BatchLine, DatasetReport
from dcp_dashboard.pages.layout import FONT

GRAPH_CONFIG: Any = {  # Any: Dash has a type of its own for it
    "displaylogo": False,
    "displayModeBar": False,
    "plotlyServerURL": "",
    "responsive": True,
    "showSendToCloud": False,
}
"""For every graph: nothing that talks to a cloud, no tool bar."""

BORDER = {"width": 1, "dash": "dot", "color": NEUTRAL}

LESS, MORE = "#0072b2", "#d55e00"
"""Blue: less in B, vermillion: more in B (Okabe & Ito); the side of the zero line says so too."""

BINS = 24
BLUE = KIND_COLOURS["attention"]

SPREADS: Sequence[tuple[str, str, Callable[[float], str], str, str]] = (
    ("density", "Density", percent, ".1~%", ""),
    ("compute_imbalance", "Compute max/mean", ratio, ".3~f", ""),
    ("token_imbalance", "Token max/mean", ratio, ".3~f", ""),
    ("bytes", "Bytes moved", size, "~s", "B"),
    ("seconds", "Predicted time", duration, "~s", "s"),
    ("plan_s", "Planning time", duration, "~s", "s"),
)
"""Name, heading, how a value is written, tick format and unit of the distributions."""


def node_borders(num_devices: int, devices_per_node: int) -> list[float]:
    """Return the positions between the last device of a node and the first of the next."""
    return [at - 0.5 for at in range(devices_per_node, num_devices, devices_per_node)]


def device_axis(num_devices: int) -> dict[str, Any]:  # Any: plotly takes texts and numbers
    """Return the settings of an axis with one place per device and a few ticks."""
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, num_devices) if step * 17 > num_devices)
    return {
        "range": [-0.5, num_devices - 0.5], "dtick": step, "tick0": 0, "showgrid": False,
        "zeroline": False, "fixedrange": True,
    }  # fmt: skip


def finish(figure: go.Figure, margin: dict[str, int]) -> None:
    """Apply the settings that all charts share: no paper, one font, no dragging."""
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


def lengths_figure(report: DatasetReport) -> go.Figure | None:
    """Draw how many sequences have which length; without counts, the range of every batch.

    Gives ``None`` if the report says nothing of lengths.
    """
    counts = report.length_counts
    if any(counts):
        first = next(i for i, n in enumerate(counts) if n)
        last = max(i for i, n in enumerate(counts) if n)
        powers = list(range(first, last + 1))
        figure = go.Figure(
            go.Bar(
                x=[count(2**i) for i in powers],
                y=[counts[i] for i in powers],
                marker={"color": BLUE, "line": {"width": 0}},
                customdata=[f"{count(2**i)} to {count(2 ** (i + 1) - 1)} tokens" for i in powers],
                hovertemplate="%{customdata}<br>%{y} sequences<extra></extra>",
            )
        )
        figure.update_xaxes(title_text="tokens of a sequence, from", type="category")
        figure.update_yaxes(title_text="sequences", tickformat="~s")
    else:
        lines = [b for b in report.batches if {"shortest", "longest"} <= b.figures.keys()]
        if not lines:
            return None
        figure = _ranges(lines)
    _plain(figure)
    return figure


def _ranges(batches: Sequence[BatchLine]) -> go.Figure:
    rows = [(b.index, *(b.figures[n] for n in ("shortest", "longest"))) for b in batches]
    middle = [b.figures.get("median_length", b.figures["shortest"]) for b in batches]
    index, least, most = (list(column) for column in zip(*rows, strict=True))
    figure = go.Figure(
        go.Scatter(
            x=index, y=middle, mode="markers", marker={"color": BLUE, "size": 6}, showlegend=False,
            error_y={
                "type": "data", "symmetric": False, "color": NEUTRAL, "thickness": 1, "width": 2,
                "array": [b - a for a, b in zip(middle, most, strict=True)],
                "arrayminus": [b - a for a, b in zip(least, middle, strict=True)],
            },
            customdata=[f"{count(a)} to {count(b)}" for a, b in zip(least, most, strict=True)],
            hovertemplate="batch %{x}<br>median %{y} tokens<br>%{customdata}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(title_text="batch", nticks=12)
    figure.update_yaxes(title_text="tokens, least to most", type="log", dtick=1)
    return figure


def speedup_figure(report: DatasetReport) -> go.Figure | None:
    """Draw, per other method, the speed-ups of all batches as a box; a line where it is 1.

    The whiskers are the least and the most. Gives ``None`` if nothing was compared.
    """
    methods = sorted(report.methods, key=lambda name: float(np.median(report.speedups(name))))
    if not methods:
        return None
    quartiles = [np.quantile(report.speedups(name), (0, 0.25, 0.5, 0.75, 1)) for name in methods]
    columns = [[float(q[i]) for q in quartiles] for i in range(5)]
    figure = go.Figure(
        go.Box(
            y=methods, lowerfence=columns[0], q1=columns[1], median=columns[2], q3=columns[3],
            upperfence=columns[4], orientation="h", line={"color": BLUE, "width": 1.2},
            fillcolor="rgba(0,114,178,0.25)", showlegend=False, hoverinfo="skip", width=0.5,
        )
    )  # fmt: skip
    labels = [
        f"{name}<br><b>{ratio(row[2])}</b> ({ratio(row[0])} to {ratio(row[4])})"
        for name, row in zip(methods, quartiles, strict=True)
    ]
    figure.update_yaxes(tickvals=methods, ticktext=labels)
    figure.add_vline(1.0, line={"width": 1, "color": NEUTRAL, "dash": "dash"})
    figure.update_xaxes(title_text="their predicted time over ours", zeroline=False)
    _plain(figure)
    figure.update_layout(margin={"l": 132, "r": 8, "t": 10, "b": 36})
    return figure


def spread_figure(report: DatasetReport) -> go.Figure | None:
    """Draw a histogram of every figure of `SPREADS` that the batches have."""
    known = [spread for spread in SPREADS if len(report.column(spread[0]))]
    if not known:
        return None
    columns = 3 if len(known) > 2 else len(known)
    rows = -(-len(known) // columns)
    figure = make_subplots(
        rows=rows, cols=columns, vertical_spacing=0.34 / rows, horizontal_spacing=0.06
    )
    for at, (name, heading, text, ticks, unit) in enumerate(known):
        place = {"row": at // columns + 1, "col": at % columns + 1}
        values = report.column(name)
        centres, counts = histogram(values)
        figure.add_trace(
            go.Bar(
                x=centres, y=counts, marker={"color": BLUE, "line": {"width": 0}},
                customdata=[text(float(c)) for c in centres], showlegend=False,
                hovertemplate="about %{customdata}<br>%{y} batches<extra></extra>",
            ),
            **place,
        )  # fmt: skip
        figure.update_xaxes(tickformat=ticks, ticksuffix=unit, nticks=5, **place)
        axis = "" if at == 0 else str(at + 1)
        figure.add_annotation(
            text=f"<b>{heading}</b> · median {text(float(np.median(values)))}", x=0, y=1.0,
            xref=f"x{axis} domain", yref=f"y{axis} domain", xanchor="left", yanchor="bottom",
            yshift=2, showarrow=False,
        )  # fmt: skip
        if len(centres) == 1:  # one value has no width of its own
            figure.update_xaxes(range=[centres[0] - 6, centres[0] + 6], tickvals=centres, **place)
        if counts.max() < 4:  # no halves of batches
            figure.update_yaxes(dtick=1, **place)
    _plain(figure)
    figure.update_yaxes(nticks=3)
    figure.update_layout(bargap=0.05, margin={"l": 32, "r": 8, "t": 24, "b": 28})
    return figure


def histogram(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Count values in at most `BINS` equal bins; one bin if all are equal.

    >>> histogram(np.array([1.0, 1.0]))[1].tolist()
    [2]
    """
    low, high = float(values.min()), float(values.max())
    bins = min(BINS, max(1, len(values))) if high - low > 1e-9 * max(abs(low), abs(high)) else 1
    if bins == 1:
        return np.array([(low + high) / 2]), np.array([len(values)])
    counts, edges = np.histogram(values, bins=bins)
    return (edges[:-1] + edges[1:]) / 2, counts


def _plain(figure: go.Figure) -> None:
    figure.update_xaxes(showgrid=False, zeroline=False, fixedrange=True, title_standoff=4)
    figure.update_yaxes(zeroline=False, fixedrange=True, title_standoff=4)
    finish(figure, {"l": 48, "r": 8, "t": 10, "b": 36})
