"""Check definitions: names, recursion and sizes, layouts, masks with decorators and rules."""

from dataclasses import dataclass
from typing import TypeAlias

from dcp_dsl.checks.expressions import PLACES, ExpressionChecker
from dcp_dsl.checks.scope import Scope, defined_names
from dcp_dsl.elaboration.reads import layout_columns
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program
from dcp_dsl.syntax.tokens import RESERVED
from dcp_dsl.syntax.walk import children, mentioned_names, walk

MAX_EXPANDED_DEPTH = 128
MAX_EXPANDED_NODES = 20_000
MAX_LIST = 2**14  # numbers in a list of a token


def check_definitions(program: Program, checker: ExpressionChecker) -> None:
    """Report reserved and doubled names; samples have a space of names of their own."""
    seen: dict[tuple[bool, str], ast.Ident] = {}
    for statement in program.statements:
        is_sample = isinstance(statement, ast.SampleDef)
        for ident in defined_names(statement):
            if ident.text in RESERVED:
                checker.report(
                    "E109", f"`{ident.text}` is a word of the language", ident.span,
                    "choose another name",
                )  # fmt: skip
            first = seen.setdefault((is_sample, ident.text), ident)
            if first is not ident:
                line = program.text.count("\n", 0, first.span.start) + 1
                checker.report(
                    "E108", f"`{ident.text}` is defined twice", ident.span, f"first in line {line}"
                )


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of a mask with everything it calls written out."""

    depth: int
    nodes: int


def check_recursion(scope: Scope, checker: ExpressionChecker) -> None:
    """Report masks that call themselves, and masks too large when written out."""
    sizes: _Sizes = {}
    for name in scope.masks:
        _measure(name, scope, checker, sizes, ())


_Sizes: TypeAlias = dict[tuple[int, str], _Size]  # by scope and name


def _measure(
    name: str, scope: Scope, checker: ExpressionChecker, sizes: _Sizes, path: tuple[str, ...]
) -> _Size:
    """Return the size of a mask of a scope; `path` holds the masks being measured."""
    key = id(scope), name
    if key in sizes:
        return sizes[key]
    mask = scope.masks[name]
    if name in path and scope is checker.scope:
        cycle = " -> ".join((*path[path.index(name) :], name))
        hint = cycle if len(cycle) < 100 else ""
        checker.report("E110", f"mask `{name}` calls itself", mask.name.span, hint)
        scope.bodies[name] = None
        return sizes.setdefault(key, _Size(1, 1))
    if len(path) > MAX_EXPANDED_DEPTH:
        report_size(mask, checker)
        return sizes.setdefault(key, _Size(1, 1))
    own = [node for node in walk(mask) if hasattr(node, "span")]
    depth, nodes = _depth(mask), len(own)
    deepest = 0
    for called, is_attribute in mentioned_names(mask):
        found = None if is_attribute else scope.own_mask(called)
        if found is not None:
            inner = _measure(found[0].name.text, found[1], checker, sizes, (*path, name))
            deepest, nodes = max(deepest, inner.depth), nodes + inner.nodes
    size = sizes.setdefault(key, _Size(depth + deepest, nodes))
    is_large = size.depth > MAX_EXPANDED_DEPTH or size.nodes > MAX_EXPANDED_NODES
    if is_large and scope is checker.scope:
        report_size(mask, checker)
    return size


def report_size(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Report a mask that is too large; it is not written out."""
    checker.scope.bodies[mask.name.text] = None
    checker.report(
        "E116", f"mask `{mask.name.text}` is too large with everything it calls written out",
        mask.name.span,
        f"at most {MAX_EXPANDED_NODES:_} parts, {MAX_EXPANDED_DEPTH} levels deep",
    )  # fmt: skip


def _depth(node: object) -> int:
    """Return the depth of a tree; the parser bounds it."""
    depth = 1  # a leaf has fields, and its place has two
    level = [node]
    while level:
        depth += 1
        level = [below for inner in level for below in children(inner)]
    return depth


def check_size(expression: ast.Expr, checker: ExpressionChecker) -> None:
    """Report a single expression that is too large."""
    count = sum(1 for node in walk(expression) if hasattr(node, "span"))
    if count > MAX_EXPANDED_NODES // 20:
        checker.report("E116", "this expression is too large", expression.span, "name parts of it")


def check_layout(layout: ast.Layout, checker: ExpressionChecker) -> None:
    """Report errors in the parts of a layout and in the shapes of its columns."""
    rests = [p for p in layout.parts if isinstance(p, ast.Leaf) and p.length is None]
    for extra in rests[1:]:
        checker.report(
            "E113", "only one part can take the remaining tokens", extra.span, "give it a column"
        )
    nesting: dict[str, int] = {}
    for part in layout.parts:
        _check_part(part, 0, nesting, checker, is_top=True)


def _check_part(
    part: ast.Leaf | ast.Group,
    depth: int,
    nesting: dict[str, int],
    checker: ExpressionChecker,
    *,
    is_top: bool,
) -> None:
    """Check one part inside `depth` repetitions; `nesting` remembers the depth of each column."""
    if part.parents is not None:
        if not (part.is_branch and part.is_repeated):
            checker.report(
                "E113", "only branches that repeat have parents", part.parents.span,
                "write `branch name[lens_column]* from parents`",
            )  # fmt: skip
        _check_length(part.parents, depth + 1, nesting, checker)
    if isinstance(part, ast.Group):
        if part.is_repeated and not layout_columns(part):
            checker.report(
                "E113", "nothing says how often this group repeats", part.span,
                "give one of its parts a column",
            )  # fmt: skip
        for inner in part.parts:
            _check_part(inner, depth + part.is_repeated, nesting, checker, is_top=False)
        return
    if part.length is None:
        if part.is_repeated or not is_top:
            checker.report(
                "E113", "`[..]` stands for the remaining tokens of the sample", part.span,
                "use it once, outside groups and without `*`",
            )  # fmt: skip
        return
    has_count = isinstance(part.length, ast.Name) and part.length.text != "len"
    has_count |= part.parents is not None and isinstance(part.length, ast.Number)
    if part.is_repeated and not has_count:
        checker.report(
            "E113", "a repeated part needs a column of lengths", part.length.span,
            "write `name[lens_column]*`",
        )  # fmt: skip
        return
    _check_length(part.length, depth + part.is_repeated, nesting, checker)


def _check_length(
    length: ast.Expr, depth: int, nesting: dict[str, int], checker: ExpressionChecker
) -> None:
    shapes = ["one integer", "a list", "a list of lists"]
    for node in walk(length):
        match node:
            case ast.Name(text) if text != "len":
                known = nesting.setdefault(text, depth)
                if known != depth:
                    wanted = [shapes[d] if d < 3 else "a deeper list" for d in (known, depth)]
                    checker.report(
                        "E115", f"column `{text}` is {wanted[0]} before and {wanted[1]} here",
                        node.span, "use two columns, or repeat both parts",
                    )  # fmt: skip
            case ast.Binary(op="//" | "%", right=ast.Number(value=0) as zero):
                checker.report("E111", "this divides by zero", zero.span)
            case ast.Name() | ast.Number() | ast.Binary() | ast.Sign() | ast.Span() | ast.Ident():
                pass
            case ast.Attribute() | ast.Call() | ast.Compare() | ast.Bool() | ast.Rules():
                checker.report(
                    "E113", "a length is arithmetic on columns and `len`", length.span,
                    "write `name[column]` or `name[len // 2]`",
                )  # fmt: skip
                return


def check_column(column: ast.Token, checker: ExpressionChecker) -> None:
    """Check the size of the lists of a column, and the segment whose instances have it."""
    if column.size is not None and not 1 <= column.size <= MAX_LIST:
        message = f"expected lists of 1 to {MAX_LIST:_} integers, got {column.size}"
        checker.report("E111", message, column.span, "a list shorter than others ends in -1")
    if column.segment is not None:
        checker.segment_name(column.segment, {})
        if column.name.text in PLACES:
            message = f"`.{column.name.text}` of an instance has a meaning of its own"
            checker.report("E109", message, column.name.span, "choose another name")
