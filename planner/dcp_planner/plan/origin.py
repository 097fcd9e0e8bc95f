"""The mask of a plan beside that of the text which the plan names as its source."""

from itertools import pairwise

import numpy as np

from dcp_dsl import DCPError, Form, Sample, Slabs, Spec
from dcp_dsl.arrays import Ints
from dcp_dsl.forms import compare_masks, is_equal
from dcp_planner.errors import PlanError
from dcp_planner.tables.plan import Plan


def check_origin(plan: Plan) -> str:
    """Compile the mask anew from the provenance of a valid plan and compare every sequence.

    Takes what compiling the mask on the samples takes, and the comparison of two forms.

    Returns:
        Why nothing could be compared; empty if the mask is that of the text.

    Raises:
        PlanError: if a sequence has another length or sees other pairs than the text says.
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
    own[:, :4] -= start
    return Slabs(end - start, *own.T)
