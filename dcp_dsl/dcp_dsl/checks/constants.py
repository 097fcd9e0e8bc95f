"""Constants of a text, `let window = 4k`: their values, and statements with values for names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import add, floordiv, mod, mul, sub

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast_builder import MAX_NUMBER
from dcp_dsl.syntax.trees import mentioned_names, rewritten

ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": add, "-": sub, "*": mul, "//": floordiv, "%": mod,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConstantError(Exception):
    """Why a constant has no value: code, message, place and way out, as a diagnostic has them."""

    code: str
    message: str
    span: ast.Span
    hint: str = ""


def constants_of(
    statements: tuple[ast.Statement, ...], imported: Mapping[str, int]
) -> dict[str, int | ConstantError]:
    """Return the value of each constant of a text, or why it has none."""
    lets = {s.name.text: s for s in reversed(statements) if isinstance(s, ast.Let)}
    found: dict[str, int | ConstantError] = dict(imported)
    waiting = dict(lets)
    # Round by round, those whose needs are met; what is left in the end waits for itself.
    needs = {name: {n for n, _ in mentioned_names(let.value)} for name, let in lets.items()}
    while ready := [name for name in waiting if not needs[name] & waiting.keys()]:
        for name in ready:
            try:
                found[name] = _value(waiting.pop(name).value, found)
            except ConstantError as error:
                found[name] = error
    for name, let in waiting.items():
        found[name] = ConstantError("E110", f"`{name}` is defined by itself", let.name.span)
    return found


def _value(value: ast.Expr, known: Mapping[str, int | ConstantError]) -> int:
    match value:
        case ast.Number(plain):
            return plain
        case ast.Name(text) if isinstance(constant := known.get(text), int):
            return constant
        case ast.Sign(op, inner):
            return _value(inner, known) * (-1 if op == "-" else 1)
        case ast.Binary(op, left, right):
            a, b = _value(left, known), _value(right, known)
            if op in ("//", "%") and b < 1:
                hint = "divide by at least 1"
                raise ConstantError("E111", f"this divides by {b}", right.span, hint)
            if abs(found := ARITHMETIC[op](a, b)) > MAX_NUMBER:
                message = f"this number is beyond {MAX_NUMBER:_}"
                raise ConstantError("E111", message, value.span, "lengths are in tokens")
            return found
    raise ConstantError(
        "E107", "a constant is arithmetic on numbers and other constants", value.span,
        "a number of each row is a column: `row.name`",
    )  # fmt: skip


def with_values(statement: ast.Statement, values: Mapping[str, int], text: str) -> ast.Statement:
    """Return a statement with the values of constants in the place of their names."""

    def put(name: ast.Name) -> ast.Expr:
        # a name in quotes is a column
        if name.text not in values or text[name.span.start : name.span.end].startswith('"'):
            return name
        number = ast.Number(abs(values[name.text]), span=name.span)
        return number if values[name.text] >= 0 else ast.Sign("-", number, span=name.span)

    return statement if isinstance(statement, ast.Let) else rewritten(statement, ast.Name, put)


def hidden(statement: ast.Statement, values: Mapping[str, object]) -> Iterator[ast.Ident]:
    """Yield names of a statement that would hide a constant: parameters, columns to read."""
    match statement:
        case ast.MaskDef():
            yield from (p for b in statement.bindings for p in b.params if p.text in values)
            yield from (n.name for n in statement.locals if n.name.text in values)
        case ast.Attach(having=having):
            yield from (column for column in having if column.text in values)
