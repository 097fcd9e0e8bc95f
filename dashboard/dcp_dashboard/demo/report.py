"""Results of the demonstration: printed as tables for people, as JSON for programs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # importing it would import torch
    from dcp_runtime import TensorError


SCHEMA = "dcp.demo/1"
KNOWN_LAYOUTS = ("static:zigzag", "static:contiguous")
"""Layouts that the tables always show, because other systems use them."""


@dataclass(frozen=True, slots=True)
class MethodReport:
    """One placement of one batch: bytes, imbalances (max/mean), exceeded caps, predicted time."""

    method: str
    bytes_forward: int
    bytes_backward: int
    bytes_between_nodes: int
    compute_imbalance: float
    token_imbalance: float
    over_caps: tuple[str, ...]
    predicted_s: float


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One packed batch: its block sparsity, and how each method placed it, our default first.

    `density` is over the pairs of a causal mask, `sparsity` the invisible share of all pairs within
    sequences. `plan` is the file of the first method; `best_static` names layouts by scope.
    """

    plan: str
    tokens: int
    sequences: int
    block_size: int
    nodes: int
    devices: int
    pairs: int
    density: float
    sparsity: float
    full_blocks: int
    partial_blocks: int
    empty_blocks: int
    compile_s: float
    methods: tuple[MethodReport, ...]
    best_static: Mapping[str, str]

    @property
    def shown(self) -> tuple[MethodReport, ...]:
        """The methods with a line of their own: planners, layouts in use, the best layouts."""
        names = {*KNOWN_LAYOUTS, *self.best_static.values()}
        return tuple(
            method
            for method in self.methods
            if not method.method.startswith("static:") or method.method in names
        )


@dataclass(frozen=True, slots=True)
class MaskResult:
    """One mask on one data set: a large batch planned, a small batch planned, run and verified.

    Errors stand beside those of eager attention; verified: all are within twice these. The rank
    that waited longest stood still for `exposed_s` of `measured_s`.
    """

    mask: str
    dataset: str
    planned: BatchReport
    executed: BatchReport
    verified: bool
    errors: "tuple[TensorError, ...]"
    measured_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All masks, in the order of the spec, and the folder of plans and data.

    `documents` counts the files that became the data set. Compiling the planner, once per
    installation, is not part of `seconds`.
    """

    folder: str
    ranks: int
    documents: int
    seconds: float
    masks: tuple[MaskResult, ...]
    compile_s: float = 0.0

    @property
    def verified(self) -> bool:
        """Whether every mask was verified."""
        return all(mask.verified for mask in self.masks)

    def to_json(self, url: str | None) -> dict[str, Any]:  # Any: a JSON document
        """Return the report as a JSON document; `url` is the dashboard's, if served."""
        return {"schema": SCHEMA, "verified": self.verified, "url": url, **asdict(self)}


_LABELS = {"portfolio": "dcp-dsl", "kahypar": "KaHyPar, refined"}


def print_report(report: DemoReport, console: Console) -> None:
    """Print one table per mask."""
    for mask in report.masks:
        heading = Text.assemble((mask.mask, "bold"), f"  on {mask.dataset}")
        console.print(Group(heading, _sparsity(mask), _placements(mask)))
        if any("tokens" in m.over_caps for b in (mask.planned, mask.executed) for m in b.shown):
            console.print(Text("*: more tokens than plans of ours put on one device", style="dim"))
        console.print(_errors(mask), Text(""), sep="\n")


def introduction(tokens: int, ranks: int) -> str:
    """Return what the demonstration is about to do."""
    return (
        "The demonstration makes four data sets of your Python's source files, each with an "
        "attention mask. For each it plans a batch of 131,072 tokens for 32 simulated GPUs, beside "
        f"the usual layouts, and runs a batch of {tokens:,} tokens on {ranks} processes of this "
        "machine, to compare every output and gradient with dense attention. It takes one to two "
        "minutes on two cores; a first plan on this machine compiles the planner before that."
    )


def summary(report: DemoReport, cores: int) -> str:
    """Explain what the figures mean for the reader: gain, correctness, measured times."""
    executed = report.masks[0].executed
    ratios = [mask.measured_s / mask.executed.methods[0].predicted_s for mask in report.masks]
    verdict = "are" if report.verified else "are NOT all"
    return "\n\n".join(
        (
            f"Speed: {_gains(report)}. These GPUs are simulated: nothing ran on a GPU, and their "
            "times are predictions, of attention alone. Your own masks and lengths decide: "
            "dcpm plan MASK --dataset DATA --cluster h100-dgx:8x8 --against static.",
            f"Correctness: batches of some {executed.tokens:,} tokens ran forward and backward on "
            f"{report.ranks} processes of this machine; out, dq, dk and dv {verdict} within twice "
            "the error of ordinary attention in float32, against dense float64 attention. So "
            "training with a plan computes what training without it computes.",
            f"Measured times: {min(ratios):.1f} to {max(ratios):.1f} times the predicted ones, "
            "which rest on the preset cpu-gloo and on a free core for each process; this machine "
            f"has {cores} for {report.ranks}, and dcpm calibrate measures its constants.",
        )
    )


def _gains(report: DemoReport) -> str:
    """Name the predicted gain of each mask over the best static layout."""
    told = []
    for mask in report.masks:
        batch = mask.planned
        seconds = {method.method: method.predicted_s for method in batch.methods}
        rival = batch.best_static["of_all"]
        times = seconds[rival] / batch.methods[0].predicted_s
        told.append(f"{times:.2f} times as fast as {_plain(rival)} ({mask.mask.split('(')[0]})")
    planned = report.masks[0].planned
    return (
        f"on {planned.devices} GPUs the plans of dcp-dsl are predicted to be "
        f"{', '.join(told)}. Each is compared with the fastest static layout, even if that puts "
        "more tokens on one device (*) than dcp-dsl does"
    )


def _plain(method: str) -> str:
    return _LABELS.get(method, method.replace(":", " "))


def _sparsity(mask: MaskResult) -> Table:
    table = _table("tokens", "docs", "visible pairs", "of causal", "blocks", "all", "some", "none")
    table.add_row("", "", "", "", "", *[Text("visible", style="dim")] * 3)
    for batch in (mask.planned, mask.executed):
        table.add_row(
            f"{batch.tokens:,}",
            f"{batch.sequences}",
            f"{batch.pairs:,}",
            f"{batch.density:.1%}",
            f"{batch.full_blocks + batch.partial_blocks + batch.empty_blocks:,}",
            f"{batch.full_blocks:,}",
            f"{batch.partial_blocks:,}",
            f"{batch.empty_blocks:,}",
        )
    return table


def _placements(mask: MaskResult) -> Table:
    table = _table("planned by", "sent", "between", "compute", "tokens", "predicted", "measured")
    subheads = ("", "", "nodes", "most/mean", "most/mean", "attention", "")
    table.add_row(*(Text(text, style="dim") for text in subheads))
    for batch in (mask.planned, mask.executed):
        is_run = batch is mask.executed
        on = "processes" if is_run else "GPUs"
        table.add_row(Text(f"on {batch.devices} {on}", style="dim"))
        # Only the plan of the first method ran, so only its line has a measured time.
        for number, method in enumerate(batch.shown):
            table.add_row(
                f"  {_label(method, batch)}",
                _bytes(method.bytes_forward + method.bytes_backward),
                _bytes(method.bytes_between_nodes) if batch.nodes > 1 else "-",
                f"{method.compute_imbalance:.2f}",
                f"{method.token_imbalance:.2f}{'*' if 'tokens' in method.over_caps else ' '}",
                _seconds(method.predicted_s),
                _seconds(mask.measured_s) if is_run and number == 0 else "",
            )
    return table


def _label(method: MethodReport, batch: BatchReport) -> str:
    name = _plain(method.method)
    if batch.best_static.get("of_all") == method.method:
        return f"{name}, best"
    is_within = batch.best_static.get("within_token_cap") == method.method
    return f"{name}, best within the token cap" if is_within else name


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(first)  # narrow terminals wrap names; a figure is never cut off
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _errors(mask: MaskResult) -> Table:
    verdict = ("verified", "bold green") if mask.verified else ("NOT VERIFIED", "bold red")
    table = _table("error of the run", *(error.tensor for error in mask.errors), "")
    for label, field in (
        ("against dense float64 attention", "relative"),
        ("  of ordinary attention", "eager"),
        ("its worst element", "relative_max"),
        ("  of ordinary attention", "eager_max"),
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
