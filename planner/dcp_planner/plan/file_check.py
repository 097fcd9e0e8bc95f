"""Check a plan file: read it, validate its plan, compare its mask with the mask's own text."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from dcp_dsl import DCPError, Form, Sample, Slabs, Spec, printable
from dcp_dsl.arrays import Ints
from dcp_dsl.forms import compare_masks, is_equal
from dcp_planner.errors import InvariantError, PlanError, PlanFileError
from dcp_planner.plan.file import read_plan
from dcp_planner.tables.plan import Plan


@dataclass(frozen=True, slots=True)
class FileCheck:
    """Result of the check of one file."""

    file: str  # its path
    # `valid`, `broken` (an invariant does not hold) or `unreadable`
    status: Literal["valid", "broken", "unreadable"]
    invariant: str = ""  # the rule that does not hold, as a sentence; empty unless broken
    # the row that shows it, for example `tile 3 (q_block 1, kv_block 0)`; may be empty
    where: str = ""
    message: str = ""  # the whole error for people; empty if valid
    # why the mask of a valid plan was not compared with the text that made it
    not_compared: str = ""

    @property
    def exit_code(self) -> int:
        """0 valid, 1 broken, 2 unreadable."""
        return ("valid", "broken", "unreadable").index(self.status)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts."""
        return {name: getattr(self, name) for name in self.__slots__}

    def to_text(self) -> str:
        """Format the result as a line for people."""
        if self.status == "valid":
            rest = self.not_compared and f"; mask not compared: {self.not_compared}"
            return printable(f"{self.file}: valid{rest}")
        if self.status == "unreadable":
            return self.message
        where = f"; at {self.where}" * bool(self.where)
        return printable(f"{self.file}: broken: {self.invariant}{where}")


def check_file(path: str) -> FileCheck:
    """Read a plan file, check its plan, and compare its mask with the text in its provenance.

    No content of the file makes it raise an error.
    """
    try:
        plan = read_plan(path, is_foreign=True).plan
        return FileCheck(path, "valid", not_compared=check_origin(plan))
    except PlanError as error:  # of `check_origin`: the file was read
        return FileCheck(path, "broken", str(error), message=f"plan file {path}: {error}")
    except PlanFileError as error:
        # A broken invariant comes wrapped, with the name of the file.
        broken = _cause(error)
        if broken is None:
            return FileCheck(path, "unreadable", message=str(error))
        if isinstance(broken, InvariantError):
            return FileCheck(path, "broken", broken.invariant, broken.where, str(error))
        return FileCheck(path, "broken", str(broken), message=str(error))


def _cause(error: BaseException) -> PlanError | None:
    """Find the broken invariant that an error of the file was raised from, if there is one."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, PlanError):
        cause = cause.__cause__
    return cause


def check_origin(plan: Plan) -> str:
    """Compile the mask anew from the provenance of a valid plan and compare every sequence.

    Returns the reason why nothing could be compared; empty if the masks are equal.
    """
    source = plan.provenance
    if source is None:
        return "the plan names no text"
    try:
        mask = Spec.from_text(source.spec, "<plan>", dict(source.files)).mask(source.mask)
        samples = [Sample.from_json(text) for text in source.samples]
        expected = [mask.compile(sample) for sample in samples]
    except DCPError as error:
        return f"its text gives no mask `{source.mask}`: {error}"
    spans = list(pairwise(plan.cu_seqlens.tolist()))
    table = plan.slabs.table()
    # Sorted by their first row, the slabs of a sequence lie side by side.
    table = table[np.argsort(table[:, 0], kind="stable")]
    if [form.num_tokens for form in expected] != [end - start for start, end in spans]:
        raise PlanError("the samples of the plan's text are as long as its sequences")
    for number, (span, form) in enumerate(zip(spans, expected, strict=True)):
        own = _form_of(plan, table, *span)
        if is_equal(own, form):
            continue
        found = compare_masks(own, form)
        raise PlanError(
            f"the mask is `{source.mask}` of the plan's text: sequence {number} sees "
            f"{found.only_left} pairs more and {found.only_right} fewer, the first is (query, key) "
            f"{found.first}"
        )
    return ""


def _form_of(plan: Plan, table: Ints, start: int, end: int) -> Form:
    """Return the mask of one sequence; `table` holds the slabs of all, by their first row."""
    for placed in plan.forms:
        if placed.q_start == start:
            return placed.form
    first, last = np.searchsorted(table[:, 0], (start, end))
    own = table[first:last].copy()
    own[:, :4] -= start  # rows and keys; the two slopes stay
    return Slabs(end - start, *own.T)
