"""Find masks that would train garbage: look-ahead, tokens that see nothing, impossible numbers.

Each mask is first proved sound for every sample. Where the proof fails, samples are searched for a
fault.
"""

from dcp_dsl.claims.guard import leaking_pairs, read_decorators
from dcp_dsl.claims.lints.claim import Claim, conclude, report_untested, search
from dcp_dsl.claims.lints.subject import Subject, definition_of, given
from dcp_dsl.claims.testing import IF_FITTING, Testing, first_empty_row, first_wrong_pair
from dcp_dsl.core.mask import may_begin_before
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.proving import is_total, never
from dcp_dsl.syntax import ast

_MOST_TRIED = 4  # segments that `@ahead` may name


def has_zeros(subject: Subject, testing: Testing) -> bool:
    """Report divisors and sizes of tiles below 1 that arguments or defaults bring (E111)."""
    has_found = False
    for node in nodes.walk(subject.mask.core):
        match node:
            case nodes.Arithmetic("//" | "%", _, nodes.Const(value, place=place)) | nodes.Tiles(
                nodes.Const(value, place=place)
            ) if value < 1:
                has_found = True
                # A place in another file cannot be shown here; the use of that mask can.
                span = place.span if place.program is testing.scope.program else subject.span
                message = f"expected at least 1, got {value}"
                testing.report("E111", message, span, "sizes and divisors are positive")
    return has_found


def empty_rows(subject: Subject, testing: Testing) -> None:
    """Look for tokens that see nothing (E121), and masks without pairs (E122).

    Two proofs come first: that every token sees itself, and that no token ever sees any.
    """
    _, _, is_partial = read_decorators(definition_of(subject))
    what, core = f"{subject.what}: every token sees something", subject.mask.core
    if may_begin_before(subject.written):
        what += IF_FITTING
        # Only samples of the text may break the condition, and then they show it.
        if not is_partial:
            tried = search(subject.written, first_empty_row, testing)
            if tried.failure is not None:
                conclude(_sees_something(what), tried, subject, testing)
                return
    is_one = subject.mask.keys is None  # proofs speak of one sequence
    if is_one and is_total(core, testing.proofs):
        if not is_partial:
            testing.decide(what, "proved", subject.span)
        return
    # Other proofs take parameters to be at least 1; an error must hold for all that may be given.
    any_number = given(core, lambda name: nodes.RowColumn(f"parameter {name}"))
    if is_one and never(any_number, budget=testing.proofs):
        message = "this mask is empty: no token ever sees anything"
        testing.report(
            "E122", message, subject.span, "look for two conditions that exclude each other"
        )
        testing.decide(what, "failed", subject.span)
    elif not is_partial:
        _test_empty(what, subject, testing)


def _sees_something(what: str) -> Claim:
    return Claim(
        what, "whether every token sees something", first_empty_row,
        "E121", "a token sees nothing",
        "mend the mask, or mark it `@partial` if such rows are meant", "mark the mask `@partial`",
    )  # fmt: skip


def _test_empty(what: str, subject: Subject, testing: Testing) -> None:
    """Look on samples for tokens that see nothing.

    A made-up token column proves nothing here: `q < k.evict` hides every key where the column is
    0, but no data set has such a column. Only declared samples test such a mask. Without them, the
    made-up sample becomes part of the warning.
    """
    claim = _sees_something(what)
    tried = search(subject.mask, claim.find, testing, with_open=False)
    if not tried.samples and not tried.code:
        guess = search(subject.mask, claim.find, testing)
        if guess.failure is not None:
            report_untested(claim, guess, subject, testing)
            return
        tried = guess
    conclude(claim, tried, subject, testing)


def look_ahead(subject: Subject, testing: Testing) -> None:
    """Look for tokens that see a later one where no `@ahead` allows it (E120)."""
    if subject.mask.keys is not None:  # between two sequences no token is later than another
        return
    found = definition_of(subject)
    is_anywhere, segments, _ = read_decorators(found)
    if is_anywhere:
        return
    mask, where = leaking_pairs(subject.mask, segments, found[1] if found else testing.scope), ""
    if segments:
        where = f" outside {' and '.join(f'`{s.text}`' for s in segments)}"
    what = f"{subject.what}: no look-ahead{where}"
    if never(mask.core, budget=testing.proofs):
        testing.decide(what, "proved", subject.span)
        return
    claim = Claim(
        what, f"whether a token sees a later one{where}", first_wrong_pair,
        "E120", f"a token sees a later one{where}",
        f"add `causal and`, or mark the mask {_ahead_of(subject, testing)} if it is meant",
        "add `causal and`",
    )  # fmt: skip
    conclude(claim, search(mask, claim.find, testing), subject, testing)


def _ahead_of(subject: Subject, testing: Testing) -> str:
    """Return the decorators that allow the look-ahead, with the segment that holds all of it."""
    found = definition_of(subject)
    _, marked, _ = read_decorators(found)
    # The parts of a layout come behind its own name, and say more.
    for name in [*found[1].segments][: -_MOST_TRIED - 1 : -1] if found else ():
        segments = (*marked, ast.Ident(name))
        leak = leaking_pairs(subject.mask, segments, found[1] if found else testing.scope)
        if never(leak.core, budget=testing.proofs):
            shown = ", ".join(segment.text for segment in segments)
            return f"`@ahead({shown})`, or `@ahead` for look-ahead anywhere,"
    return "`@ahead`"
