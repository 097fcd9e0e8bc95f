"""Findings of the compiler: code, place, message, hint and fix; verdicts on statements.

Fixes are applied pass by pass, as long as each pass mends something.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Literal, TypeAlias, get_args

from dcp_dsl.errors import DCPError
from dcp_dsl.syntax.ast import Span

MAX_FINDINGS = 100  # nobody reads more at once, and locating them all is slow
MAX_CANDIDATES = 300  # words that an unknown one is compared with, each in some 50 us
MAX_PASSES = 30  # a mended error may uncover the next one
CERTAIN = 0.75  # how alike two words are before one is put in place of the other

UNDECIDED = frozenset({"W290", "W291", "W293"})  # what `--strict` does not let pass

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the characters ``[start, end)`` of the whole text by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that certainly mends a finding; `edits` are in order and do not overlap."""

    title: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A finding in a text.

    Attributes:
        code: stable, documented in ``docs/diagnostics.md``; errors begin with E or C, warnings
            with W.
        severity: an error keeps the text from being used, a warning does not.
        message: one line, in the words of the language.
        line, column: where it starts, both from 1.
        end_column: where it ends on that line, exclusive.
        source_line: the text of that line.
        name: file name, or what stands for it.
        hint: the way out, or an empty text.
        label: what the caret says, or an empty text.
        start, end: the same place in characters of the whole text.
        fix: a change that certainly mends it, or None; ``dcpm check --fix`` makes it.
        is_unknown_name: whether a name means nothing where any mask could stand.
    """

    code: str
    severity: Severity
    message: str
    line: int
    column: int
    end_column: int
    source_line: str
    name: str
    hint: str = ""
    label: str = ""
    start: int = 0
    end: int = 0
    fix: Fix | None = None
    is_unknown_name: bool = False

    @property
    def guess(self) -> Fix | None:
        """The change that the hint proposes; a person decides whether it mends the text."""
        given = self.source_line[self.column - 1 : self.end_column - 1]
        if not isinstance(self.hint, Guess) or len(given) != self.end - self.start:
            return None
        title = f"replace `{given}` by `{self.hint.word}`"
        return Fix(title, (Edit(self.start, self.end, self.hint.word),))

    def render(self) -> str:
        """Return the long form: message, place, source line with caret, hint.

        >>> print(make_diagnostic("E101", "unknown name `kk`", "mask a = kk", Span(9, 11)).render())
        error[E101]: unknown name `kk`
          --> <text>:1:10
           |
         1 | mask a = kk
           |          ^^
        """
        shown, first, last = _window(self.source_line, self.column - 1, self.end_column - 1)
        gutter = " " * len(str(self.line))
        caret = " " * first + "^" * max(1, last - first)
        if self.label:
            caret += f" {self.label}"
        lines = [
            f"{self.severity}[{self.code}]: {self.message}",
            f" {gutter}--> {self.name}:{self.line}:{self.column}",
            f" {gutter} |",
            f" {self.line} | {shown}".rstrip(),
            f" {gutter} | {caret}",
        ]
        if self.hint:
            lines.append(f" {gutter} = help: {self.hint}")
        return "\n".join(lines)

    def concise(self) -> str:
        """Format the finding in one line: ``name:line:column: code message``.

        >>> make_diagnostic("E101", "unknown name `kk`", "mask a = kk", Span(9, 11)).concise()
        '<text>:1:10: E101 unknown name `kk`'
        """
        return f"{self.name}:{self.line}:{self.column}: {self.code} {self.message}"

    def to_json(self) -> dict[str, Any]:  # Any: texts and numbers, ready for json.dumps
        """Return the fields that tools need, as JSON values."""
        return {
            "code": self.code, "severity": self.severity, "message": self.message,
            "hint": self.hint, "file": self.name, "line": self.line, "column": self.column,
            "end_column": self.end_column, "fix": None if self.fix is None else asdict(self.fix),
        }  # fmt: skip


Outcome: TypeAlias = Literal["proved", "tested", "failed", "untested"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a statement: proved, tested, failed or untested.

    Attributes:
        what: the statement, such as ``mask packed: no look-ahead`` or the text of a `check`.
        outcome: *proved* for every sample; *tested* on `samples` small ones that fit the layouts;
            *failed* on one, which the diagnostic of that line shows; or *untested*.
        line: of the text, from 1.
        samples: how many samples were tried.
        reason: why it is untested, else empty.
    """

    what: str
    outcome: Outcome
    line: int
    samples: int = 0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:  # Any: texts and numbers, ready for json.dumps
        """Return the fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of a text in its order, and all verdicts."""

    diagnostics: tuple[Diagnostic, ...]
    verdicts: tuple[Verdict, ...]

    def summary(self) -> str:
        """Count in one line the statements proved, tested, failed and not tested."""
        return count_outcomes(self.verdicts, "statement") or "0 statements: none"


def count_outcomes(verdicts: Sequence[Verdict], noun: str) -> str:
    """Count how many were proved, tested, failed and not tested; empty without any."""
    outcomes = [verdict.outcome for verdict in verdicts]
    counts = [f"{outcomes.count(o)} {o}" for o in get_args(Outcome) if o in outcomes]
    count = f"{len(outcomes)} {noun}{'' if len(outcomes) == 1 else 's'}"
    return f"{count}: {', '.join(counts)}" if outcomes else ""


class SpecError(DCPError):
    """A .dcpm text with errors: `diagnostics` holds all of them."""

    exit_code = 1

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.diagnostics = diagnostics
        super().__init__("\n\n".join(d.render() for d in diagnostics))


class MaskCallError(SpecError):
    """A mask named or called in an argument, as ``--mask`` does, that the text does not have.

    The text itself may be right: unlike errors in it, this is wrong usage.
    """

    exit_code = 2


def strict(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Turn warnings about claims that are neither proved nor tested into errors."""
    return tuple(replace(d, severity="error") if d.code in UNDECIDED else d for d in found)


def make_diagnostic(  # noqa: PLR0913  # all but four are keywords that most callers leave out
    code: str,
    message: str,
    text: str,
    span: Span,
    *,
    name: str = "<text>",
    hint: str = "",
    label: str = "",
    fix: Fix | None = None,
    is_unknown_name: bool = False,
) -> Diagnostic:
    """Place a message at a span of a text; a span of several lines is shown on its first line.

    A `Guess` as the hint becomes a fix where the span is one word and the two are very close.
    """
    start = min(span.start, len(text))
    # A span may lie behind the text, where something is missing at its end.
    begin = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    return Diagnostic(
        code=code,
        severity="warning" if code.startswith("W") else "error",
        message=message,
        line=text.count("\n", 0, start) + 1,
        column=start - begin + 1,
        end_column=max(start + 1, min(span.end, line_end)) - begin + 1,
        source_line=text[begin:line_end].rstrip("\r"),
        name=name,
        hint=hint,
        label=label,
        start=span.start,
        end=span.end,
        fix=fix or _word_fix(text, span, hint),
        is_unknown_name=is_unknown_name,
    )


def _word_fix(text: str, span: Span, hint: str) -> Fix | None:
    """Return the change that a `did_you_mean` hint stands for, if it is certain enough to make."""
    given = span.text(text)
    if not isinstance(hint, Guess) or not given.isidentifier() or not hint.word.isidentifier():
        return None
    if SequenceMatcher(None, given, hint.word).ratio() < CERTAIN:
        return None
    return replace_span(span, hint.word, text)


def replace_span(span: Span, word: str, text: str) -> Fix:
    """Return the fix that puts `word` in place of a span of a text."""
    given = span.text(text)
    title = f"replace `{given}` by `{word.strip()}`" if given else f"insert `{word.strip()}`"
    return Fix(title, (Edit(span.start, span.end, word),))


class Guess(str):
    """A hint to another `word`: the text is for people, the word for the fix."""

    __slots__ = ("word",)
    word: str

    def __new__(cls, word: str) -> "Guess":
        """Make the hint that asks for `word`."""
        made = super().__new__(cls, f"did you mean `{word}`?")
        made.word = word
        return made


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return ``did you mean `x`?``, a `Guess`, for the closest known word, or an empty text.

    >>> did_you_mean("casual", ["causal", "full"])
    'did you mean `causal`?'
    """
    # Comparing is slow for long words, and a word of another length is not close. Sorted, since the
    # order of a set differs from run to run and only the first of many words are compared.
    near = [k for k in sorted(known) if abs(len(k) - len(word)) <= 8][:MAX_CANDIDATES]
    close = get_close_matches(word, near, n=1, cutoff=0.6) if len(word) < 64 else []
    return Guess(close[0]) if close else ""


def _window(line: str, start: int, end: int, width: int = 120) -> tuple[str, int, int]:
    """Cut a long line around the caret and replace tabs, so that the caret keeps its place."""
    line = "".join(c if c.isprintable() else " " for c in line)
    if len(line) <= width:
        return line, start, min(end, len(line) + 1)
    # A third of the width stands in front of the caret, except at the ends of the line.
    left = max(0, min(start - width // 3, len(line) - width))
    shown = line[left : left + width]
    return shown, start - left, min(end - left, width)


@dataclass(frozen=True, slots=True)
class FixedText:
    """A text after mending, findings that were mended, in that order, and those it still has."""

    text: str
    fixed: tuple[Diagnostic, ...]
    remaining: tuple[Diagnostic, ...]


CheckText: TypeAlias = Callable[[str, str], tuple[Diagnostic, ...]]


def fix_text(text: str, name: str, check: CheckText) -> FixedText:
    """Mend a text pass by pass until no finding carries a fix.

    A pass after which the same codes are found as often as before is taken back, unless all of
    them lie behind what was mended: only the first mistake of a statement is reported. Mending may
    uncover findings of other codes: names are only looked at where the syntax is right. Findings of
    imported files, under other names, are left alone.
    """
    found = check(text, name)
    fixed: list[Diagnostic] = []
    for _ in range(MAX_PASSES):
        chosen = choose_fixes(found, name)
        if not chosen:
            break
        edits = [e for d in chosen if d.fix is not None for e in d.fix.edits]
        after = apply_edits(text, edits)
        left = check(after, name)
        # Counting by code: a fix that is wrong gives the same finding again, for ever.
        mended = {d.code for d in chosen}
        before, now = ([d.start for d in all_ if d.code in mended] for all_ in (found, left))
        if len(now) > len(before) or (len(now) == len(before) and not _are_behind(now, edits)):
            break
        text, found = after, left
        fixed += chosen
    return FixedText(text, tuple(fixed), found)


def _are_behind(starts: Sequence[int], edits: Sequence[Edit]) -> bool:
    """Return whether each place in a mended text lies behind an edit of its own."""
    ends, shift = [], 0  # where edits end in the mended text
    for edit in sorted(edits, key=lambda e: e.start):
        shift += len(edit.text) - (edit.end - edit.start)
        ends.append(edit.end + shift)
    return len(starts) <= len(ends) and all(
        start >= end for start, end in zip(sorted(starts), ends, strict=False)
    )


def choose_fixes(found: Sequence[Diagnostic], name: str) -> list[Diagnostic]:
    """Return the findings of a text whose fixes touch different places; the earlier one wins."""
    chosen: list[Diagnostic] = []
    end = -1
    fixes = [(d.fix.edits, d) for d in found if d.fix is not None and d.name == name]
    for edits, diagnostic in sorted(fixes, key=lambda pair: pair[0][0].start):
        if edits[0].start > end:
            chosen.append(diagnostic)
            end = edits[-1].end
    return chosen


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits that do not overlap."""
    # From the end, so that the places of the others stay right.
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text
