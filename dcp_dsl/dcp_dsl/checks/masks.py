"""Check masks: decorators, parameters, `where` bindings, bodies; translate to core programs."""

from collections.abc import Sequence

from dcp_dsl.checks.calls import check_argument
from dcp_dsl.checks.expressions import ExpressionChecker
from dcp_dsl.checks.findings import PARAM_KINDS, UNKNOWN, Function, Kind, Names
from dcp_dsl.checks.scope import Body, Scope, keys_of, keys_of_mask
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import ALIGNMENTS, KeySequence, facts_of_keys, reads_length
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError, did_you_mean
from dcp_dsl.syntax.tokens import RESERVED
from dcp_dsl.syntax.trees import mentioned_names, walk

MAX_BINDINGS = 256  # they are checked in the order of their dependencies, round by round
# Each call writes its mask out anew: of `b = a or a`, `c = b or b` and so on each doubles the size.
MAX_EXPANDED_DEPTH = 128
MAX_EXPANDED_NODES = 20_000
_DECORATORS = ("ahead", "partial", "keys")


def write_out(expression: ast.Expr, scope: Scope, keys: KeySequence | None = None) -> nodes.Mask:
    """Return a mask expression of a checked text as a core program; keys as in `whole`."""
    return MaskChecker(scope, scope.program).whole(expression, keys)


def write_out_inside(
    values: Sequence[ast.Expr], definition: ast.MaskDef, scope: Scope
) -> list[nodes.Mask]:
    """Return parts of the body of a checked mask as core programs with free parameters."""
    checker = MaskChecker(scope, scope.program)
    names, _ = checker.names(definition)
    return [checker.mask(value, names) for value in values]


def write_out_segment(name: str, scope: Scope) -> nodes.Segment:
    """Return a segment of a checked text by name."""
    return MaskChecker(scope, scope.program).segment_name(ast.Ident(name), {})


class MaskChecker(ExpressionChecker):
    """Checks the masks of one text."""

    def whole(self, value: ast.Expr, keys: KeySequence | None = None) -> nodes.Mask:
        """Check an expression that stands alone, so that it may be a mask with `@keys`.

        Without `@keys` of its own it has those that are given.
        """
        self.keys = keys_of(value, self.scope) or keys
        core = self.mask(value, {})
        self.keys = None
        return core

    def body(self, mask: ast.MaskDef, scope: Scope) -> Body | None:
        """Return the body of a mask of a scope, read once; None if it cannot be written out."""
        name = mask.name.text
        if name not in scope.bodies:
            # Only the text at hand may have statements that do not parse: such imports are refused.
            lost = self.lost if scope is self.scope else frozenset()
            scope.bodies[name] = MaskChecker(scope, scope.program, lost).read(mask)
        return scope.bodies[name]

    def read(self, mask: ast.MaskDef) -> Body | None:
        """Check the bindings and the body of a mask; None if they are too many."""
        if len(mask.bindings) > MAX_BINDINGS or _expanded_bindings(mask) > MAX_EXPANDED_NODES:
            report_size(mask, self)
            return None
        names, defaults = self.names(mask)
        self.keys = keys_of_mask(mask, self.scope)
        # Functions that nothing calls are checked, too, with parameters that may be anything.
        for binding in mask.bindings:
            if binding.body is not None:
                vague = dict.fromkeys((p.text for p in binding.params), UNKNOWN)
                self.kind(binding.body, {**names, **vague})
        core, self.keys = self.mask(mask.value, names), None
        return Body(core, defaults)

    def names(self, mask: ast.MaskDef) -> tuple[Names, dict[str, nodes.Node]]:
        """Return parameters and bindings, checking them on the way; and the defaults."""
        _check_local_definitions(mask, self)
        names: dict[str, Kind | Function] = {}
        defaults: dict[str, nodes.Node] = {}
        for param in mask.params:
            name, type_ = param.name.text, param.type.text
            if type_ not in PARAM_KINDS:
                hint = did_you_mean(type_, PARAM_KINDS) or f"types: {', '.join(PARAM_KINDS)}"
                self.report("E118", f"unknown type `{type_}`", param.type.span, hint)
            # Of the names of the mask, a default sees the parameters in front of it.
            if param.default is not None:
                defaults[name] = check_argument(param.default, param, dict(names), self)
            free = nodes.Free(name, type_, place=self.place(param.span))
            names[name] = PARAM_KINDS.get(type_, UNKNOWN).of(free)
        self._bind(mask, names)
        return names, defaults

    def _bind(self, mask: ast.MaskDef, names: dict[str, Kind | Function]) -> None:
        """Add the `where` bindings to the names, in the order in which they need each other."""
        # All names first: a function sees the others wherever they stand, since `names` is shared.
        for binding in mask.bindings:
            names[binding.name.text] = _binding_kind(binding)
        order, cyclic = _in_order(mask)
        for binding in mask.bindings:
            if binding.name.text in cyclic:
                message = f"`{binding.name.text}` is defined by itself"
                self.report("E110", message, binding.name.span)
            elif binding.body is not None:
                names[binding.name.text] = Function(binding.params, binding.body, names)
        for binding in order:
            match binding.value:
                case ast.Every() as every:
                    own = _binding_kind(binding).of(self.every(every, names))
                    names[binding.name.text] = own
                case value if binding.body is None:
                    names[binding.name.text] = self.kind(value, names)


def report_size(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Report a mask that is too large to be written out."""
    checker.scope.bodies[mask.name.text] = None
    checker.report(
        "E116", f"mask `{mask.name.text}` is too large with everything it calls written out",
        mask.name.span,
        f"at most {MAX_EXPANDED_NODES:_} parts, {MAX_EXPANDED_DEPTH} levels deep",
    )  # fmt: skip


def check_mask(mask: ast.MaskDef, checker: MaskChecker) -> None:
    """Check a mask: decorators, parameters, bindings, body."""
    for decorator in mask.decorators:
        if decorator.name.text not in _DECORATORS:
            known = "`@ahead`, `@partial` or `@keys(S)`"
            hint = did_you_mean(decorator.name.text, _DECORATORS) or known
            message = f"unknown decorator `@{decorator.name.text}`"
            checker.report("E101", message, decorator.name.span, hint)
        if decorator.name.text == "keys":
            _check_keys(decorator, checker)
    for doubled in [d for d in mask.decorators if d.name.text == "keys"][1:]:
        message = "`@keys` stands twice before one mask, which has one sequence of keys"
        checker.report("E108", message, doubled.span, "remove one of them")
    named = [checker.segment_name(s, {}) for d in mask.decorators for s in d.segments]
    body = checker.read(mask)
    keys = keys_of_mask(mask, checker.scope)
    # The sides of facts are read from the core program, which means nothing with errors.
    if body is not None and keys is not None and not checker.found:
        allowed = [nodes.Same(segment) for segment in named if keys.alignment]  # by `@ahead(S)`
        core = nodes.And((body.core, *allowed), place=body.core.place)
        check_sides(core, mask.value.span, keys, checker)
    if checker.scope.masks[mask.name.text] is mask:  # not a second one of its name
        checker.scope.bodies.setdefault(mask.name.text, body)
    for node in walk(mask.value):
        if isinstance(node, ast.Rules):
            _check_cover(node, mask, checker)


def _check_keys(decorator: ast.Decorator, checker: ExpressionChecker) -> None:
    """Check `@keys(S)` and `@keys(S, corner)`."""
    if not 1 <= len(decorator.arguments) <= 2:
        hint = "write `@keys(source)`, or `@keys(cache, bottom_right)` where positions compare"
        checker.report("E106", "`@keys` takes a layout, and perhaps a corner", decorator.span, hint)
        return
    name, *corner = decorator.arguments
    for word in corner:
        if word.text not in ALIGNMENTS:
            hint = "`bottom_right`: the last query is the last key; `top_left`: the first the first"
            hint = did_you_mean(word.text, ALIGNMENTS) or hint
            checker.report("E101", f"unknown corner `{word.text}`", word.span, hint)
    statement = checker.scope.segments.get(name.text)
    if statement is not None:
        layout = statement.source
        if not isinstance(layout, ast.Layout) or statement.name.text != name.text:
            hint = "declare the keys: `segment source = phrase[source_lens]*`"
            checker.report("E126", f"`{name.text}` lays out no sequence", name.span, hint)
        elif reads_length(layout):
            message = f"`{name.text}` asks for the length of the sample, which is that of queries"
            hint = "give the part a column: `source[source_len]`"
            checker.report("E126", message, name.span, hint)


def check_sides(
    core: nodes.Mask, whole: ast.Span, keys: KeySequence, checker: ExpressionChecker
) -> None:
    """Report expressions that mix the sequences of queries and of keys."""
    try:
        facts_of_keys(core, keys)
    except SpecError as error:
        found = error.diagnostics[0]
        is_own = found.name == checker.program.name  # not in a mask of the library or another file
        span = ast.Span(found.start, found.end) if is_own else whole
        checker.report(found.code, found.message, span, found.hint)


def _binding_kind(binding: ast.Binding) -> Kind:
    """Return the kind of a `where` binding, as far as it is known before its value is read."""
    if not isinstance(binding.value, ast.Every):
        return UNKNOWN
    parent = binding.value.parent
    return Kind("segment", "" if parent is None else parent.text)


def _check_local_definitions(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Report reserved and doubled names among the parameters and bindings of a mask."""
    seen: set[str] = set()
    scope = checker.scope
    outer = {*scope.masks, *scope.stacks, *scope.segments, *scope.tokens, *scope.imported.masks}
    for ident in (local.name for local in mask.locals):
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
        params = {p.text for p in binding.params}
        mentioned = {name for name, _ in mentioned_names(binding.value) if name in own}
        found[binding.name.text] = mentioned - params
    return found


def _in_order(mask: ast.MaskDef) -> tuple[list[ast.Binding], set[str]]:
    """Return the bindings so that each comes behind those it mentions; apart, the cyclic ones."""
    graph = _dependencies(mask)
    by_name = {b.name.text: b for b in mask.bindings}
    order: list[ast.Binding] = []
    done: set[str] = set()
    # Round by round, those whose needs are met; what is left in the end waits for itself.
    while ready := [name for name, needs in graph.items() if name not in done and needs <= done]:
        order += [by_name[name] for name in ready]
        done.update(ready)
    return order, graph.keys() - done


def _expanded_bindings(mask: ast.MaskDef) -> int:
    """Return the size of a mask's body with all its bindings written out."""
    # A binding counts at each place that names it, so sizes multiply along the order.
    order, cyclic = _in_order(mask)
    sizes: dict[str, int] = dict.fromkeys(cyclic, 1)
    for binding in order:
        sizes[binding.name.text] = _expanded(binding, sizes)
    return _expanded(mask.value, sizes)


def _expanded(node: object, sizes: dict[str, int]) -> int:
    own = sum(1 for _ in walk(node))
    return own + sum(sizes.get(name, 0) for name, _ in mentioned_names(node))


def _check_cover(rules: ast.Rules, mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Report kinds of the layout that no rule gives anything to see."""
    if any(d.name.text == "partial" for d in mask.decorators):
        return
    # Each layout that rules speak of must be covered; its own name stands for all of its parts.
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
