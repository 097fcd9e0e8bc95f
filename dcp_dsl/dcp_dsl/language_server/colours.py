"""Say what each name of a text is, for editors that colour names by their meaning."""

from collections.abc import Iterator

from dcp_dsl.checks.scope import Scope, find_library_scope
from dcp_dsl.language_server.document import Document
from dcp_dsl.language_server.names import Occurrence, occurrences

TYPES = ("function", "struct", "class", "property", "parameter", "enumMember")
MODIFIERS = ("declaration", "defaultLibrary")


def coloured(document: Document) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, end, index in `TYPES`, bits of `MODIFIERS`) of the names, in order.

    Names of statements that do not parse just now are read word by word.
    """
    scope = document.scope
    known = {found.span.start: found for found in occurrences(document)}
    parsed = [s.span for s in document.parsed.program.statements]
    at = 0
    for token in document.tokens:
        if token.kind != "name":
            continue
        start, end = token.span.start, token.span.end
        while at < len(parsed) and parsed[at].end <= start:
            at += 1
        is_parsed = at < len(parsed) and parsed[at].start <= start
        found = known.get(start)
        kind = _kind(found, scope) if found else "" if is_parsed else _by_word(token.text, scope)
        if kind:
            bits = int(found is not None and found.is_definition)
            is_own = token.text in scope.masks or token.text in scope.imported.masks
            bits |= 2 * (kind == "function" and not is_own)
            yield start, end, TYPES.index(kind), bits


def _kind(found: Occurrence, scope: Scope) -> str:
    match found.symbol.space:
        case "local":
            return "parameter"
        case "column":
            return "property"
        case "sample":
            return "enumMember"
    return _by_word(found.symbol.name, scope)


def _by_word(name: str, scope: Scope) -> str:
    if name in scope.segments:
        return "class"
    if name in scope.tokens:
        return "property"
    if scope.find_stack(name) is not None:
        return "struct"
    is_mask = scope.own_mask(name) is not None or find_library_scope(name) is not None
    return "function" if is_mask else ""
