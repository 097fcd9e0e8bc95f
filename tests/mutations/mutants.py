"""Small wrong changes of product code, one at a time, drawn by a seed.

A change replaces one expression or statement in the text of a file, so that all else stays as it
was. Docstrings, texts, types, decorators, `raise`, `assert` and `strict=` of `zip` are left alone:
a change there is no wrong behaviour, or one that nobody could name.
"""

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum",
    "maximum": "minimum", "cumsum": "asarray", "first": "last", "ceil": "floor", "floor": "ceil",
}  # fmt: skip
LARGEST = 16  # larger numbers are mostly limits and sizes, where one more or less is no mistake


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the bytes from `start` to `end` become `after`."""

    path: str
    line: int
    text: str
    function: int
    start: int
    end: int
    before: str
    after: str

    def apply(self, text: bytes) -> bytes:
        """Return the text of the file with the change made."""
        return text[: self.start] + self.after.encode() + text[self.end :]


def draw(files: list[Path], count: int, seed: int) -> list[Mutant]:
    """Draw mutants from files, each file as often as its size says.

    Sites of one file are drawn by their kind first: there are many more constants than swaps.
    """
    dice = random.Random(seed)
    sizes = [file.stat().st_size for file in files]
    drawn: dict[tuple[str, int, str], Mutant] = {}
    for _ in range(50 * count):
        (file,) = dice.choices(files, sizes)
        kinds: dict[str, list[Mutant]] = {}
        for kind, mutant in sites(file):
            kinds.setdefault(kind, []).append(mutant)
        if kinds:
            mutant = dice.choice(kinds[dice.choice(sorted(kinds))])
            drawn.setdefault((mutant.path, mutant.start, mutant.after), mutant)
        if len(drawn) == count:
            break
    return list(drawn.values())


def sites(path: Path) -> Iterator[tuple[str, Mutant]]:
    """Yield every change that can be made to a file, with its kind."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, function in _code(ast.parse(text), 0):
        for kind, after in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
            before = " ".join(text[start:end].decode().split())
            place = text[starts[node.lineno - 1] : starts[node.lineno]].decode().strip()
            yield kind, Mutant(str(path), node.lineno, place, function, start, end, before, after)


def _code(node: ast.AST, function: int) -> Iterator[tuple[ast.expr | ast.stmt, int]]:
    """Yield what does something, with the first line of the function that it is in."""
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        above = getattr(node, "decorator_list", [])
        function = min(n.lineno for n in (node, *above))
        parts: list[ast.AST] = [*node.args.defaults, *[d for d in node.args.kw_defaults if d]]
        parts += node.body if isinstance(node, ast.FunctionDef) else [node.body]
    elif isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom) or (
        isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ):
        return
    elif isinstance(node, ast.AnnAssign):
        parts = [node.value] if node.value else []
    elif isinstance(node, ast.ClassDef):
        parts = [*node.body]
    elif isinstance(node, ast.Call):
        parts = [node.func, *node.args, *[k.value for k in node.keywords if k.arg != "strict"]]
    else:
        parts = [*ast.iter_child_nodes(node)]
    if isinstance(node, ast.expr | ast.stmt):
        yield node, function
    for part in parts:
        yield from _code(part, function)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    yield from _changed_operators(node)
    yield from _changed_values(node)
    yield from _changed_statements(node)


def _changed_operators(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in COMPARE:
            yield "compare", _with(node, ops=[COMPARE[type(operator)](), *node.ops[1:]])
        case ast.BinOp(left=left, op=operator) if type(operator) in ARITHMETIC:
            if not isinstance(left, ast.Constant | ast.JoinedStr):  # mostly texts and `"%d" % n`
                yield "arithmetic", _with(node, op=ARITHMETIC[type(operator)]())
        case ast.BoolOp():
            yield "logic", _with(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign", f"({ast.unparse(operand)})"


def _changed_values(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Constant(value=bool(value)):
            yield "truth", str(not value)
        case ast.Constant(value=int(value)) if abs(value) <= LARGEST:
            yield "number", str(value + 1)
        case ast.IfExp():
            yield "branches", _with(node, body=node.orelse, orelse=node.body)
        case ast.Call(func=function, args=arguments):
            name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
            if name in NAMES:
                field = "attr" if isinstance(function, ast.Attribute) else "id"
                yield "function", _with(node, func=_copy(function, **{field: NAMES[name]}))
            plain = not any(isinstance(a, ast.Starred | ast.JoinedStr) for a in arguments)
            plain = plain and len({*map(ast.unparse, arguments[:2])}) > 1
            if plain and name not in {*NAMES, "cast", "isinstance"}:
                swapped = [arguments[1], arguments[0], *arguments[2:]]
                yield "arguments", _with(node, args=swapped)


def _changed_statements(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.If() | ast.While():
            flipped = ast.unparse(_copy(node, test=ast.UnaryOp(ast.Not(), node.test)))
            yield "branches", flipped.replace("\n", "\n" + " " * node.col_offset)
        case ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Yield()):
            yield "dropped", "pass"
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "dropped", "pass"
        case ast.Continue():
            yield "dropped", "break"


def _copy(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return ast.fix_missing_locations(made)


def _with(node: ast.AST, **fields: object) -> str:
    return f"({ast.unparse(_copy(node, **fields))})"
