"""Find mistakes in the samples that a text declares: unfit columns, and misspelt ones."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dcp_dsl.checks.scope import Scope, find_library_scope
from dcp_dsl.core.columns import bind_columns, integers
from dcp_dsl.core.sample import NoLengthError, Sample, declared_sample
from dcp_dsl.elaboration.programs import layout_columns
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import Guess, did_you_mean
from dcp_dsl.syntax.trees import mentioned_names, walk

UNFIT = "mend the sample so that its layout fills it"


@dataclass(frozen=True, slots=True)
class SampleMistake:
    """A mistake in a sample, in the words of `dcpm check`.

    `meant` are the columns that the sample should have.
    """

    code: str
    message: str
    span: ast.Span
    hint: str
    meant: frozenset[str]

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})"


def unfit(definition: ast.SampleDef, scope: Scope) -> SampleMistake | None:
    """Return why the columns of a sample do not fit the text; None if they do."""
    try:
        _check_columns(declared_sample(definition, scope), scope)
    except NoLengthError:  # no fault: a sample may be there just to show the columns
        return None
    except DatasetError as error:
        meant = frozenset(field.name.text for field in definition.fields)
        return SampleMistake("W292", str(error), definition.span, UNFIT, meant)
    return None


def _check_columns(sample: Sample, scope: Scope) -> None:
    """Raise a `DatasetError` for columns of tokens or segments that do not have their shape."""
    given, length = sample.columns, sample.length
    for token in scope.tokens.values():
        column = token.column.text
        if token.segment is None and column in given:
            shape = (length,) if token.size is None else (length, token.size)
            integers(given[column], shape, f"token column `{column}`")
    for segment in scope.segments.values():
        source = segment.source
        if isinstance(source, ast.Columns) and source.column.text in given:
            bind_columns(segment, source, given, length)


def misspelt(
    definition: ast.SampleDef, scope: Scope, read: frozenset[str]
) -> Iterator[SampleMistake]:
    """Yield the columns of a sample that look like one of those `read` which it lacks."""
    given = frozenset(field.name.text for field in definition.fields)
    for field in definition.fields:
        name = field.name.text
        hint = did_you_mean(name, read - given) if name not in read | {"len"} else ""
        if isinstance(hint, Guess):
            message = f"sample `{definition.name.text}`: nothing reads the column `{name}`"
            meant = given - {name} | {hint.word}
            yield SampleMistake("W294", message, field.name.span, hint, meant)


def read_columns(scope: Scope) -> frozenset[str]:
    """Return the columns that a text reads, with its imports and masks of the library."""
    others = [s for s in scope.program.statements if not isinstance(s, ast.SampleDef)]
    found = _columns([*others, *scope.imported.segments.values(), *scope.imported.tokens.values()])
    scopes = [at for _, at in scope.imported.masks.values()]
    used = {name for statement in others for name, _ in mentioned_names(statement)}
    scopes += filter(None, map(find_library_scope, sorted(used - scope.masks.keys())))
    return frozenset(found.union(*(_columns(at.program.statements) for at in scopes)))


def _columns(statements: Iterable[object]) -> set[str]:
    found: set[str] = set()
    for node in (node for statement in statements for node in walk(statement)):
        match node:
            case ast.Layout():
                found |= {*layout_columns(node)}
            case ast.Columns() | ast.Token():
                found.add(node.column.text)
            case ast.Attribute(ast.Name("row"), name):
                found.add(name.text)
    return found
