"""Propose words that may follow at a place of a text; show the parameters of the call around it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from dcp_dsl.checks.scope import Scope, library_scopes
from dcp_dsl.elaboration.programs import layout_columns
from dcp_dsl.language_server.document import Document, definition_at
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.tokens import KEYWORDS, STATEMENT_KEYWORDS, RawToken
from dcp_dsl.syntax.trees import column_name, unparse
from dcp_grammar import WORDS, Role

CompletionKind: TypeAlias = Literal[
    "keyword", "mask", "segment", "sample", "column", "parameter", "function", "attribute", "type"
]

_WORD_KINDS: dict[Role, CompletionKind] = {
    "function": "function", "source": "function", "type": "type",
}  # fmt: skip
_CONDITION = 32  # tokens of a condition that are looked back over
_ATTRIBUTES = {
    "start": "first token of the instance",
    "end": "one behind its last token",
    "len": "its tokens",
    "pos": "place of the token in it",
    "count": "how many instances its parent has",
}


@dataclass(frozen=True, slots=True)
class Proposal:
    """Something that could be written: the text to insert, its kind, one line about it."""

    text: str
    kind: CompletionKind
    detail: str = ""


_PATH = Proposal("path", "attribute", "tokens in front of it on its path")


def complete_at(text: str, offset: int, name: str = "<text>") -> tuple[Proposal, ...]:
    """List the words that could stand at a character of a text, as the language server does.

    >>> [p.text for p in complete_at("segment doc = [lens]*  mask a = k in do", 39)]
    ['doc']
    """
    return complete(Document(text, name, "utf-32"), offset)


def complete(document: Document, offset: int) -> tuple[Proposal, ...]:
    """List the words that could stand at a place, names of the text first; none in comments."""
    if document.in_comment(offset):
        return ()
    current = document.token_at(offset)
    # What is being written just now is no context.
    is_word = current is not None and current.kind == "name" and current.span.start < offset
    start = current.span.start if is_word and current is not None else offset
    before = document.before(start)
    found: dict[str, Proposal] = {}
    for proposal in _propose(document, before):
        found.setdefault(proposal.text, proposal)
    return tuple(found.values())


def _propose(document: Document, before: list[RawToken]) -> Iterator[Proposal]:
    scope = document.scope
    last = before[-1].text if before else ""
    if last == "@":
        yield from _words("decorator")
    elif last == ".":
        yield from _attributes([t.text for t in before[:-1]], document)
    elif last == "on":
        yield from (Proposal(name, "sample") for name in scope.samples)
    elif _wants_segment([token.text for token in before[-3:]]):
        yield from _segments(scope)
    elif last == ":" and _opens_parameters(before):
        yield from _words("type")
        yield Proposal("mask", "type", "a mask")
    elif last == "from" and _statement(before) == "segment":
        yield Proposal("token", "keyword", "branches go on behind tokens of the row")
        yield from _columns(scope)
    elif last in ("[", "having") or _statement(before) == "sample" or _names_forks(before):
        yield from _columns(scope)
    else:
        if not before or _begins_line(document, before):
            yield from _words("statement")
        yield from _continue(document, before)


def _wants_segment(last: list[str]) -> bool:
    """Return whether only a segment fits here: behind `k in`, `M per`, `same(`, `@ahead(`."""
    if not last:
        return False
    is_call = last[-1] == "(" and len(last) > 1 and last[-2] in ("same", "first", "last")
    return last[-1] in ("per", "in") or is_call or last == ["@", "ahead", "("]


def _continue(document: Document, before: list[RawToken]) -> Iterator[Proposal]:
    """Propose words that continue a statement."""
    scope, statement = document.scope, _statement(before)
    words = [token.text for token in before]
    yield from (Proposal(name, "parameter", "constant") for name in scope.constants)
    if statement == "segment" and "where" in words[-_CONDITION:]:
        base = len(words) - 1 - words[::-1].index("where") - 1
        yield from _token_columns(words[base], scope)
    if statement == "segment":
        yield from _segments(scope)
        yield from _words("source")
        yield Proposal("every", "keyword", "fixed tiles")
        yield from (word for word in _words("clause") if word.text in ("branch", "join", "from"))
        return
    if statement in ("mask", "stack", "check", "for", "@"):
        yield from _locals(before)
        yield from _masks(scope)
        yield from _segments(scope)
        yield from _words("variable", "function", "operator", "constant")
        if statement == "for":  # elsewhere a stack is no mask
            stacks = (*scope.stacks, *scope.imported.stacks)
            yield from (Proposal(name, "mask", "a stack") for name in stacks)
    yield from _words("clause")


def _statement(before: list[RawToken]) -> str:
    """Return the keyword of the statement that a place belongs to."""
    # From tokens, since the statement being written rarely parses; `m: mask` names a type, and
    # `from token` begins no statement.
    for index in range(len(before) - 1, -1, -1):
        is_type = index > 0 and before[index - 1].text == ":"
        is_inside = is_type or _names_forks(before[: index + 1])
        if before[index].text in STATEMENT_KEYWORDS and not is_inside:
            return before[index].text
        if before[index].text == "@":
            return "@"
    return ""


def _names_forks(before: list[RawToken]) -> bool:
    """Return whether a column of forks follows: behind `from token`."""
    return [token.text for token in before[-2:]] == ["from", "token"]


def _begins_line(document: Document, before: list[RawToken]) -> bool:
    """Return whether a line may begin behind the last token, so that a statement may, too."""
    rest = document.text[before[-1].span.end :]
    return "\n" in rest[: len(rest) - len(rest.lstrip())] or not rest.strip()


def _opens_parameters(before: list[RawToken]) -> bool:
    return len(before) > 1 and before[-2].kind == "name" and _statement(before[:-2]) == "mask"


def _words(*roles: Role) -> Iterator[Proposal]:
    for word in WORDS:
        if word.role in roles:
            yield Proposal(word.text, _WORD_KINDS.get(word.role, "keyword"), word.meaning)


def _masks(scope: Scope) -> Iterator[Proposal]:
    for name, mask in scope.masks.items():
        yield Proposal(name, "mask", _signature(mask))
    for name, (mask, other) in scope.imported.masks.items():
        yield Proposal(name, "mask", f"{_signature(mask)}, from {other.program.name}")
    for library in library_scopes():
        for name, mask in library.masks.items():
            yield Proposal(name, "mask", f"{_signature(mask)}, standard library")


def _signature(mask: ast.MaskDef) -> str:
    shown = ", ".join(f"{p.name.text}: {p.type.text}" for p in mask.params)
    return f"{mask.name.text}({shown})" if shown else mask.name.text


def _segments(scope: Scope) -> Iterator[Proposal]:
    for name, segment in scope.segments.items():
        part = "" if name == segment.name.text else f", part of {segment.name.text}"
        yield Proposal(name, "segment", f"segment{part}")


def _columns(scope: Scope) -> Iterator[Proposal]:
    names: dict[str, None] = {}
    for _, layout in scope.layouts():
        names.update(dict.fromkeys(layout_columns(layout)))
    names.update(dict.fromkeys(token.column.text for token in scope.tokens.values()))
    for definition in scope.samples.values():
        names.update(dict.fromkeys(f.name.text for f in definition.fields))
    yield from (Proposal(column_name(name), "column", "column") for name in names)
    yield Proposal("len", "keyword", "tokens of the sample")


def _locals(before: list[RawToken]) -> Iterator[Proposal]:
    """Yield parameters and bindings of the mask being written, from tokens, as it may not parse."""
    start = max((i for i, t in enumerate(before) if t.text in ("mask", "check", "stack", "for")
                 and (i == 0 or before[i - 1].text != ":")), default=0)  # fmt: skip
    own = before[start:]
    for name, sign in pairwise(own):
        if name.kind == "name" and sign.text == ":" and name.text not in KEYWORDS:  # `rest: full`
            yield Proposal(name.text, "parameter", "parameter")
    # A comma may also stand between arguments, where `name =` gives one by name: a word too many.
    for word, name, sign in zip(own, own[1:], own[2:], strict=False):
        if word.text in ("where", ",") and name.kind == "name" and sign.text in ("=", "("):
            yield Proposal(name.text, "parameter", "named with `where`")


def _token_columns(segment: str, scope: Scope) -> Iterator[Proposal]:
    """Propose the columns of a segment's instances, or of the tokens if `segment` is empty."""
    for name, token in scope.tokens.items():
        if segment == ("" if token.segment is None else token.segment.text):
            what = "token column" if token.segment is None else f"column of `{segment}`"
            yield Proposal(column_name(name), "attribute", what)


def _attributes(path: list[str], document: Document) -> Iterator[Proposal]:
    """Propose names that may follow a dot."""
    scope = document.scope
    head = path[-1] if path else ""
    if head == "row":
        yield from _columns(scope)
    elif head in ("q", "k"):
        yield from _segments(scope)
        yield from _token_columns("", scope)
        if len(scope.trees()) == 1:
            yield _PATH
    elif len(path) > 2 and path[-2] == "." and path[-3] in ("q", "k"):
        yield from (Proposal(name, "attribute", what) for name, what in _ATTRIBUTES.items())
        if scope.segments.get(head) in scope.trees():
            yield _PATH
        yield from _token_columns(head, scope)
    elif head in scope.segments:
        yield Proposal("count", "attribute", "number of instances")


_OPENING = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a callable name, such as ``near(window: tokens = 4k)``.

    `parameters` are the parts of the label that stand for arguments, `active` the one written.
    """

    label: str
    parameters: tuple[str, ...]
    active: int
    detail: str = ""


def signature_at(document: Document, offset: int) -> Signature | None:
    """Return how the call around a place is written, None outside of calls."""
    if document.in_comment(offset):
        return None
    before = document.before(offset)
    opened = _open_call(before)
    if opened is None:
        return None
    name, arguments = before[opened - 1], before[opened + 1 :]
    found = definition_at(document, name.span.start)
    label, parameters, detail = _described(name.text, None if found is None else found.node)
    if not label:
        return None
    return Signature(label, parameters, _active(arguments, parameters), detail)


def _open_call(before: list[RawToken]) -> int | None:
    """Return the index of the bracket of the innermost call that is not closed."""
    # Backwards: a closing bracket hides all up to its partner, so the first bracket that opens
    # without one is the innermost.
    depth: list[str] = []
    for index in range(len(before) - 1, -1, -1):
        sign = before[index].text
        if sign in _OPENING:
            depth.append(_OPENING[sign])
        elif depth and sign == depth[-1]:
            depth.pop()
        elif sign == "(" and not depth and index and before[index - 1].kind == "name":
            return index
    return None


def _described(name: str, node: ast.Node | None) -> tuple[str, tuple[str, ...], str]:
    """Return the label of a call, its parameters, and a line about it."""
    match node:
        case ast.MaskDef(params=params):
            shown = tuple(map(parameter, params))
            return f"{name}({', '.join(shown)})", shown, ""
        case ast.Binding(params=names) if names:
            shown = tuple(n.text for n in names)
            return f"{name}({', '.join(shown)})", shown, ""
    for word in WORDS:
        if word.text == name and word.role in ("function", "source"):
            inner = word.form.partition("(")[2].rpartition(")")[0]
            return word.form, tuple(part.strip() for part in inner.split(",")), word.meaning
    return "", (), ""


def parameter(param: ast.Param) -> str:
    """Return how a parameter is written: its name, its type, its default if it is a number."""
    default = "" if param.default is None else f" = {unparse(param.default)}"
    return f"{param.name.text}: {param.type.text}{default}"


def _active(arguments: list[RawToken], parameters: tuple[str, ...]) -> int:
    """Return the index of the parameter being written: by its name, else by its place."""
    # Commas inside inner brackets separate arguments of other calls.
    depth, index, first = 0, 0, 0
    for at, token in enumerate(arguments):
        depth += (token.text in "([{") - (token.text in ")]}")
        if token.text == "," and depth == 0:
            index, first = index + 1, at + 1
    own = arguments[first:]
    if len(own) > 1 and own[1].text == "=":
        for place, shown in enumerate(parameters):
            if shown.split(":")[0] == own[0].text:  # `window: tokens = 4k`
                return place
    return index
