"""Check a text as a whole: definitions and layouts, statements, and every expression."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from dcp_dsl.checks.constants import ConstantError, hidden
from dcp_dsl.checks.expressions import PLACES, ExpressionChecker
from dcp_dsl.checks.findings import has_one_parent
from dcp_dsl.checks.masks import (
    MAX_EXPANDED_DEPTH,
    MAX_EXPANDED_NODES,
    MaskChecker,
    check_mask,
    check_sides,
    report_size,
)
from dcp_dsl.checks.scope import Scope, defined_names, keys_of
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import layout_columns, parent_columns
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program
from dcp_dsl.syntax.diagnostics import Diagnostic, did_you_mean
from dcp_dsl.syntax.tokens import RESERVED
from dcp_dsl.syntax.trees import (
    children,
    mentioned_names,
    named_segments,
    rewritten,
    walk,
    walk_parts,
)

MAX_LIST = 2**14  # numbers in a list of a token


def check_definitions(program: Program, checker: ExpressionChecker) -> None:
    """Report reserved and doubled names; samples have a space of names of their own."""
    seen: dict[tuple[bool, str], ast.Ident] = {}
    for statement in program.statements:
        is_sample = isinstance(statement, ast.SampleDef)
        for ident in defined_names(statement):
            is_quoted = ident.span.text(program.text).startswith('"')
            if ident.text in RESERVED and not is_quoted:
                is_column = isinstance(statement, ast.Token)
                hint = f'; a column of this name is written `"{ident.text}"`' if is_column else ""
                checker.report(
                    "E109", f"`{ident.text}` is a word of the language", ident.span,
                    f"choose another name{hint}",
                )  # fmt: skip
            first = seen.setdefault((is_sample, ident.text), ident)
            if first is not ident:
                line = first.span.line(program.text)
                checker.report(
                    "E108", f"`{ident.text}` is defined twice", ident.span, f"first in line {line}"
                )


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of a mask with everything it calls written out."""

    depth: int
    nodes: int


_Sizes: TypeAlias = dict[tuple[int, str], _Size]  # by scope and name


def _measure(
    name: str, scope: Scope, checker: ExpressionChecker, sizes: _Sizes, path: tuple[str, ...]
) -> _Size:
    """Return the size of a mask of a scope; report masks that call themselves or are too large.

    `path` holds the masks being measured.
    """
    key = id(scope), name
    if key in sizes:
        return sizes[key]
    mask = scope.masks[name]
    # A mask of an imported file is measured, too, but its errors are reported in that file.
    if name in path and scope is checker.scope:
        cycle = " -> ".join((*path[path.index(name) :], name))
        hint = cycle if len(cycle) < 100 else ""
        checker.report("E110", f"mask `{name}` calls itself", mask.name.span, hint)
        scope.bodies[name] = None
        return sizes.setdefault(key, _Size(1, 1))
    if len(path) > MAX_EXPANDED_DEPTH:
        report_size(mask, checker)
        return sizes.setdefault(key, _Size(1, 1))
    deepest, nodes = 0, sum(1 for _ in walk(mask))
    for called, is_attribute in mentioned_names(mask):
        found = None if is_attribute else scope.own_mask(called)
        if found is not None:
            inner = _measure(found[0].name.text, found[1], checker, sizes, (*path, name))
            deepest, nodes = max(deepest, inner.depth), nodes + inner.nodes
    # A mask that calls itself has size 1 by now and keeps it: one error is enough.
    size = sizes.setdefault(key, _Size(_depth(mask) + deepest, nodes))
    is_large = size.depth > MAX_EXPANDED_DEPTH or size.nodes > MAX_EXPANDED_NODES
    if is_large and scope is checker.scope:
        report_size(mask, checker)
    return size


def _depth(node: object) -> int:
    """Return the depth of a tree, 2 for a leaf; the parser bounds it."""
    return 1 + max(map(_depth, children(node)), default=1)


def check_size(expression: ast.Expr, checker: ExpressionChecker) -> None:
    """Report a single expression that is too large."""
    # Its calls may write out to many times its size, so it gets a share of what a mask may have.
    if sum(1 for _ in walk(expression)) > MAX_EXPANDED_NODES // 20:
        checker.report("E116", "this expression is too large", expression.span, "name parts of it")


def check_layout(layout: ast.Layout, checker: ExpressionChecker) -> None:
    """Report errors in the parts of a layout and in the shapes of its columns."""
    rests = [p for p in layout.parts if isinstance(p, ast.Leaf) and p.length is None]
    for extra in rests[1:]:
        checker.report(
            "E113", "only one part can take the remaining tokens", extra.span, "give it a column"
        )
    nesting: dict[str, int] = {}  # column -> depth of its lists, as the first part reads it
    for part, path, depth, _ in walk_parts(layout.parts):
        _check_part(part, depth, nesting, checker, is_top=len(path) == 1)


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
                "write `branch name[lens_column]* from parents`, or `from token forks`",
            )  # fmt: skip
        _check_length(part.parents, depth + 1, nesting, checker)
    if isinstance(part, ast.Group):
        if part.is_repeated and not layout_columns(part):
            checker.report(
                "E113", "nothing says how often this group repeats", part.span,
                "give one of its parts a column",
            )  # fmt: skip
        return
    if part.length is None:
        if part.is_repeated or not is_top:
            checker.report(
                "E113", "`[..]` stands for the remaining tokens of the sample", part.span,
                "use it once, outside groups and without `*`",
            )  # fmt: skip
        return
    # A list gives one length for each repetition. With parents a number does, too: the column of
    # parents says how often.
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
            case ast.Sign(op="-", value=ast.Number(value=size)) if node is length and size:
                checker.report("E111", f"expected at least 0, got -{size}", node.span)
            case ast.Name() | ast.Number() | ast.Binary() | ast.Sign():
                pass
            case _:
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
            hint = f'choose another name: `column other in S = "{column.name.text}"`'
            checker.report("E109", message, column.name.span, hint)


def check_scope(scope: Scope, lost: frozenset[str] = frozenset()) -> tuple[Diagnostic, ...]:
    """Find errors in names, kinds and layouts of a text; broken statements would define `lost`."""
    program = scope.program
    checker = MaskChecker(scope, program, lost | _missing_imports(scope))
    check_definitions(program, checker)
    # Before the masks are checked, which writes them out: calls of too large ones are left out.
    sizes: _Sizes = {}
    for name in scope.masks:
        _measure(name, scope, checker, sizes, ())
    for statement in program.statements:
        _check_statement(statement, checker)
    return tuple(checker.found)


def check_expression(
    expression: ast.Expr, scope: Scope, program: Program
) -> tuple[nodes.Mask, tuple[Diagnostic, ...]]:
    """Return a mask expression over the names of a checked text as a core program, and its errors.

    With errors the program means nothing.
    """
    checker = MaskChecker(scope, program)
    check_size(expression, checker)
    core = nodes.LOST if checker.found else checker.whole(expression)
    return core, tuple(d for d in checker.found if d.severity == "error")


def with_columns(attach: ast.Attach, scope: Scope) -> ast.Expr:
    """Return the mask that a `for` statement uses, with its columns read as ``row.column``.

    ``for "*" having window use sliding(window = window)`` takes each row's own window; so does
    ``for "*" use sliding(window = window) with window or 4k``.
    """
    filled = (r.new for r in attach.renames if r.default is not None)
    having = {column.text for column in (*attach.having, *filled)} - RESERVED

    def read(name: ast.Name) -> ast.Expr:
        text = name.text
        if text not in having or text in scope.segments or scope.find_mask(text) is not None:
            return name
        return ast.Attribute(ast.Name("row"), ast.Ident(text, span=name.span), span=name.span)

    return rewritten(attach.value, ast.Name, read)


def _missing_imports(scope: Scope) -> frozenset[str]:
    """Return the imported names that could not be found; their `import` is reported already."""
    names = {
        name.text
        for statement in scope.program.statements
        if isinstance(statement, ast.Import)
        for name in statement.names
    }
    known = {*scope.imported.masks, *scope.imported.stacks, *scope.imported.segments}
    return frozenset(names - known - scope.imported.tokens.keys() - scope.constants.keys())


def _check_statement(statement: ast.Statement, checker: MaskChecker) -> None:
    _check_constants(statement, checker)
    match statement:
        case ast.MaskDef():
            check_mask(statement, checker)
        case ast.Segment():
            _check_segment(statement, checker)
        case ast.Token():
            check_column(statement, checker)
        case ast.StackDef():
            _check_stack(statement, checker)
        case ast.Attach():
            _check_attach(statement, checker)
        case ast.SampleDef():
            _check_sample(statement, checker)
        case ast.Check():
            _check_check(statement, checker)


def _check_constants(statement: ast.Statement, checker: MaskChecker) -> None:
    """Report constants without a value, and names that would hide one."""
    known = checker.scope.constants
    for name in hidden(statement, known):
        message = f"`{name.text}` hides the constant of this name"
        checker.report("E119", message, name.span, "choose another name for one of them")
    if isinstance(statement, ast.Let):
        found = known[statement.name.text]
        if isinstance(found, ConstantError):
            checker.report(found.code, found.message, found.span, found.hint)


def _check_segment(segment: ast.Segment, checker: MaskChecker) -> None:
    match segment.source:
        case ast.Every() as every:
            checker.every(every, {})
            name, segments = segment.name.text, checker.scope.segments
            if every.parent is not None and has_one_parent(every.parent.text, name, {}, segments):
                checker.report("E110", f"`{name}` tiles itself", every.parent.span)
        case ast.Filter() | ast.Union():
            checker.named_segment(segment.name, {})
            _check_circle(segment, checker)
        case ast.Columns(kind=kind, names=names) if names and kind.text != "ids":
            checker.report(
                "E113", f"`{kind.text}` makes instances of one kind, so names mean nothing",
                names[0].span, "`as` names the ids of `ids(column)`",
            )  # fmt: skip
        case ast.Layout() as layout:
            check_layout(layout, checker)


def _check_circle(segment: ast.Segment, checker: MaskChecker) -> None:
    """Report a segment that is made of itself."""
    segments, seen, pending = checker.scope.segments, set[str](), [segment]
    while pending:
        bases = {base.text for base in named_segments(pending.pop().source)}
        if segment.name.text in bases:
            message = f"`{segment.name.text}` is made of itself"
            checker.report("E110", message, segment.name.span)
            return
        pending += [segments[name] for name in bases - seen if name in segments]
        seen |= bases


def _check_stack(stack: ast.StackDef, checker: MaskChecker) -> None:
    if all(layer.value is None and not layer.heads for layer in stack.layers):
        hint = "`3 of linear, causal` has a mask in every fourth layer"
        checker.report("E103", "no layer of this stack has a mask", stack.name.span, hint)
    for layer in stack.layers:
        if layer.count < 1:
            checker.report("E111", "a stack repeats a layer at least once", layer.span)
        if layer.value is not None:
            checker.whole(layer.value)
        if layer.documents is not None:
            checker.segment_name(layer.documents, {})
        _check_heads(layer, checker)


def _check_heads(layer: ast.Layer, checker: MaskChecker) -> None:
    """Check the head groups of a layer: ranges that are empty or overlap, `rest` once and last."""
    taken: list[tuple[int, int]] = []
    for index, group in enumerate(layer.heads):
        checker.whole(group.value)
        if group.first is None or group.last is None:
            if index != len(layer.heads) - 1:
                message = "`rest` stands for the heads that nothing else names, so it comes last"
                checker.report("E123", message, group.span)
            continue
        if group.last < group.first:
            checker.report("E111", "this range of heads is empty", group.span)
        elif any(group.first <= last and first <= group.last for first, last in taken):
            checker.report("E123", "these heads already have a mask in this layer", group.span)
        taken.append((group.first, group.last))
    # Without `rest` the ranges must follow one another from head 0.
    if taken and layer.heads[-1].first is not None:
        ends = [0, *(last + 1 for _, last in sorted(taken))]
        gaps = [end for end, (first, _) in zip(ends, sorted(taken), strict=False) if first > end]
        if gaps:
            message, hint = f"head {gaps[0]} has no mask", "name it, or end with `rest: causal`"
            checker.report("E123", message, layer.span, hint)


def _check_attach(attach: ast.Attach, checker: MaskChecker) -> None:
    value = attach.value
    if isinstance(value, ast.Name) and checker.scope.find_stack(value.text) is not None:
        return  # its masks are checked where it is defined
    checker.whole(with_columns(attach, checker.scope))
    seen: set[str] = set()
    for rename in attach.renames:
        if rename.new.text in seen:
            checker.report("E108", f"`{rename.new.text}` is named twice", rename.new.span)
        seen.add(rename.new.text)


# It walks through the whole text, and each sample asks.
@lru_cache(8)
def _signed_columns(scope: Scope) -> set[str]:
    """Return the columns that may hold negative numbers; binding checks values beyond lengths."""
    signed = {name for _, layout in scope.layouts() for name in parent_columns(layout)}
    signed |= {token.column.text for token in scope.tokens.values()}
    for node in (*scope.segments.values(), *walk(scope.program)):
        match node:
            case ast.Segment(source=ast.Columns(column=name)):
                signed.add(name.text)
            case ast.Attribute(ast.Name("row"), name):
                signed.add(name.text)
    return signed


def _check_sample(sample: ast.SampleDef, checker: MaskChecker) -> None:
    signed = _signed_columns(checker.scope)
    seen: set[str] = set()
    for entry in sample.fields:
        if entry.name.text in seen:
            checker.report("E108", f"column `{entry.name.text}` is given twice", entry.name.span)
        seen.add(entry.name.text)
        if _has_negative(entry.value) and entry.name.text not in signed:
            checker.report("E117", "a sample's lengths are at least 0", entry.span)


def _has_negative(value: ast.Literals) -> bool:
    return any(map(_has_negative, value)) if isinstance(value, tuple) else value < 0


def _check_check(check: ast.Check, checker: MaskChecker) -> None:
    sides = [side for side in (check.left, check.right) if side is not None]
    stated = [found for side in sides if (found := keys_of(side, checker.scope)) is not None]
    # A side without `@keys`, such as `causal`, takes those of the other.
    keys = stated[0] if stated else None
    for side in sides:
        core = checker.whole(side, keys)
        if keys is not None and keys_of(side, checker.scope) is None and not checker.found:
            check_sides(core, side.span, keys, checker)
    if any(other != keys for other in stated):
        message = "these masks look at keys of different sequences"
        checker.report("E126", message, check.span, "compare masks with the same `@keys`")
    if check.sample is not None and check.sample.text not in checker.scope.samples:
        if check.sample.text in checker.lost:
            return
        hint = did_you_mean(check.sample.text, checker.scope.samples)
        checker.report("E101", f"unknown sample `{check.sample.text}`", check.sample.span, hint)
