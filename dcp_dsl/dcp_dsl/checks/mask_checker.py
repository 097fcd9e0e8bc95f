"""Check one mask: its decorators, parameters and bindings, and that its rules cover the layout."""

from dcp_dsl.checks.calls import check_argument
from dcp_dsl.checks.definitions import MAX_EXPANDED_NODES, report_size
from dcp_dsl.checks.expressions import ExpressionChecker
from dcp_dsl.checks.kinds import PARAM_TYPES, UNKNOWN, Function, Kind, Names, param_kind
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import did_you_mean
from dcp_dsl.syntax.tokens import RESERVED
from dcp_dsl.syntax.walk import mentioned_names, walk

MAX_BINDINGS = 256  # they are checked in the order of their dependencies, round by round

_DECORATORS = ("ahead", "partial")


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
    """Give the kinds of parameters and bindings, checking them on the way."""
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
    """Give the kind of a `where` binding, as far as it is known before its value is read."""
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


def check_every(every: ast.Every, names: Names, checker: ExpressionChecker) -> None:
    """Check the size and the parent of tiles."""
    checker.constant(every.size, names, at_least=1)
    if every.parent is not None:
        checker.segment_name(every.parent, names)
