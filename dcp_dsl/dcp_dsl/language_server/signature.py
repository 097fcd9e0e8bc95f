"""Show the parameters of the mask or function whose call is being written."""

from dataclasses import dataclass

from dcp_dsl.language_server.document import Document, definition_at
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.tokens import RawToken
from dcp_dsl.syntax.unparse import unparse
from dcp_grammar import WORDS

_OPENING = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a callable name.

    Attributes:
        label: the whole call, such as ``near(window: tokens = 4k)``.
        parameters: the parts of the label that stand for arguments.
        active: which of them is being written.
        detail: one line about it, or empty.
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
        case ast.BindFunction(params=names):
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
    """Return which parameter is written: the one named, else the one in this place."""
    depth, index, first = 0, 0, 0
    for at, token in enumerate(arguments):
        depth += (token.text in "([{") - (token.text in ")]}")
        if token.text == "," and depth == 0:
            index, first = index + 1, at + 1
    own = arguments[first:]
    if len(own) > 1 and own[1].text == "=":
        for place, shown in enumerate(parameters):
            if shown.split(":")[0] == own[0].text:
                return place
    return index
