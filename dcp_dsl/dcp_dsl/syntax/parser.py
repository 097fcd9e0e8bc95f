"""Parse a text to its syntax tree, collecting every syntax error in one pass.

Each statement is parsed on its own (`tokens.split_statements` finds where they begin), so an error
in one never hides the next.
"""

from dataclasses import dataclass
from typing import Any

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program, Span
from dcp_dsl.syntax.ast_builder import BuildError
from dcp_dsl.syntax.diagnostics import (
    MAX_FINDINGS,
    Diagnostic,
    SpecError,
    make_diagnostic,
    replace_span,
)
from dcp_dsl.syntax.grammar import ODD_SPACE, NoParse, tables
from dcp_dsl.syntax.mistakes import MESSAGES, fail_unknown_statement
from dcp_dsl.syntax.tokens import (
    RESERVED,
    STATEMENT_KEYWORDS,
    RawToken,
    split_at_misspelt,
    split_statements,
)
from dcp_dsl.syntax.walk import moved

__all__ = ["MAX_CHARACTERS", "Parsed", "Program", "parse", "parse_all", "parse_expression"]

MAX_CHARACTERS = 2**16
LANGUAGE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Parsed:
    """The statements of a text that parse, and diagnostics for the others.

    Attributes:
        program: the statements without syntax errors.
        diagnostics: one per statement that failed.
        lost_names: names that failed statements would have defined; they are not unknown.
    """

    program: Program
    diagnostics: tuple[Diagnostic, ...]
    lost_names: frozenset[str]


def parse(text: str, name: str = "<text>") -> Program:
    """Turn the text of a .dcpm file into a syntax tree.

    Names and types are not looked at; `check` does that. O(length).

    Args:
        text: source of at most `MAX_CHARACTERS` characters.
        name: what diagnostics call it, usually the path.

    Raises:
        SpecError: with one diagnostic per statement that does not parse.

    >>> parse("mask band = causal and q - k < 4").statements[0].name.text
    'band'
    """
    parsed = parse_all(text, name)
    if parsed.diagnostics:
        raise SpecError(parsed.diagnostics)
    return parsed.program


def parse_all(
    text: str, name: str = "<text>", known: dict[str, ast.Statement] | None = None
) -> Parsed:
    """Parse every statement that can be parsed; never raises for a bad text.

    Args:
        text: of a .dcpm file.
        name: what diagnostics call it.
        known: statements of an earlier version by their text, which are moved instead of parsed;
            afterwards it holds those of this version.
    """
    if len(text) > MAX_CHARACTERS:
        message = f"this file has {len(text):_} characters; at most {MAX_CHARACTERS:_} are read"
        hint = "a spec describes masks; lengths of samples belong in the data set"
        diagnostic = make_diagnostic("E016", message, text[:200], Span(0, 1), name=name, hint=hint)
        return Parsed(Program((), text, name), (diagnostic,), frozenset())
    statements: list[ast.Statement] = []
    errors: list[Diagnostic] = []
    lost: set[str] = set()
    groups = split_at_misspelt(split_statements(text), text)
    was_cut = False
    fresh: dict[str, ast.Statement] = {}
    for index, group in enumerate(groups):
        try:
            statements.append(_parse_or_move(text, group, index, known, fresh))
        except BuildError as error:
            follower = groups[index + 1][0] if index + 1 < len(groups) else None
            cut = _cut_by_keyword(error, text, group, follower)
            if not was_cut:
                errors.append(_diagnose(cut or error, text, name))
            lost.update(_defined_names(group))
            was_cut = cut is not None
        else:
            was_cut = False
        if len(errors) >= MAX_FINDINGS:
            break
    if known is not None:
        known.clear()
        known.update(fresh)
    return Parsed(Program(tuple(statements), text, name), tuple(errors), frozenset(lost))


def _parse_or_move(
    text: str,
    group: list[RawToken],
    index: int,
    known: dict[str, ast.Statement] | None,
    fresh: dict[str, ast.Statement],
) -> ast.Statement:
    """Parse one statement, or move it where it was parsed before; `fresh` remembers it."""
    if known is None or not group or group[0].text == "dcpm":  # `dcpm` may only come first
        return _parse_group(text, group, index)
    start = group[0].span.start
    source = text[start : group[-1].span.end]
    before = known.get(source)
    if before is None:
        statement = _parse_group(text, group, index)
    else:
        statement = moved(before, start - before.span.start)
    fresh[source] = statement
    return statement


def parse_expression(text: str, name: str = "<expression>") -> ast.Expr:
    """Parse a single expression, such as the call of a mask.

    Raises:
        SpecError: with the one diagnostic.
    """
    if len(text) > MAX_CHARACTERS:
        shown = make_diagnostic("E016", "this expression is too long", text[:200], Span(0, 1))
        raise SpecError((shown,))
    tokens = [token for group in split_statements(text) for token in group]
    try:
        return _run(text, tokens, "expression")  # type: ignore[no-any-return]  # an `Expr`
    except BuildError as error:
        raise SpecError((_diagnose(error, text, name),)) from None


def _diagnose(error: BuildError, text: str, name: str) -> Diagnostic:
    fix = None if error.fix is None else replace_span(error.span, error.fix, text)
    return make_diagnostic(
        error.code, error.message, text, error.span, name=name, hint=error.hint, fix=fix
    )


def _cut_by_keyword(
    error: BuildError, text: str, group: list[RawToken], follower: RawToken | None
) -> BuildError | None:
    """Return the better error where a keyword, used as a name, cut a statement short."""
    end = group[-1].span.end
    if (
        group[0].text == "@"
        or follower is None
        or error.span.start < end
        or "\n" in text[end : follower.span.start]
    ):
        return None
    return BuildError(
        "E024", f"`{follower.text}` begins a statement and cannot be a name", follower.span,
        "choose another name",
    )  # fmt: skip


def _parse_group(text: str, group: list[RawToken], index: int) -> ast.Statement:
    """Parse one statement; `index` counts statements, because `dcpm 1` may only come first."""
    first = group[0]
    if first.text not in STATEMENT_KEYWORDS and first.text != "@":
        fail_unknown_statement(first)
    is_version = first.text == "dcpm"
    statement: ast.Statement = _run(text, group, "version" if is_version else "statement")
    if isinstance(statement, ast.Version):
        if index > 0:
            raise BuildError(
                "E019", "`dcpm` names the version and comes first", statement.span,
                "move it to the top of the file",
            )  # fmt: skip
        if statement.number != LANGUAGE_VERSION:
            raise BuildError(
                "E019", f"version {statement.number} of the language is not known", statement.span,
                f"this compiler reads `dcpm {LANGUAGE_VERSION}`",
            )  # fmt: skip
    return statement


def _run(text: str, tokens: list[RawToken], start: str) -> Any:  # Any: what the rule builds
    """Parse tokens and build what they say.

    Raises:
        BuildError: for the first syntax error; without one, for the first mistake in building.
    """
    if not tokens:
        raise BuildError("E005", MESSAGES["E005"].message, Span(0, 0), MESSAGES["E005"].hint)
    mistake: BuildError | None = None
    try:
        if not ODD_SPACE.search(text, tokens[0].span.start, tokens[-1].span.end):
            return tables().build(tokens, start)
    except NoParse:
        pass
    except BuildError as error:
        mistake = error
    from dcp_dsl.syntax.syntax_errors import fail_syntax  # here: Lark takes 60 ms to import

    fail_syntax(text, tokens, start)
    assert mistake is not None, "the tables and Lark read the same language"
    raise mistake


def _defined_names(group: list[RawToken]) -> set[str]:
    """Guess what a broken statement defines: its name and, for a segment, those of its parts."""
    names = {token.text for token in group[:8] if token.kind == "name"}
    if group[0].text == "segment":
        names.update(token.text for token in group if token.kind == "name")
    return names - RESERVED
