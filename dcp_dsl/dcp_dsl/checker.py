"""Check a text as a whole: definitions, layouts, recursion, size; and every expression in it."""

from dataclasses import dataclass

from dcp_dsl import ast
from dcp_dsl.ast import Program
from dcp_dsl.columns import needed_columns
from dcp_dsl.diagnostics import Diagnostic, did_you_mean
from dcp_dsl.expressions import NOT_YET, ExpressionChecker, Function, Names
from dcp_dsl.kinds import PARAM_TYPES, SEGMENT, UNKNOWN, Kind, param_kind
from dcp_dsl.layout_checker import check_layout
from dcp_dsl.scope import Scope, segment_names
from dcp_dsl.tokens import RESERVED
from dcp_dsl.walk import mentioned_names, walk

MAX_EXPANDED_DEPTH = 128
MAX_EXPANDED_NODES = 20_000
MAX_BINDINGS = 256  # they are checked in the order of their dependencies, round by round

_DECORATORS = ("ahead", "partial")


def check_program(program: Program, lost: frozenset[str] = frozenset()) -> tuple[Diagnostic, ...]:
    """Find what is wrong with the names, kinds and layouts of a parsed text.

    Args:
        program: the statements that parsed.
        lost: names that statements with syntax errors would have defined.

    Returns:
        Errors, and W290 for what is well-formed but cannot be compiled yet.
    """
    imported = {
        name.text
        for statement in program.statements
        if isinstance(statement, ast.Import)
        for name in statement.names
    }
    scope = Scope.of(program)
    checker = ExpressionChecker(scope, program, lost | imported)
    _check_definitions(program, checker)
    _check_recursion(scope, checker)
    for statement in program.statements:
        _check_statement(statement, checker)
    return tuple(checker.found)


def check_expression(
    expression: ast.Expr, scope: Scope, program: Program
) -> tuple[Diagnostic, ...]:
    """Find what is wrong with a mask expression over the names of a checked text; errors only."""
    checker = ExpressionChecker(scope, program)
    _check_size(expression, checker)
    if not checker.found:
        checker.mask(expression, {})
    return tuple(d for d in checker.found if d.severity == "error")


# ---- definitions ---------------------------------------------------------------------------------


def _check_definitions(program: Program, checker: ExpressionChecker) -> None:
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
    """How large a mask is with everything it calls written out."""

    depth: int
    nodes: int


def _check_recursion(scope: Scope, checker: ExpressionChecker) -> None:
    """Report masks that call themselves, and masks too large when written out."""
    sizes: dict[str, _Size] = {}
    for name in scope.masks:
        _measure(name, scope, checker, sizes, ())


def _measure(
    name: str,
    scope: Scope,
    checker: ExpressionChecker,
    sizes: dict[str, _Size],
    path: tuple[str, ...],
) -> _Size:
    """Give the size of an own mask; `path` holds the masks being measured."""
    if name in sizes:
        return sizes[name]
    mask = scope.masks[name]
    if name in path:
        cycle = " -> ".join((*path[path.index(name) :], name))
        hint = cycle if len(cycle) < 100 else ""
        checker.report("E110", f"mask `{name}` calls itself", mask.name.span, hint)
        return sizes.setdefault(name, _Size(1, 1))
    if len(path) > MAX_EXPANDED_DEPTH:
        _report_size(mask, checker)
        return sizes.setdefault(name, _Size(1, 1))
    own = [node for node in walk(mask) if hasattr(node, "span")]
    depth, nodes = _depth(mask), len(own)
    deepest = 0
    for called, is_attribute in mentioned_names(mask):
        if not is_attribute and called in scope.masks:
            inner = _measure(called, scope, checker, sizes, (*path, name))
            deepest, nodes = max(deepest, inner.depth), nodes + inner.nodes
    size = sizes.setdefault(name, _Size(depth + deepest, nodes))
    if size.depth > MAX_EXPANDED_DEPTH or size.nodes > MAX_EXPANDED_NODES:
        _report_size(mask, checker)
    return size


def _report_size(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    checker.report(
        "E116", f"mask `{mask.name.text}` is too large with everything it calls written out",
        mask.name.span,
        f"at most {MAX_EXPANDED_NODES:_} parts, {MAX_EXPANDED_DEPTH} levels deep",
    )  # fmt: skip


def _depth(node: object) -> int:
    """Give the depth of a tree; the parser bounds it."""
    deepest = 0
    stack: list[tuple[object, int]] = [(node, 0)]
    while stack:
        current, depth = stack.pop()
        deepest = max(deepest, depth)
        if isinstance(current, tuple):
            stack.extend((item, depth) for item in current)
        elif hasattr(current, "__dataclass_fields__"):
            fields = current.__dataclass_fields__
            stack.extend((getattr(current, name), depth + 1) for name in fields)
    return deepest


def _check_size(expression: ast.Expr, checker: ExpressionChecker) -> None:
    count = sum(1 for node in walk(expression) if hasattr(node, "span"))
    if count > MAX_EXPANDED_NODES // 20:
        checker.report("E116", "this expression is too large", expression.span, "name parts of it")


# ---- statements ----------------------------------------------------------------------------------


def _check_statement(statement: ast.Statement, checker: ExpressionChecker) -> None:
    match statement:
        case ast.MaskDef():
            _check_mask(statement, checker)
        case ast.Segment():
            _check_segment(statement, checker)
        case ast.Stack():
            _check_stack(statement, checker)
        case ast.Attach():
            _check_attach(statement, checker)
        case ast.SampleDef():
            _check_sample(statement, checker)
        case ast.Check():
            _check_check(statement, checker)
        case ast.Import():
            checker.report("W290", NOT_YET, statement.span, "copy the masks into this file")


def _check_mask(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    for decorator in mask.decorators:
        if decorator.name.text not in _DECORATORS:
            hint = did_you_mean(decorator.name.text, _DECORATORS) or "`@ahead` or `@partial`"
            message = f"unknown decorator `@{decorator.name.text}`"
            checker.report("E101", message, decorator.name.span, hint)
        for argument in decorator.arguments:
            checker.segment_name(argument, {})
    if len(mask.bindings) > MAX_BINDINGS or _expanded_bindings(mask) > MAX_EXPANDED_NODES:
        _report_size(mask, checker)
        return
    names = _local_names(mask, checker)
    for binding in mask.bindings:
        match binding:
            case ast.BindSegment(source=source):
                _check_every(source, names, checker)
            case ast.BindFunction(params=params, value=value):
                checker.kind(value, {**names, **dict.fromkeys((p.text for p in params), UNKNOWN)})
    checker.mask(mask.value, names)
    _check_supported(mask, checker)
    for node in walk(mask.value):
        if isinstance(node, ast.Rules):
            _check_cover(node, mask, checker)


def _local_names(mask: ast.MaskDef, checker: ExpressionChecker) -> Names:
    """Give the kinds of parameters and bindings, checking them on the way."""
    _check_local_definitions(mask, checker)
    names: dict[str, Kind | Function] = {}
    for param in mask.params:
        if param.type.text not in PARAM_TYPES:
            hint = did_you_mean(param.type.text, PARAM_TYPES) or f"types: {', '.join(PARAM_TYPES)}"
            checker.report("E118", f"unknown type `{param.type.text}`", param.type.span, hint)
        if param.default is not None:
            checker.argument(param.default, param, dict(names))
        names[param.name.text] = param_kind(param.type.text)
    for binding in mask.bindings:
        names[binding.name.text] = SEGMENT if isinstance(binding, ast.BindSegment) else UNKNOWN
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


def _check_local_definitions(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Report reserved and doubled names among the parameters and bindings of a mask."""
    seen: set[str] = set()
    for ident in (d.name for d in (*mask.params, *mask.bindings)):
        if ident.text in RESERVED:
            checker.report("E109", f"`{ident.text}` is a word of the language", ident.span)
        if ident.text in seen:
            checker.report("E108", f"`{ident.text}` is defined twice in this mask", ident.span)
        seen.add(ident.text)


def _dependencies(mask: ast.MaskDef) -> dict[str, set[str]]:
    """Give for each `where` binding the bindings it mentions."""
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
    """Give the size of a mask's body with all its bindings written out."""
    sizes: dict[str, int] = dict.fromkeys(_cyclic_bindings(mask), 1)
    for binding in _in_order(mask):
        sizes[binding.name.text] = _expanded(binding, sizes)
    return _expanded(mask.value, sizes)


def _expanded(node: object, sizes: dict[str, int]) -> int:
    own = sum(1 for inner in walk(node) if hasattr(inner, "span"))
    return own + sum(sizes.get(name, 0) for name, _ in mentioned_names(node))


def _in_order(mask: ast.MaskDef) -> list[ast.Binding]:
    """Give the bindings so that each comes behind those it mentions; cyclic ones are left out."""
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


def _check_supported(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Say which segments of a mask cannot be compiled yet."""
    for node in walk(mask):
        if isinstance(node, ast.Per) and needed_columns(node.value, checker.scope):
            checker.report("W290", NOT_YET, node.span, "inside `per`, use positions and `every`")


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
    """Give the named leaves that are neither subjects nor inside a group that is one."""
    found: list[ast.Ident] = []
    for part in parts:
        if part.name is not None and part.name.text in subjects:
            continue
        if isinstance(part, ast.Group):
            found += _uncovered(part.parts, subjects)
        elif part.name is not None:
            found.append(part.name)
    return found


def _check_segment(segment: ast.Segment, checker: ExpressionChecker) -> None:
    match segment.source:
        case ast.Every() as every:
            _check_every(every, {}, checker)
            if every.parent is not None and every.parent.text == segment.name.text:
                checker.report("E110", f"`{segment.name.text}` tiles itself", every.parent.span)
        case ast.Columns():
            checker.report("W290", NOT_YET, segment.source.span, "use a layout where one fits")
        case ast.Layout() as layout:
            check_layout(layout, checker)


def _check_every(every: ast.Every, names: Names, checker: ExpressionChecker) -> None:
    checker.constant(every.size, names, at_least=1)
    if every.parent is not None:
        checker.segment_name(every.parent, names)


def _check_stack(stack: ast.Stack, checker: ExpressionChecker) -> None:
    for layer in stack.layers:
        if layer.value is not None:
            checker.mask(layer.value, {})
        for head in layer.heads:
            checker.mask(head.value, {})
            if head.first is not None and head.last is not None and head.last < head.first:
                checker.report("E111", "this range of heads is empty", head.span)
    checker.report("W290", NOT_YET, stack.name.span, "attach one mask at a time")


def _check_attach(attach: ast.Attach, checker: ExpressionChecker) -> None:
    value = attach.value
    if isinstance(value, ast.Name) and value.text in checker.scope.stacks:
        return  # the stack itself is reported
    checker.columns = frozenset(c.text for c in attach.having)
    checker.mask(value, {})
    checker.columns = frozenset()
    seen: set[str] = set()
    for rename in attach.renames:
        if rename.new.text in seen:
            checker.report("E108", f"`{rename.new.text}` is renamed twice", rename.new.span)
        seen.add(rename.new.text)


def _check_sample(sample: ast.SampleDef, checker: ExpressionChecker) -> None:
    seen: set[str] = set()
    for entry in sample.fields:
        if entry.name.text in seen:
            checker.report("E108", f"column `{entry.name.text}` is given twice", entry.name.span)
        seen.add(entry.name.text)
        if _has_negative(entry.value):
            checker.report("E117", "a sample's lengths and values are at least 0", entry.span)


def _has_negative(value: ast.Literals) -> bool:
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, tuple):
            pending.extend(current)
        elif current < 0:
            return True
    return False


def _check_check(check: ast.Check, checker: ExpressionChecker) -> None:
    checker.mask(check.left, {})
    if check.right is not None:
        checker.mask(check.right, {})
    if check.sample is not None and check.sample.text not in checker.scope.samples:
        if check.sample.text in checker.lost:
            return
        hint = did_you_mean(check.sample.text, list(checker.scope.samples))
        checker.report("E101", f"unknown sample `{check.sample.text}`", check.sample.span, hint)
