"""The part of `dcpm check` that looks at a data set."""

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dcp_dsl.specs.spec import Spec

QUIET_S = 0.5  # nothing is shown of what is done sooner


def check_dataset_command(files: tuple[str, ...], dataset: str, *, as_json: bool) -> int:
    """Report what the spec does to a data set; give the exit status."""
    from dcp_dsl.coverage.dataset_checker import check_dataset
    from dcp_dsl.specs.spec import load

    if len(files) != 1:
        raise click.UsageError("--dataset takes one spec: dcpm check SPEC --dataset PATH")
    spec = load(files[0])
    _require_statements(spec)
    with _Bar(dataset) as bar:
        coverage = check_dataset(spec, dataset, bar.advance)
    click.echo(json.dumps(coverage.to_json()) if as_json else coverage.text())
    good = coverage.num_rows - coverage.num_refused
    click.echo(f"{good:,} of {coverage.num_rows:,} rows accepted", err=True)
    return int(coverage.num_refused > 0)


def _require_statements(spec: "Spec") -> None:
    from dcp_dsl.syntax.ast import Attach

    if not any(isinstance(s, Attach) for s in spec.scope.program.statements):
        masks = ", ".join(spec.masks) or "causal"
        raise click.UsageError(
            f'{spec.name} attaches no mask to data; add `for "*" use MASK` (masks: {masks})'
        )


class _Bar:
    """A progress bar on standard error with rate and time left, once it is worth having one."""

    def __init__(self, dataset: str) -> None:
        self.dataset, self.done = dataset, 0
        self.started = time.monotonic()
        self.progress: Any = None  # Any: rich is imported when it is needed
        self.task: Any = None  # Any: as above

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def advance(self, rows: int) -> None:
        """Count rows as done."""
        self.done += rows
        if self.progress is None and time.monotonic() - self.started > QUIET_S:
            self._show()
        if self.progress is not None:
            self.progress.update(self.task, completed=self.done)

    def _show(self) -> None:
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        from dcp_dsl.coverage.dataset_checker import count_rows

        self.progress = Progress(
            "checking rows", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self.task = self.progress.add_task("rows", total=count_rows(self.dataset))
        self.progress.start()
