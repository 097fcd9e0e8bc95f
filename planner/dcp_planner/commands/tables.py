"""Tables of the planner's commands, and the picture of a front of plans."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, repeat, zip_longest
from statistics import fmean, median
from string import ascii_letters

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dcp_planner.batches.batch import StackUse
from dcp_planner.batches.planning import BatchRow
from dcp_planner.batches.report_file import stack_speedups, stack_totals
from dcp_planner.causes.constants import ClassTime, RunComparison
from dcp_planner.model.cluster import Cluster
from dcp_planner.report.figures import (
    PREFIX,
    Difference,
    Scope,
    Spread,
    distribution_of,
    speedups_over,
    spreads_over_best,
)
from dcp_planner.search.partitioners import FrontPoint
from dcp_planner.simulation.simulator import clocks_of
from dcp_planner.simulation.trace import Timings, Trace, measure_trace
from dcp_planner.tables.metrics import PlanMetrics, measure, measure_memory
from dcp_planner.tables.plan import Plan

Row = Sequence[str]
LEAST_WIDTH = 60  # letters; on a narrower terminal lines wrap, but columns keep their words


def console_of_tables() -> Console:
    """Return a console that is wide enough for tables, and shows texts as they are."""
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, LEAST_WIDTH)
    return console


def print_table(
    console: Console, heads: Row, rows: Sequence[Row], texts: Collection[int] = (0,)
) -> None:
    """Print rows under heads, which may be empty, as narrow as the console asks for.

    The columns numbered in `texts` are left-aligned and wrap between words. The others hold
    figures, which are never broken; a line that does not fit sticks out.
    """
    is_headed = any(heads)
    table = Table(box=None, pad_edge=False, show_header=is_headed, header_style="bold")
    for at, (head, *cells) in enumerate(zip_longest(heads, *rows, fillvalue="")):
        is_text = at in texts
        # No narrower than the longest part that must stay whole: a word, or a figure.
        whole = (part for cell in cells for part in (cell.split() if is_text else [cell]))
        table.add_column(
            Text(head),  # a file name is no markup
            justify="left" if is_text else "right",
            style="" if is_headed or at else "bold",
            no_wrap=not is_text and " " not in head,
            min_width=max(map(cell_len, ("", *head.split(), *whole))),
        )
    for row in rows:
        table.add_row(*map(Text, row))  # `:ring:` is a picture to markup
    # Gaps between columns collapse only if the least widths and gaps together do not fit.
    unlimited = console.options.update_width(10_000)
    least = Measurement.get(console, unlimited, table).minimum
    table.collapse_padding = least > console.width
    console.print(table, crop=False)


def sums_text(plan: Plan) -> str:
    """Return how partial results travel."""
    if plan.is_reproducible:
        return "as whole numbers: the same bits in every plan"
    return _PARTIALS[plan.shape.partials]


def show_plan(plan: Plan, trace: Trace, row: BatchRow) -> None:
    """Print the figures of one planned batch to standard output, its speed first."""
    console = console_of_tables()
    metrics = measure(plan)
    console.print(_headline(row, place_text(plan.cluster)))
    summary = _summary(plan, metrics, measure_trace(trace, plan.num_devices))
    if row.figures.plan_s is not None:
        summary.append(("planning time", time_text(row.figures.plan_s)))
    if row.others:
        summary.append((SPEEDUPS, ""))
    for name, theirs in row.others.items():
        times = theirs.predicted_s / row.figures.predicted_s if row.figures.predicted_s else 1.0
        summary.append((f"  {name}", f"{times:.2f}{_over(row.over_caps[name])}"))
    for scope, label in _best_lines(row.others).items():
        rival = row.best_static.get(scope)
        told = f"{rival.speedup:.2f} ({rival.name})" if rival else NONE_HOLDS
        summary.append((label, told))
    print_table(console, NO_HEADS, summary, LABELLED)
    _print_caps(console, {cap for caps in row.over_caps.values() for cap in caps})
    _print_warnings(console, metrics)
    if row.file:
        console.print(f"wrote {row.file}", soft_wrap=True)


def _headline(row: BatchRow, place: str) -> str:
    """Return in one line how fast attention is predicted to be, beside the best of the others."""
    ours = time_text(row.figures.predicted_s)
    end = f"attention of one layer is predicted to take {ours} on {place}"
    best = row.best_static
    if best:
        rival = best.get("within_token_cap", best["of_all"])
        kind = "the best static layout" if _best_lines(row.others) else "a static layout"
        if "within_token_cap" not in best:
            kind += ", which exceeds the cap on tokens"
        elif rival.speedup > best["of_all"].speedup:
            over = best["of_all"]
            kind += " within the cap on tokens"
            kind += f" ({over.speedup:.2f} times as fast as {over.name}, which exceeds it)"
        return f"{rival.speedup:.2f} times as fast as {rival.name}, {kind}: {end}"
    for name, theirs in row.others.items():
        if row.figures.predicted_s:
            times = theirs.predicted_s / row.figures.predicted_s
            return f"{times:.2f} times as fast as {name}: {end}"
    return f"{end}; to compare it with usual layouts: --against static"


def place_text(cluster: Cluster) -> str:
    """Name a cluster with its size, for the predictions beside it."""
    return f"{cluster.nodes} x {cluster.devices_per_node} devices of {cluster.name}"


def _over(caps: Mapping[str, float]) -> str:
    """Name what a layout loads on one device beyond its caps, and how far.

    >>> _over({"compute": 2.404, "tokens": 1.18})
    ', one device has 2.4 x the mean compute*, 1.18 x the mean tokens**'
    """
    told = ", ".join(f"{most:.3g} x the mean {name}{_MARKS[name]}" for name, most in caps.items())
    return f", one device has {told}" if told else ""


_MARKS = {"compute": "*", "tokens": "**"}
_CAPS = {
    "compute": "*   above the cap on compute (--compute-tolerance): that device is the slowest, "
    "which the time already shows",
    "tokens": "**  above the cap on tokens (--token-tolerance): more memory, and longer linear "
    "layers than on other devices, which the time leaves out",
}


def _print_caps(console: Console, exceeded: Collection[str]) -> None:
    for name, text in _CAPS.items():
        if name in exceeded:
            console.print(text)


_PARTIALS = {"float32": "in float32", "input": "in the data type of the inputs"}
PLANNERS = {"portfolio": "dcp-dsl's default search"}
NO_HEADS, LABELLED = ("", ""), (0, 1)  # a table of labels and texts
SPEEDUPS = "times as fast as"
SIDES = ("forward", "backward")
BESIDE_NAMES = 32  # letters that labels, changes and gaps take beside two file names
BEST: dict[Scope, str] = {
    "of_all": "  best static layout",
    "within_token_cap": "  best within token cap",
}
NONE_HOLDS = "no static layout keeps this cap"


_SCOPES: dict[Scope, str] = {"within_token_cap": " within the cap on tokens", "of_all": ""}
_FIGURES = {
    "plan_s": "planning time",
    "forward_inter_bytes": "forward bytes between nodes",
    "backward_inter_bytes": "backward bytes between nodes",
    "compute_imbalance": "compute, most/mean",
    "token_imbalance": "tokens, most/mean",
    "peak_buffer_bytes": "receive buffers",
}
"""Names of figures for people; `dcpm compare --fail-if` takes those of the JSON document."""


def _best_lines(others: Collection[str]) -> dict[Scope, str]:
    """Return the labels of the lines about the best static layouts, if there are several."""
    return BEST if sum(name.startswith(PREFIX) for name in others) > 1 else {}


def show_batches(rows: Sequence[BatchRow], cluster: Cluster) -> None:
    """Print the distribution of figures over batches to standard output."""
    console = console_of_tables()
    figures = [row.figures for row in rows]
    typical, seconds = "", median(row.figures.predicted_s for row in rows)
    spreads = spreads_over_best([row.best_static for row in rows])
    for scope, words in _SCOPES.items():
        if scope in spreads and not typical:
            times = spreads[scope].median
            typical = f"{times:.2f} times as fast as the best static layout of a batch{words}: "
    console.print(
        f"{typical}attention of one layer is predicted to take {time_text(seconds)} on "
        f"{place_text(cluster)} (medians)",
        soft_wrap=True,
    )  # fmt: skip
    lines = list[Row]()
    for name, spread in distribution_of(figures).items():
        shown = (_figure(name, value) for value in spread)
        lines.append((_FIGURES.get(name, _label(name)), *shown))
    others = {name: [row.others[name] for row in rows] for name in rows[0].others}
    if others:
        lines.append((SPEEDUPS,))
    for name, spread in speedups_over(figures, others).items():
        lines.append((f"  {name}", *_times(spread)))
    best = [row.best_static for row in rows]
    for scope, label in _best_lines(others).items():
        found, held = spreads_over_best(best).get(scope), sum(scope in batch for batch in best)
        part = "" if held in (0, len(rows)) else f", {held} of {len(rows)}"
        lines.append((label + part, *_times(found)) if found else (f"{label}: {NONE_HOLDS}",))
    print_table(
        console,
        (f"{len(rows)} batch{'es' * (len(rows) > 1)}", "min", "median", "mean", "max"),
        lines,
    )
    for name in rows[0].others:
        count = Counter(cap for row in rows for cap in row.over_caps[name])
        told = ", ".join(f"{cap}{_MARKS[cap]} in {often}" for cap, often in sorted(count.items()))
        if told:
            console.print(Text(f"{name}: above the cap on {told} of {len(rows)} batches"))
    _print_caps(console, {cap for row in rows for caps in row.over_caps.values() for cap in caps})
    warned = sum(bool(row.warnings) for row in rows)
    if warned:
        noun = "batch exceeds" if warned == 1 else "batches exceed"
        told = f"warning: {warned} {noun} a cap on tokens or compute; for details, use --json"
        console.print(told, style="yellow")


def _times(spread: Spread) -> list[str]:
    return [f"{value:.2f}" for value in spread]


def show_use(mask: str, use: StackUse) -> None:
    """Print the heading of a stack's mask, with the number of its layers."""
    line = Text(f"{mask}: {use.layers} of {use.period} layers of {use.stack}", style="bold")
    console_of_tables().print(line, soft_wrap=True)


def show_stack(uses: Sequence[StackUse], rows: Sequence[Sequence[BatchRow]]) -> None:
    """Print the costs of all layers of one cycle of a stack together to standard output."""
    console, count = console_of_tables(), len(rows[0])
    of = f", medians of {count} batches" if count > 1 else ""
    heading = f"{uses[0].stack}: all {uses[0].period} layers together{of}"
    console.print(Text(heading, style="bold"), soft_wrap=True)
    lines = list[Row]()
    total = {name: spread.median for name, spread in stack_totals(uses, rows).items()}
    for told, name, shown in (
        ("bytes sent", "{}_bytes", size_text),
        ("predicted time", "predicted_{}_s", time_text),
    ):
        lines.append((told, _sides(*(shown(total[name.format(side)]) for side in SIDES))))
    speedups, best = stack_speedups(uses, rows)
    if speedups:
        lines.append((SPEEDUPS, ""))
    for name, spread in speedups.items():
        # The worst of all masks and batches, for each cap.
        caps = [mask[batch].over_caps[name] for mask in rows for batch in range(count)]
        over = {cap: max(found.get(cap, 0.0) for found in caps) for found in caps for cap in found}
        lines.append((f"  {name}", f"{spread.median:.2f}{_over(over)}"))
    for scope, label in _best_lines(rows[0][0].others).items():
        lines.append((label, f"{best[scope].median:.2f}" if scope in best else NONE_HOLDS))
    print_table(console, NO_HEADS, lines, LABELLED)


def show_step(model: str, times: Mapping[str, Spread]) -> None:
    """Print the time of one batch in a training step to standard output."""
    parts = [f"{_label(name)} {time_text(spread.median)}" for name, spread in times.items()]
    line = Text(f"{model}, all layers: {parts[0]} + {parts[1]} = {parts[2]}", style="bold")
    console_of_tables().print(line, soft_wrap=True)


def show_comparison(first: str, second: str, differences: Sequence[Difference], why: str) -> None:
    """Print the figures of two plans side by side, and why one is faster, to standard output."""
    console = console_of_tables()
    # Long paths stand above the table, which then has short heads.
    names = [first, second]
    if max(map(len, names)) > (console.width - BESIDE_NAMES) // 2:
        names = ["first", "second"]
        for name, path in zip(names, (first, second), strict=True):
            console.print(f"{name:6}  {path}", soft_wrap=True)
    rows = [
        (
            _label(d.name),
            *(_figure(d.name, value) for value in (d.first, d.second)),
            "" if d.change is None else f"{d.change:+.1%}",
        )
        for d in differences
    ]
    print_table(console, ("", *names, "change"), rows)
    console.print(Text(why))


def _label(name: str) -> str:
    return name.replace("_", " ").removesuffix(" s")


def _figure(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return size_text(value)
    if name.endswith("_s") or name == "makespan":
        return time_text(value)
    return f"{value:.3f}" if name.endswith("imbalance") else f"{value:,.0f}"


def show_simulation(plan: Plan, metrics: PlanMetrics, timings: Timings) -> None:
    """Print the predicted times, together and per device, to standard output."""
    console = console_of_tables()
    print_table(console, NO_HEADS, _summary(plan, metrics, timings), LABELLED)
    _print_devices(console, metrics, timings)
    _print_warnings(console, metrics)


def show_run(run: RunComparison) -> None:
    """Print predicted and measured times by class of work, and constants, to standard output."""
    console = console_of_tables()
    rows = list[Row]()
    values = dict[str, ClassTime]()
    for one in run.classes:
        ratio = f"{one.measured_s / one.predicted_s:.2f}" if one.predicted_s else "-"
        times = time_text(one.predicted_s), time_text(one.measured_s)
        # Classes of messages by size share one constant, which is listed once below.
        constant = one.constant or ("no single one" if one.differs else "")
        rows.append((one.name, f"{one.pieces:,}", *times, ratio, constant))
        if one.constant:
            values.setdefault(one.constant, one)
    heads = ("class of work", "pieces", "predicted", "measured", "ratio", "constant")
    print_table(console, heads, rows, (0, 5))
    console.print(
        f"predicted {time_text(run.predicted_s)}, measured {time_text(run.measured_s)}, predicted "
        f"with the new constants {time_text(run.fitted_s)}",
        soft_wrap=True,
    )  # fmt: skip
    for name, one in values.items():
        console.print(
            f"{name} = {one.set_to:.3g} (now {one.now:.3g}) explains {one.explains:.0%} of the "
            f"difference in {one.name.partition(', ')[0]}",  # of all sizes
            soft_wrap=True,
        )  # fmt: skip


def _print_warnings(console: Console, metrics: PlanMetrics) -> None:
    for text in metrics.warnings:
        console.print(f"warning: {text}", style="yellow")


def _summary(plan: Plan, metrics: PlanMetrics, timings: Timings) -> list[Row]:
    cluster, waits = plan.cluster, timings.wait_s
    both = (metrics.forward, metrics.backward)
    # `metrics` counts a tile once for each head group.
    tiles = f"{metrics.tiles // plan.head_groups:,} tiles"
    if plan.head_groups > 1:
        tiles += f" in each of {plan.head_groups} head groups"
    return [
        ("cluster", place_text(cluster)),
        ("planned by", PLANNERS.get(metrics.partitioner, metrics.partitioner)),
        ("batch", f"{metrics.tokens:,} tokens, {metrics.blocks} blocks, {tiles}"),
        ("visible pairs", f"{metrics.pairs:,} ({metrics.density:.1%} of a causal mask)"),
        ("compute, most loaded", f"{metrics.compute_imbalance:.3f} x the mean of all devices"),
        ("tokens, most loaded", f"{metrics.token_imbalance:.3f} x the mean of all devices"),
        ("bytes sent", _sides(*(size_text(side.total_bytes) for side in both))),
        ("  between nodes", _sides(*(size_text(side.inter_node_bytes) for side in both))),
        ("  sums of parts", sums_text(plan)),
        ("predicted time", _sides(time_text(timings.forward_s), time_text(timings.backward_s))),
        *_clocks(plan),
        ("memory, fullest device", _memory_text(plan)),
        ("waiting for messages", f"{time_text(fmean(waits))} mean, {time_text(max(waits))} max"),
        ("hidden by computing", f"{timings.overlap:.1%} of the time of messages"),
    ]


def _clocks(plan: Plan) -> list[Row]:
    """List what hosts need that run ahead of their devices; the devices, too, if a host decides."""
    if not plan.cluster.host_runs_ahead:
        return []
    clocks = clocks_of(plan).values()
    devices = _sides(*(time_text(one.device_ns / 1e9) for one in clocks))
    hosts = _sides(*(time_text(one.host_ns / 1e9) for one in clocks))
    if not any(one.held_ns for one in clocks):
        return [("  busiest host needs", f"{hosts}, hidden")]
    return [("  devices need", devices), ("  busiest host needs", hosts)]


def _sides(forward: str, backward: str) -> str:
    return f"{forward} forward, {backward} backward"


def _memory_text(plan: Plan) -> str:
    """Write the peak of one attention layer beside the memory of a device.

    The plan must be valid: broken plans, which may name devices that do not exist, are never shown.
    """
    peak, memory = int(measure_memory(plan).peak.max()), plan.cluster.memory_bytes
    whole = f"{memory / 1e9:.1f} GB" if memory >= 1e8 else size_text(memory)
    text = f"{size_text(peak)} of {whole}"
    return text if peak <= memory else f"{text}: does not fit"


def _print_devices(console: Console, metrics: PlanMetrics, timings: Timings) -> None:
    forward, backward = metrics.forward, metrics.backward
    rows = [
        (
            str(device),
            f"{tokens:,}",
            time_text(timings.compute_s[device]),
            time_text(timings.wait_s[device]),
            size_text(forward.sent_bytes[device] + backward.sent_bytes[device]),
            size_text(forward.received_bytes[device] + backward.received_bytes[device]),
            size_text(max(forward.peak_buffer_bytes[device], backward.peak_buffer_bytes[device])),
        )
        for device, tokens in enumerate(metrics.owned_tokens)
    ]
    heads = ("device", "tokens", "compute", "wait", "sent", "received", "receive buffer")
    print_table(console, heads, rows, ())


def time_text(seconds: float) -> str:
    """Write a time as the tables do."""
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


def size_text(size_bytes: float) -> str:
    """Write a number of bytes as the tables do."""
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e5 else f"{size_bytes / 1e3:.1f} kB"


WIDTH, HEIGHT = 48, 10


def show_front(front: Sequence[FrontPoint]) -> None:
    """Print a line for each point and where it lies, fastest first."""
    console = console_of_tables()
    rows = [
        (
            letter,
            time_text(point.seconds),
            f"{point.compute:.3f}",
            f"{point.tokens:.3f}",
            *map(size_text, (point.forward_inter, point.backward_inter, point.memory_bytes)),
        )
        for letter, point in zip(_names(), front, strict=False)
    ]
    heads = (
        "", "predicted", "compute", "tokens", "between nodes, forward",
        "between nodes, backward", "memory",
    )  # fmt: skip
    print_table(console, heads, rows)
    for line in draw([(p.seconds, p.forward_inter + p.backward_inter) for p in front]):
        console.print(Text(line), soft_wrap=True)


def _names() -> "chain[str]":
    return chain(ascii_letters, repeat("*"))  # no point is left out, however many there are


def draw(points: Sequence[tuple[float, float]]) -> list[str]:
    """Draw points as letters, seconds to the right and bytes upwards."""
    grid = [[" "] * (WIDTH + 1) for _ in range(HEIGHT + 1)]
    # The first letter is written last, so it wins where points fall into one cell. 1e-300 spares a
    # division by 0 if all points are equal in a figure.
    (left, right), (low, high) = ((min(side), max(side)) for side in zip(*points, strict=True))
    for letter, (x, y) in reversed(list(zip(_names(), points, strict=False))):
        column = round(WIDTH * (x - left) / max(right - left, 1e-300))
        row = round(HEIGHT * (high - y) / max(high - low, 1e-300))
        grid[row][column] = letter
    ends = {0: size_text(int(high)), HEIGHT: size_text(int(low))}
    lines = [f"{ends.get(at, ''):>8} |{''.join(row)}".rstrip() for at, row in enumerate(grid)]
    span = time_text(left).ljust(WIDTH // 2) + time_text(right).rjust(WIDTH - WIDTH // 2)
    return [*lines, " " * 9 + "+" + "-" * (WIDTH + 1), " " * 10 + span]
