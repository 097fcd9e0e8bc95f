"""Output of the commands: JSON, messages, and the files of `dcpm plan --out`.

These are a plan, a folder of plans with a report, or a report alone.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from dcp_planner.batches.planning import BatchRow, PlannedMask
    from dcp_planner.batches.report_file import DatasetRun, ReportWriter


def say(text: str) -> None:
    """Print a message to standard error, away from the data."""
    click.echo(text, err=True)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document; `Any`: what JSON holds. Infinity and NaN become ``null``."""
    from dcp_planner.report.figures import json_text

    click.echo(json_text(document))


PLAN_SUFFIX = ".dcpplan"
REPORT_SUFFIX = ".dcpbatches.json"
REPORT_NAME = f"report{REPORT_SUFFIX}"


@dataclass(frozen=True, slots=True)
class PlanOutput:
    """Paths of the plans and of their report; ``None`` for files that are not written.

    Each mask of a stack gets files of its own: ``x.0-sliding.dcpplan``.
    """

    plan: Path | None = None  # file of the only plan
    folder: Path | None = None  # folder of several plans
    report: Path | None = None  # file of the report
    label: str = ""  # label of a stack's mask, for the names of the plans in the folder

    def of_mask(self, label: str) -> "PlanOutput":
        """Return the output of one mask of a stack."""
        return PlanOutput(
            plan=self.plan and _labelled(self.plan, label, PLAN_SUFFIX),
            folder=self.folder,
            report=self.report and _labelled(self.report, label, REPORT_SUFFIX),
            label=label,
        )

    def plan_path(self, batch: int) -> Path | None:
        """Return the file for the plan of a batch, and make its folder."""
        if self.folder is not None:
            from dcp_dsl.files import make_folder
            from dcp_planner.errors import PlanFileError

            # Only now: a command that fails before its first plan leaves no folder behind.
            make_folder(self.folder, PlanFileError)
            path = self.folder / f"batch-{batch:05d}{PLAN_SUFFIX}"
            return _labelled(path, self.label, PLAN_SUFFIX) if self.label else path
        return self.plan


@dataclass(slots=True)
class MaskOutput:
    """The output of one mask, batch by batch."""

    run: "DatasetRun"  # the command as it concerns this mask
    output: PlanOutput  # paths of its files
    rows: "list[BatchRow]" = field(default_factory=list)  # of the batches so far
    last: "PlannedMask | None" = None  # the batch that was planned last
    _writer: "ReportWriter | None" = None

    @classmethod
    def of(cls, run: "DatasetRun", output: PlanOutput, first: "PlannedMask") -> "MaskOutput":
        """Open the output of the mask of a planned batch."""
        from dcp_planner.batches.report_file import ReportWriter

        # A stack and its masks are known only once the first batch is compiled.
        if first.use is not None:
            run = replace(run, mask=first.row.mask, use=first.use)
            output = output.of_mask(first.use.label)
        writer = None if output.report is None else ReportWriter(output.report, run)
        return cls(run, output, _writer=writer)

    def add(self, made: "PlannedMask") -> None:
        """Write the plan of one more batch, if plans are written."""
        from dcp_planner.plan.file import left_out

        path = self.output.plan_path(made.row.index)
        self.last = made if path is None else made.written(path)
        if path is not None and (told := left_out(made.plan)):
            say(f"{path}: {told}")
        self.rows.append(self.last.row)
        self.report()

    def report(self, *, is_complete: bool = False) -> None:
        """Write the report of the batches so far, if one is written."""
        if self._writer is not None:
            self._writer.write(self.rows, is_complete=is_complete)


def open_output(out: str | None, num_batches: int) -> PlanOutput:
    """Find the paths to write; refuse unwritable ones before the work."""
    from dcp_dsl.files import check_writable
    from dcp_planner.errors import PlanFileError

    if out is None:
        return PlanOutput()
    output = _read_output(Path(out), num_batches)
    # The report of a folder stands for the plans in it.
    target = output.report or output.plan
    if output.folder is not None and not output.folder.is_dir():
        target = output.folder  # it is made beside others
    assert target is not None, "every output has a plan or a report"
    check_writable(target, PlanFileError)
    return output


def _read_output(path: Path, num_batches: int) -> PlanOutput:
    """Choose the files from a path and the number of batches."""
    from dcp_planner.batches.report_file import MOST_BATCHES

    is_report = path.suffix == ".json"
    if not is_report and num_batches == 1:
        # `x` names a plan as it is; `x.txt` is more likely a mistake.
        if path.suffix not in ("", PLAN_SUFFIX):
            _refuse(
                f"expected a plan to be a file whose name ends in {PLAN_SUFFIX}, or a report in "
                f"{REPORT_SUFFIX}, got {path.name}"
            )
        return PlanOutput(plan=path)
    if num_batches > MOST_BATCHES:
        _refuse(
            f"a report holds at most {MOST_BATCHES} batches, got {num_batches}; plan them in "
            "parts with --batch and --batches",
            "--batches",
        )
    if is_report:
        if not path.name.endswith(REPORT_SUFFIX):
            _refuse(
                f"expected a report to be a file whose name ends in {REPORT_SUFFIX}, got "
                f"{path.name}"
            )
        return PlanOutput(report=path)
    if path.suffix == PLAN_SUFFIX or (path.exists() and not path.is_dir()):
        _refuse(f"{path} is no folder; with --batches every plan becomes a file of one")
    return PlanOutput(folder=path, report=path / REPORT_NAME)


def _refuse(text: str, option: str = "--out") -> NoReturn:
    raise click.BadParameter(text, param_hint=option)


def _labelled(path: Path, label: str, suffix: str) -> Path:
    stem = path.name.removesuffix(suffix)
    return path.with_name(f"{stem}.{label}{path.name[len(stem) :]}")
