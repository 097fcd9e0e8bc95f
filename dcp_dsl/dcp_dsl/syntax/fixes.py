"""Make the changes that findings carry, as long as each of them mends something."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dcp_dsl.syntax.diagnostics import Diagnostic, Edit

MAX_PASSES = 10  # a mended error may uncover the next one


@dataclass(frozen=True, slots=True)
class FixedText:
    """A text after mending.

    Attributes:
        text: what it is now.
        fixed: findings that were mended, in the order of mending.
        remaining: what is still found in `text`.
    """

    text: str
    fixed: tuple[Diagnostic, ...]
    remaining: tuple[Diagnostic, ...]


Checker = Callable[[str, str], tuple[Diagnostic, ...]]


def fix_text(text: str, name: str, check: Checker) -> FixedText:
    """Mend a text pass by pass until no finding carries a fix.

    A pass after which the same codes are found as often as before is taken back. Mending may
    uncover findings of other codes: names are only looked at where the syntax is right.

    Args:
        text: source.
        name: what findings of this text are called; those of imported files are left alone.
        check: gives the findings of a text.

    >>> from dcp_dsl.specs.spec import check
    >>> fix_text("mask a = casual", "<text>", check).text
    'mask a = causal'
    """
    found = check(text, name)
    fixed: list[Diagnostic] = []
    for _ in range(MAX_PASSES):
        chosen = choose_fixes(found, name)
        if not chosen:
            break
        after = apply_edits(text, [e for d in chosen if d.fix is not None for e in d.fix.edits])
        left = check(after, name)
        mended = {d.code for d in chosen}
        if _count(left, mended) >= _count(found, mended):
            break
        text, found = after, left
        fixed += chosen
    return FixedText(text, tuple(fixed), found)


def _count(found: Sequence[Diagnostic], codes: set[str]) -> int:
    return sum(d.code in codes for d in found)


def choose_fixes(found: Sequence[Diagnostic], name: str) -> list[Diagnostic]:
    """Give the findings of a text whose fixes touch different places; the earlier one wins."""
    chosen: list[Diagnostic] = []
    end = -1
    for diagnostic in sorted(found, key=_first_edit):
        if diagnostic.fix is None or not diagnostic.fix.edits or diagnostic.name != name:
            continue
        if _first_edit(diagnostic) > end:
            chosen.append(diagnostic)
            end = max(edit.end for edit in diagnostic.fix.edits)
    return chosen


def _first_edit(diagnostic: Diagnostic) -> int:
    edits = diagnostic.fix.edits if diagnostic.fix is not None else ()
    return min((edit.start for edit in edits), default=-1)


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits that do not overlap.

    >>> apply_edits("mask a = q = k", [Edit(11, 12, "==")])
    'mask a = q == k'
    """
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text
