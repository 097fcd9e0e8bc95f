"""Prints the report of the demonstration in the terminal."""

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dcp_dashboard.demo.report import BatchReport, DemoReport, MaskResult, MethodReport

_LABELS = {"portfolio": "dcp-dsl", "kahypar": "KaHyPar, refined"}


def print_report(report: DemoReport, console: Console) -> None:
    """Print one table per mask."""
    for mask in report.masks:
        heading = Text.assemble((mask.mask, "bold"), f"  on {mask.dataset}")
        console.print(Group(heading, _sparsity(mask), _placements(mask), _errors(mask), Text("")))


def summary(report: DemoReport, cores: int) -> str:
    """Explain in three sentences simulation, verification and the comparison of times."""
    planned, executed = report.masks[0].planned, report.masks[0].executed
    ratios = [mask.measured_s / mask.executed.methods[0].predicted_s for mask in report.masks]
    verdict = "are" if report.verified else "are NOT all"
    return (
        f"The {planned.devices} GPUs are simulated: plans of {planned.tokens:,} tokens were made "
        "for them, nothing ran on a GPU, and their times are predictions. "
        f"Verified means that batches of some {executed.tokens:,} tokens ran forward and "
        f"backward on {report.ranks} processes of this machine; out, dq, dk and dv {verdict} "
        "within twice the error of ordinary attention in float32, against dense float64 attention. "
        f"The measured times are {min(ratios):.1f} to {max(ratios):.1f} times the predicted ones, "
        "which rest on the constants of the preset cpu-gloo and on a free core for each process; "
        f"this machine has {cores}, and `dcpm calibrate` measures its constants."
    )


def _sparsity(mask: MaskResult) -> Table:
    table = _table("batch", "docs", "pairs", "of causal", "full", "partial", "empty", "compiled")
    for batch in (mask.planned, mask.executed):
        table.add_row(
            f"{batch.tokens:,} tokens",
            f"{batch.sequences}",
            f"{batch.pairs:,}",
            f"{batch.density:.1%}",
            f"{batch.full_blocks:,}",
            f"{batch.partial_blocks:,}",
            f"{batch.empty_blocks:,}",
            _seconds(batch.compile_s),
        )
    return table


def _placements(mask: MaskResult) -> Table:
    table = _table("placement", "moved", "network", "compute", "tokens", "predicted", "measured")
    table.add_row("", "", "", *[Text("max/mean", style="dim")] * 2)
    for batch in (mask.planned, mask.executed):
        is_run = batch is mask.executed
        on = f"{batch.devices} processes" if is_run else f"{batch.devices} GPUs"
        table.add_row(Text(f"{batch.tokens:,} on {on}", style="dim"))
        for number, method in enumerate(batch.shown):
            table.add_row(
                f"  {_label(method, batch)}",
                _bytes(method.bytes_forward + method.bytes_backward),
                _bytes(method.bytes_between_nodes) if batch.nodes > 1 else "-",
                _capped(method, "compute", method.compute_imbalance),
                _capped(method, "tokens", method.token_imbalance),
                _seconds(method.predicted_s),
                _seconds(mask.measured_s) if is_run and number == 0 else "",
            )
    table.add_row(Text("*: over its cap", style="dim"))
    return table


def _label(method: MethodReport, batch: BatchReport) -> str:
    name = _LABELS.get(method.method, method.method.replace(":", " "))
    if batch.best_static.get("of_all") == method.method:
        return f"{name}, best"
    is_within = batch.best_static.get("within_token_cap") == method.method
    return f"{name}, best within the token cap" if is_within else name


def _capped(method: MethodReport, cap: str, imbalance: float) -> str:
    return f"{imbalance:.2f}{'*' if cap in method.over_caps else ' '}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(first)  # narrow terminals wrap names; a figure is never cut off
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _errors(mask: MaskResult) -> Table:
    verdict = ("verified", "bold green") if mask.verified else ("NOT VERIFIED", "bold red")
    table = _table("against dense fp64", *(error.tensor for error in mask.errors), "")
    for label, field in (
        ("error", "relative"),
        ("  of eager attention", "eager"),
        ("worst element", "relative_max"),
        ("  of eager attention", "eager_max"),
    ):
        errors = (f"{getattr(error, field):.1e}" for error in mask.errors)
        table.add_row(label, *errors, Text.assemble(verdict) if field == "relative" else "")
    return table


def _bytes(count: int) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.2f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"
