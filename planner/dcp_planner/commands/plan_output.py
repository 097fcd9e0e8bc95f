"""What `--out` of `dcpm plan` means: a plan, a folder of plans with a report, or a report."""

from dataclasses import dataclass
from pathlib import Path

import click

PLAN_SUFFIX = ".dcpplan"
REPORT_SUFFIX = ".dcpbatches.json"
REPORT_NAME = f"report{REPORT_SUFFIX}"
MOST_REPORTED = 4096


@dataclass(frozen=True, slots=True)
class PlanOutput:
    """Where plans and the report over them go; ``None`` for what is not written.

    Attributes:
        plan: file of the only plan.
        folder: folder of several.
        report: file of the report.
    """

    plan: Path | None = None
    folder: Path | None = None
    report: Path | None = None

    def plan_path(self, batch: int) -> Path | None:
        """Give the file for the plan of a batch, which is about to be written: make its folder.

        Raises:
            PlanFileError: if the folder cannot be made.
        """
        if self.folder is not None:
            from dcp_dsl import make_folder
            from dcp_planner.errors import PlanFileError

            make_folder(self.folder, PlanFileError)
            return self.folder / f"batch-{batch:05d}.dcpplan"
        return self.plan


def open_output(out: str | None, num_batches: int) -> PlanOutput:
    """Find out where to write; refuse before the work what cannot be written.

    Raises:
        click.BadParameter: if something else is in the way.
        PlanFileError: if files cannot be written there.
    """
    from dcp_dsl import check_writable
    from dcp_planner.errors import PlanFileError

    if out is None:
        return PlanOutput()
    output = _read_output(Path(out), num_batches)
    target = output.report or output.plan
    if output.folder is not None and not output.folder.is_dir():
        target = output.folder  # it is made beside others
    assert target is not None, "there is something to write"
    check_writable(target, PlanFileError)
    return output


def _read_output(path: Path, num_batches: int) -> PlanOutput:
    if path.suffix == ".json" or num_batches > 1:
        if num_batches > MOST_REPORTED:
            raise click.BadParameter(
                f"a report holds at most {MOST_REPORTED} batches, got {num_batches}; plan them in "
                "parts with --batch and --batches",
                param_hint="--batches",
            )
        return _of_report(path) if path.suffix == ".json" else _of_folder(path)
    if path.suffix not in ("", PLAN_SUFFIX):
        raise click.BadParameter(
            f"expected a plan to be a file whose name ends in {PLAN_SUFFIX}, or a report in "
            f"{REPORT_SUFFIX}, got {path.name}",
            param_hint="--out",
        )
    return PlanOutput(plan=path)


def _of_report(path: Path) -> PlanOutput:
    if not path.name.endswith(REPORT_SUFFIX):
        raise click.BadParameter(
            f"expected a report to be a file whose name ends in {REPORT_SUFFIX}, got {path.name}",
            param_hint="--out",
        )
    return PlanOutput(report=path)


def _of_folder(folder: Path) -> PlanOutput:
    if folder.exists() and not folder.is_dir():
        raise click.BadParameter(
            f"{folder} is no folder; with --batches every plan becomes a file of it",
            param_hint="--out",
        )
    return PlanOutput(folder=folder, report=folder / REPORT_NAME)
