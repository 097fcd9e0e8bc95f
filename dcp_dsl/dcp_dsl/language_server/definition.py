"""Where a name is defined: in the text, in an imported file, or in the standard library."""

from dataclasses import dataclass
from pathlib import Path

from dcp_dsl.checks.scope import Scope, segment_names
from dcp_dsl.language_server.document import Document
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_grammar import MASKS


@dataclass(frozen=True, slots=True)
class Definition:
    """A place where a name gets its meaning.

    Attributes:
        path: the file; None for the text itself.
        text: of that file.
        span: the name in it.
        node: what is defined: a statement, a parameter or a `where` binding.
        scope: where names of that file are looked up.
    """

    path: str | None
    text: str
    span: Span
    node: ast.Node
    scope: Scope


def find_definition(document: Document, offset: int) -> Definition | None:
    """Give the definition of the name at a place, or None."""
    token = document.token_at(offset)
    if token is None or token.kind != "name":
        return None
    before = document.before(token.span.start)
    is_attribute = bool(before) and before[-1].text == "."
    local = None if is_attribute else _find_local(document, token.text, offset)
    return local or find_name(document, token.text)


def _find_local(document: Document, name: str, offset: int) -> Definition | None:
    """Look among the parameters and bindings of the mask around a place."""
    mask = document.statement_at(offset)
    if not isinstance(mask, ast.MaskDef):
        return None
    nodes: list[ast.Param | ast.Binding] = [*mask.params, *mask.bindings]
    for node in nodes:
        if node.name.text == name:
            return Definition(None, document.text, node.name.span, node, document.scope)
    return None


def find_name(document: Document, name: str) -> Definition | None:
    """Look up a name that stands for a statement."""
    scope = document.scope
    mask = scope.find_mask(name) or scope.find_stack(name)
    if mask is not None:
        return _in_file(document, mask[0], mask[0].name.span, mask[1])
    if name in scope.samples:
        sample = scope.samples[name]
        return _in_file(document, sample, sample.name.span, scope)
    if name in scope.segments:
        segment = scope.segments[name]
        place = next(i for i in segment_names(segment) if i.text == name)
        return _in_file(document, segment, place.span, _owner(segment, scope))
    if name in scope.tokens:
        token = scope.tokens[name]
        return _in_file(document, token, token.name.span, _owner(token, scope))
    return None


def _owner(statement: ast.Statement, scope: Scope) -> Scope:
    """Give the scope of the file a segment or token stands in."""
    if any(statement is own for own in scope.program.statements):
        return scope
    others = [*scope.imported.masks.values(), *scope.imported.stacks.values()]
    for _, other in others:
        if any(statement is each for each in other.program.statements):
            return other
    return scope


def _in_file(document: Document, node: ast.Node, span: Span, scope: Scope) -> Definition:
    if scope.program is document.parsed.program:
        return Definition(None, document.text, span, node, scope)
    name = scope.program.name
    path = Path(str(MASKS)) / Path(name).name if name.startswith("<library>/") else Path(name)
    return Definition(str(path.resolve()), scope.program.text, span, node, scope)
