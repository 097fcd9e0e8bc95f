"""Check definitions: names, recursion and sizes, layouts, masks with decorators and rules."""

from dataclasses import dataclass
from typing import TypeAlias

from dcp_dsl.checks.calls import check_argument
from dcp_dsl.checks.columns import layout_columns
from dcp_dsl.checks.expressions import PLACES, ExpressionChecker
from dcp_dsl.checks.kinds import PARAM_TYPES, UNKNOWN, Function, Kind, Names, param_kind
from dcp_dsl.checks.scope import Scope, segment_names
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program
from dcp_dsl.syntax.diagnostics import did_you_mean
from dcp_dsl.syntax.tokens import RESERVED
from dcp_dsl.syntax.walk import children, mentioned_names, walk

MAX_EXPANDED_DEPTH = 128
MAX_EXPANDED_NODES = 20_000
MAX_LIST = 2**14  # numbers in a list of a token
MAX_BINDINGS = 256  # they are checked in the order of their dependencies, round by round
_DECORATORS = ("ahead", "partial")


def check_definitions(program: Program, checker: ExpressionChecker) -> None:
    """Report reserved and doubled names; samples have a space of names of their own."""
    seen: dict[tuple[str, str], ast.Ident] = {}
    for statement in program.statements:
        for space, ident in _defined(statement):
            if ident.text in RESERVED:
                checker.report(
                    "E109", f"`{ident.text}` is a word of the language", ident.span,
                    "choose another name",
                )  # fmt: skip
            first = seen.setdefault((space, ident.text), ident)
            if first is not ident:
                line = program.text.count("\n", 0, first.span.start) + 1
                checker.report(
                    "E108", f"`{ident.text}` is defined twice", ident.span, f"first in line {line}"
                )


def _defined(statement: ast.Statement) -> list[tuple[str, ast.Ident]]:
    match statement:
        case ast.MaskDef(name=name) | ast.Stack(name=name) | ast.Token(name=name):
            return [("", name)]
        case ast.Segment():
            return [("", name) for name in segment_names(statement)]
        case ast.SampleDef(name=name):
            return [("sample", name)]
        case ast.Import(names=names):
            return [("", name) for name in names]
    return []


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
    """Report a mask that is too large."""
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


def check_mask(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Check a mask: decorators, parameters, bindings, body."""
    for decorator in mask.decorators:
        if decorator.name.text not in _DECORATORS:
            hint = did_you_mean(decorator.name.text, _DECORATORS) or "`@ahead` or `@partial`"
            message = f"unknown decorator `@{decorator.name.text}`"
            checker.report("E101", message, decorator.name.span, hint)
        for argument in decorator.arguments:
            checker.segment_name(argument, {})
    if len(mask.bindings) > MAX_BINDINGS or _expanded_bindings(mask) > MAX_EXPANDED_NODES:
        report_size(mask, checker)
        return
    names = _local_names(mask, checker)
    for binding in mask.bindings:
        match binding:
            case ast.BindSegment(source=source):
                check_every(source, names, checker)
            case ast.BindFunction(params=params, value=value):
                checker.kind(value, {**names, **dict.fromkeys((p.text for p in params), UNKNOWN)})
    checker.mask(mask.value, names)
    for node in walk(mask.value):
        if isinstance(node, ast.Rules):
            _check_cover(node, mask, checker)


def _local_names(mask: ast.MaskDef, checker: ExpressionChecker) -> Names:
    """Return the kinds of parameters and bindings, checking them on the way."""
    _check_local_definitions(mask, checker)
    names: dict[str, Kind | Function] = {}
    for param in mask.params:
        if param.type.text not in PARAM_TYPES:
            hint = did_you_mean(param.type.text, PARAM_TYPES) or f"types: {', '.join(PARAM_TYPES)}"
            checker.report("E118", f"unknown type `{param.type.text}`", param.type.span, hint)
        if param.default is not None:
            check_argument(param.default, param, dict(names), checker)
        names[param.name.text] = param_kind(param.type.text)
    for binding in mask.bindings:
        names[binding.name.text] = _binding_kind(binding)
    cyclic = _cyclic_bindings(mask)
    for binding in mask.bindings:
        if binding.name.text in cyclic:
            message = f"`{binding.name.text}` is defined by itself"
            checker.report("E110", message, binding.name.span)
        elif isinstance(binding, ast.BindFunction):
            names[binding.name.text] = Function(binding, names)
    for binding in _in_order(mask):
        if isinstance(binding, ast.BindValue) and binding.name.text not in cyclic:
            names[binding.name.text] = checker.kind(binding.value, names)
    return names


def _binding_kind(binding: ast.Binding) -> Kind:
    """Return the kind of a `where` binding, as far as it is known before its value is read."""
    if not isinstance(binding, ast.BindSegment):
        return UNKNOWN
    parent = binding.source.parent
    return Kind("segment", "" if parent is None else parent.text)


def _check_local_definitions(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Report reserved and doubled names among the parameters and bindings of a mask."""
    seen: set[str] = set()
    scope = checker.scope
    outer = {*scope.masks, *scope.stacks, *scope.segments, *scope.tokens, *scope.imported.masks}
    for ident in (d.name for d in (*mask.params, *mask.bindings)):
        if ident.text in outer:
            message = f"`{ident.text}` hides what the file defines by this name"
            checker.report("E119", message, ident.span, "choose another name for one of them")
        if ident.text in RESERVED:
            checker.report("E109", f"`{ident.text}` is a word of the language", ident.span)
        if ident.text in seen:
            checker.report("E108", f"`{ident.text}` is defined twice in this mask", ident.span)
        seen.add(ident.text)


def _dependencies(mask: ast.MaskDef) -> dict[str, set[str]]:
    """Return for each `where` binding the bindings it mentions."""
    own = {b.name.text for b in mask.bindings}
    found = {}
    for binding in mask.bindings:
        body = binding.source if isinstance(binding, ast.BindSegment) else binding.value
        params = (
            {p.text for p in binding.params} if isinstance(binding, ast.BindFunction) else set()
        )
        found[binding.name.text] = {n for n, _ in mentioned_names(body) if n in own} - params
    return found


def _cyclic_bindings(mask: ast.MaskDef) -> set[str]:
    graph = _dependencies(mask)
    alive = dict(graph)
    while True:
        done = [name for name, needs in alive.items() if not needs & alive.keys()]
        if not done:
            return set(alive)
        for name in done:
            del alive[name]


def _expanded_bindings(mask: ast.MaskDef) -> int:
    """Return the size of a mask's body with all its bindings written out."""
    sizes: dict[str, int] = dict.fromkeys(_cyclic_bindings(mask), 1)
    for binding in _in_order(mask):
        sizes[binding.name.text] = _expanded(binding, sizes)
    return _expanded(mask.value, sizes)


def _expanded(node: object, sizes: dict[str, int]) -> int:
    own = sum(1 for inner in walk(node) if hasattr(inner, "span"))
    return own + sum(sizes.get(name, 0) for name, _ in mentioned_names(node))


def _in_order(mask: ast.MaskDef) -> list[ast.Binding]:
    """Return the bindings so that each comes behind those it mentions; cyclic ones are left out."""
    graph = _dependencies(mask)
    by_name = {b.name.text: b for b in mask.bindings}
    order: list[ast.Binding] = []
    done = set(_cyclic_bindings(mask))
    while len(done) < len(graph):
        for name, needs in graph.items():
            if name not in done and needs <= done:
                order.append(by_name[name])
                done.add(name)
    return order


def _check_cover(rules: ast.Rules, mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Report kinds of the layout that no rule gives anything to see."""
    if any(d.name.text == "partial" for d in mask.decorators):
        return
    subjects = [rule.subject.text for rule in rules.rules]
    layouts = {id(checker.scope.segments[s]): checker.scope.segments[s]
               for s in subjects if s in checker.scope.segments}  # fmt: skip
    for segment in layouts.values():
        if not isinstance(segment.source, ast.Layout) or segment.name.text in subjects:
            continue
        missed = [n.text for n in _uncovered(segment.source.parts, set(subjects))]
        if missed:
            shown = ", ".join(f"`{m}`" for m in missed)
            checker.report(
                "E114", f"no rule says what {shown} sees", rules.span,
                f"add `{missed[0]} sees ...`, or mark the mask `@partial`",
            )  # fmt: skip


def _uncovered(parts: tuple[ast.Leaf | ast.Group, ...], subjects: set[str]) -> list[ast.Ident]:
    """Return the named leaves that are neither subjects nor inside a group that is one."""
    found: list[ast.Ident] = []
    for part in parts:
        if part.name is not None and part.name.text in subjects:
            continue
        if isinstance(part, ast.Group):
            found += _uncovered(part.parts, subjects)
        elif part.name is not None:
            found.append(part.name)
    return found


def check_every(every: ast.Every, names: Names, checker: ExpressionChecker) -> None:
    """Check the size and the parent of tiles."""
    checker.constant(every.size, names, at_least=1)
    if every.parent is not None:
        checker.segment_name(every.parent, names)
