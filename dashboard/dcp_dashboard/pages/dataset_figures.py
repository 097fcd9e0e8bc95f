"""Plotly charts of a data-set report: lengths of sequences, speed-ups, how figures are spread."""

from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from dcp_dashboard.api.palette import KIND_COLOURS, NEUTRAL
from dcp_dashboard.facts.quantities import count, duration, percent, ratio, size
from dcp_dashboard.library.dataset_report import BatchLine, DatasetReport
from dcp_dashboard.pages.figures import finish

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
