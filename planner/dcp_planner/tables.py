"""What `dcpm plan` and `dcpm simulate` print for people."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dcp_planner.plan import Plan
from dcp_planner.report import PlanMetrics
from dcp_planner.timing import Timings


def show_plan(plan: Plan, metrics: PlanMetrics, timings: Timings, path: str) -> None:
    """Print a plan's figures to standard output."""
    console = Console()
    console.print(_summary(plan, metrics, timings))
    _print_warnings(console, metrics)
    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def show_simulation(plan: Plan, metrics: PlanMetrics, timings: Timings) -> None:
    """Print the predicted times, together and per device, to standard output."""
    console = Console()
    console.print(_summary(plan, metrics, timings))
    console.print(_devices(metrics, timings))
    _print_warnings(console, metrics)


def _print_warnings(console: Console, metrics: PlanMetrics) -> None:
    for text in metrics.warnings:
        console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)


def _summary(plan: Plan, metrics: PlanMetrics, timings: Timings) -> Table:
    cluster = plan.cluster
    both = (metrics.forward, metrics.backward)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    waits = timings.wait_s
    for name, value in (
        (
            "cluster",
            f"{cluster.nodes} x {cluster.devices_per_node} devices ({cluster.name})",
        ),
        ("placed by", metrics.partitioner),
        (
            "batch",
            f"{metrics.tokens:,} tokens, {metrics.blocks} blocks, {metrics.tiles:,} tiles",
        ),
        ("visible pairs", f"{metrics.pairs:,} ({metrics.density:.1%} of causal)"),
        ("compute max/mean", f"{metrics.compute_imbalance:.3f}"),
        ("tokens max/mean", f"{metrics.token_imbalance:.3f}"),
        ("bytes forward, backward", " ".join(_size(side.total_bytes) for side in both)),
        ("  between nodes", " ".join(_size(side.inter_node_bytes) for side in both)),
        (
            "predicted forward, backward",
            f"{_time(timings.forward_s)} {_time(timings.backward_s)}",
        ),
        ("exposed wait, mean and worst", f"{_time(_mean(waits))} {_time(max(waits))}"),
        ("communication hidden", f"{timings.overlap:.1%}"),
    ):
        table.add_row(name, Text(value))  # a plan file may hold any text: no markup
    return table


def _devices(metrics: PlanMetrics, timings: Timings) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("device", "tokens", "compute", "wait", "sent", "received", "peak buffer"):
        table.add_column(name, justify="right")
    forward, backward = metrics.forward, metrics.backward
    for device, tokens in enumerate(metrics.owned_tokens):
        table.add_row(
            str(device),
            f"{tokens:,}",
            _time(timings.compute_s[device]),
            _time(timings.wait_s[device]),
            _size(forward.sent_bytes[device] + backward.sent_bytes[device]),
            _size(forward.received_bytes[device] + backward.received_bytes[device]),
            _size(max(forward.peak_buffer_bytes[device], backward.peak_buffer_bytes[device])),
        )
    return table


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
