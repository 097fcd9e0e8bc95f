"""Decide whether a statement holds of a mask, after a proof failed, and report what was found.

A search tries small samples that fit the mask's columns; the error shows the smallest sample that
breaks the statement. A statement that can be neither proved nor tested is a warning, W293.
"""

from dataclasses import dataclass, replace

from dcp_dsl.claims.column_samples import column_kinds
from dcp_dsl.claims.lints.subject import Subject, small
from dcp_dsl.claims.testing import Finder, Testing, Tried, search_fault
from dcp_dsl.core.mask import Mask


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement that must hold of a mask.

    `question` is the statement as a question, for the warning that it is not tested; `find` finds
    the place on a sample that contradicts it; `way_out` is how to avoid the claim.
    """

    what: str
    question: str
    find: Finder
    code: str
    message: str
    hint: str
    way_out: str


def search(mask: Mask, find: Finder, testing: Testing, *, with_open: bool = True) -> Tried:
    """Look for a fault on samples, with small numbers for free parameters."""
    return search_fault(replace(mask, core=small(mask.core)), find, testing, with_open=with_open)


def conclude(claim: Claim, tried: Tried, subject: Subject, testing: Testing) -> None:
    """Report the outcome of a search: a fault, samples without a fault, or nothing to test."""
    if tried.failure is not None:
        message = f"{claim.message}: {tried.failure.described()}"
        testing.report(claim.code, message, subject.span, claim.hint)
        testing.decide(claim.what, "failed", subject.span, tried.samples)
    elif tried.samples and not tried.code:
        testing.decide(claim.what, "tested", subject.span, tried.samples)
    else:
        report_untested(claim, tried, subject, testing)


def report_untested(claim: Claim, tried: Tried, subject: Subject, testing: Testing) -> None:
    """Warn that a claim is neither proved nor tested, and say what a `sample` must give."""
    reason, hint = tried.reason, tried.hint
    if not reason:
        # There was no sample: name the columns for which none could be made up.
        mask = subject.mask
        kinds = column_kinds(mask.core)
        unknown = [column for column in sorted(mask.columns) if column not in kinds]
        open_ = [column for column, kind in sorted(kinds.items()) if kind.is_open]
        wanted = " and ".join(f"`{column}`" for column in open_ or unknown)
        reason = f"no sample gives {wanted or 'a length'}"
        given = "".join(f"{column} = ..., " for column in sorted(mask.columns))
        hint = f"add `sample tiny({given}len = ...)` as in your data, or {claim.way_out}"
    if tried.failure is not None:
        hint += f"; made-up values break it {tried.failure.described()}"
    message = f"{claim.question} is not tested: {reason}"
    testing.report("W293", message, subject.span, hint)
    testing.decide(claim.what, "untested", subject.span, reason=reason)
