"""The page `/step/<key>`: replicas and micro-batches of one planned training step as bars."""

from dataclasses import dataclass
from itertools import pairwise

import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from dcp_dashboard.api.palette import KIND_COLOURS, NEUTRAL
from dcp_dashboard.facts.quantities import alike, count, duration, ratio
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.charts import TEMPLATE, graph
from dcp_dashboard.pages.layout import box, changed_notice, framed, headings, hint, panel, table
from dcp_planner.step import StepFile, StepGroup

MOST_BARS = 512
"""Most bars of the chart."""
MOST_NAMED = 8
"""Most documents that a text names."""
PARTS = (
    ("linear part", KIND_COLOURS["reduction"]),
    ("attention", KIND_COLOURS["attention"]),
    ("waiting", KIND_COLOURS["wait"]),
)


@dataclass(frozen=True, slots=True)
class StepBar:
    """A bar: neighbouring devices that share documents in one micro-batch.

    Attributes:
        micro_batch, first, width: the devices ``first`` to ``first + width - 1``.
        linear_s, attention_s, waiting_s: seconds; they wait for the slowest of the micro-batch.
        groups: whose documents they compute.
    """

    micro_batch: int
    first: int
    width: int
    linear_s: float
    attention_s: float
    waiting_s: float
    groups: tuple[StepGroup, ...]

    @property
    def busy_s(self) -> float:
        """Seconds in which they compute."""
        return self.linear_s + self.attention_s

    @property
    def devices(self) -> str:
        """Return the devices as text."""
        last = self.first + self.width - 1
        return f"{self.first}" if last == self.first else f"{self.first}-{last}"


def step_page(library: PlanLibrary, key: str) -> Component:
    """Build the page of one planned step."""
    entry, step = library.step(key)
    bars = step_bars(step)
    crumb = dcc.Link("Plans", href="/", className="dcp-crumb")
    facts = (
        f"{entry.relative} · {step.replicas} replicas of {step.context_ranks} devices · "
        f"{step.micro_batches} micro-batches · {step.policy}"
    )
    told = html.Span(facts, className="dcp-muted dcp-facts")
    parts = [
        changed_notice(entry),
        html.Div([crumb, html.H1("Training step"), told], className="dcp-title"),
        box([html.P(step_sentence(step, bars), className="dcp-verdict")], "Summary"),
        panel("Time of each device", [graph("step", step_figure(bars[:MOST_BARS]))]),
    ]
    if len(bars) > MOST_BARS:
        parts.append(hint(f"The first {MOST_BARS} of {count(len(bars))} bars are drawn."))
    parts.append(panel("The slowest of each micro-batch", [_stragglers(bars)]))
    return framed(f"Step · {entry.relative}", *parts)


def step_bars(step: StepFile) -> list[StepBar]:
    """Split each micro-batch into runs of devices that compute the same documents.

    Waiting is counted as if all devices met at the end of every micro-batch (FSDP).
    """
    bars = []
    for micro_batch in range(step.micro_batches):
        groups = [group for group in step.groups if group.micro_batch == micro_batch]
        ends = {0, step.devices, *(g.first for g in groups), *(g.first + g.width for g in groups)}
        cuts = sorted(ends)
        found = []
        for first, end in pairwise(cuts):
            own = tuple(g for g in groups if g.first <= first and end <= g.first + g.width)
            linear, attention = sum(g.linear_s for g in own), sum(g.attention_s for g in own)
            found.append(StepBar(micro_batch, first, end - first, linear, attention, 0.0, own))
        longest = max(bar.busy_s for bar in found)
        bars += [
            StepBar(b.micro_batch, b.first, b.width, b.linear_s, b.attention_s,
                    longest - b.busy_s, b.groups)
            for b in found
        ]  # fmt: skip
    return bars


def step_sentence(step: StepFile, bars: list[StepBar]) -> str:
    """Write what the step takes, and how much of it devices wait."""
    waiting = sum(bar.waiting_s * bar.width for bar in bars) / step.devices / step.stages
    documents = sum(len(group.documents) for group in step.groups)
    return (
        f"{count(documents)} documents in {duration(step.step_s)}, predicted: "
        f"{ratio(step.over_balance)} times perfect balance. Devices wait "
        f"{duration(waiting)} at the mean; the fullest holds {ratio(step.max_tokens)} times the "
        "mean tokens."
    )


def documents_text(bar: StepBar) -> str:
    """Name the documents of a bar, the longest first."""
    named = sorted(
        ((n, d, g.width) for g in bar.groups for d, n in zip(g.documents, g.tokens, strict=True)),
        reverse=True,
    )
    texts = [f"document {d}: {count(n)} tokens on {w} devices" for n, d, w in named[:MOST_NAMED]]
    more = len(named) - MOST_NAMED
    return "<br>".join([*texts, *([f"and {count(more)} more"] if more > 0 else [])] or ["nothing"])


def step_figure(bars: list[StepBar]) -> go.Figure:
    """Draw one bar for each run of devices and micro-batch."""
    labels = [f"{bar.micro_batch} · {bar.devices}" for bar in bars]
    texts = [
        f"<b>devices {bar.devices}</b>, waiting {duration(bar.waiting_s)}<br>{documents_text(bar)}"
        for bar in bars
    ]
    figure = go.Figure()
    for (name, colour), part in zip(PARTS, ("linear_s", "attention_s", "waiting_s"), strict=True):
        figure.add_bar(
            x=[getattr(bar, part) for bar in bars], y=labels, orientation="h", name=name,
            marker={"color": colour, "line": {"width": 0}}, customdata=texts,
            hovertemplate="%{customdata}<br>" + name + " %{x:.3s}s<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        template=TEMPLATE, barmode="stack", height=90 + 20 * len(bars),
        margin={"l": 80, "r": 10, "t": 30, "b": 40},
        legend={"orientation": "h", "traceorder": "normal", "y": 1, "yanchor": "bottom"},
        xaxis={"title": "seconds", "showgrid": True, "gridcolor": NEUTRAL},
        yaxis={"title": "micro-batch · devices", "autorange": "reversed", "showgrid": False},
    )  # fmt: skip
    return figure


def _stragglers(bars: list[StepBar]) -> Component:
    rows, text = [], alike((bar.busy_s for bar in bars), duration)
    for micro_batch in sorted({bar.micro_batch for bar in bars}):
        own = [bar for bar in bars if bar.micro_batch == micro_batch]
        slowest = max(own, key=lambda bar: bar.busy_s)
        waiting = sum(b.waiting_s * b.width for b in own) / sum(b.width for b in own)
        numbers = (str(micro_batch), slowest.devices, text(slowest.busy_s), text(waiting))
        cells = [html.Td(number, className="dcp-number") for number in numbers]
        named = documents_text(slowest).replace("<br>", "; ")
        rows.append(html.Tr([*cells, html.Td(named, className="dcp-wraps")]))
    names = ("Micro-batch", "Slowest devices", "Busy", "Others wait, mean", "Its documents")
    return html.Div(table(headings(names, range(4)), rows), className="dcp-scroll", tabIndex=0)
