"""Elaborate checked masks: write out calls, rules, `where`, parameters and imports as core nodes.

Bindings, and arguments that are masks or positions, are read where they are used, in the
coordinates of that place; arguments that are lengths or integers keep the coordinates of the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import cast

from dcp_dsl.checks.scope import Scope, given_arguments
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.names import Env, Given, Later, Local, bind, is_instance, is_segment
from dcp_dsl.elaboration.nodes import Place
from dcp_dsl.syntax import ast


def elaborate(value: ast.Expr, scope: Scope, program: ast.Program | None = None) -> nodes.Mask:
    """Return a checked mask expression as a core program.

    Args:
        value: the expression.
        scope: where its names are looked up.
        program: the text that its spans point into; by default that of the scope.

    >>> from dcp_dsl import Spec
    >>> from dcp_dsl.elaboration.text import show_mask
    >>> mask = Spec.from_text("mask near(w: tokens = 4) = causal and q - k < w").mask("near(2)")
    >>> print(show_mask(mask.core))
    and
      k <= q
      q - k < 2
    """
    return _Elaborator().mask(value, Env(scope, program or scope.program))


def elaborate_inside(
    values: Sequence[ast.Expr], definition: ast.MaskDef, scope: Scope
) -> tuple[nodes.Mask, ...]:
    """Return parts of a mask's body as core programs with free parameters.

    Args:
        values: the parts.
        definition: the mask.
        scope: where its body is read.
    """
    names: dict[str, Local] = {}
    inner = Env(scope, scope.program, names)
    for param in definition.params:
        free = nodes.Free(param.name.text, param.type.text, place=inner.place(param.span))
        names[param.name.text] = Given(free, 0)
    bind(definition, names, inner)
    elaborator = _Elaborator()
    return tuple(elaborator.mask(value, inner) for value in values)


def elaborate_segment(name: str, scope: Scope) -> nodes.Segment:
    """Return a segment of a text by name."""
    return _Elaborator().segment(ast.Ident(name), Env(scope, scope.program))


@dataclass(slots=True, eq=False)
class _Elaborator:
    """Elaborates expressions in one frame.

    Attributes:
        depth: frames around.
        known: bindings, arguments and segments already elaborated here; masks that double their
            argument nest, so each is elaborated once.
    """

    depth: int = 0
    known: dict[object, nodes.Node] = field(default_factory=dict)

    # ---- masks ----

    def mask(self, value: ast.Expr, env: Env) -> nodes.Mask:
        """Elaborate an expression of kind mask."""
        place = env.place(value.span)
        match value:
            case ast.Bool(flag):
                return nodes.Truth(flag, place=place)
            case ast.Not(inner):
                return nodes.Not(self.mask(inner, env), place=place)
            case ast.And(items):
                return nodes.And(tuple(self.mask(item, env) for item in items), place=place)
            case ast.Or(items):
                return nodes.Or(tuple(self.mask(item, env) for item in items), place=place)
            case ast.Minus(left, right):
                rest = nodes.Not(self.mask(right, env), place=place)
                return nodes.And((self.mask(left, env), rest), place=place)
            case ast.Per(inner, segment):
                cells = self.segment(segment, env)
                return nodes.Per(cells, _Elaborator(self.depth + 1).mask(inner, env), place=place)
            case ast.Rules(rules):
                return _any_of([self.rule(rule, env) for rule in rules], place)
        return self.atom(value, env)

    def atom(self, value: ast.Expr, env: Env) -> nodes.Mask:
        """Elaborate a comparison, a membership or a mask by name."""
        place = env.place(value.span)
        match value:
            case ast.Compare():
                return self.comparison(value, env)
            case ast.In(item, container, negated):
                inside = self.membership(self.number(item, env), container, env, place)
                return nodes.Not(inside, place=place) if negated else inside
            case ast.Name("paths"):
                return nodes.Along(_tree(env, place), place=place)
            case ast.Call(ast.Ident("paths"), (argument,)):
                layout = self.chosen(argument.value, env)
                assert isinstance(layout, nodes.Laid), "checked: a layout with branches"
                return nodes.Along(layout, place=place)
            case ast.Name(name):
                return cast("nodes.Mask", self.named(name, (), env))
            case ast.Call(ast.Ident("same"), (argument,)):
                return nodes.Same(self.chosen(argument.value, env), place=place)
            case ast.Call(ast.Ident(name), arguments):
                return cast("nodes.Mask", self.named(name, arguments, env))
        raise AssertionError(f"checked: {type(value).__name__} is no mask")

    def membership(
        self, item: nodes.Number, container: ast.Expr, env: Env, place: Place
    ) -> nodes.Mask:
        """Elaborate that a number is in a list, or that a position lies in a segment."""
        if not isinstance(container, ast.Attribute):
            return nodes.Within(self.chosen(container, env), item, place=place)
        found = self.attribute(container, env)
        assert isinstance(found, nodes.Lookup), "checked: a list"
        assert isinstance(found.table, nodes.TokenColumn), "checked: a list"
        return nodes.Listed(item, found.table, found.at, place=place)

    def comparison(self, value: ast.Compare, env: Env) -> nodes.Mask:
        """Elaborate a chain of comparisons."""
        place = env.place(value.span)
        numbers = [self.number(operand, env) for operand in value.operands]
        links = zip(value.ops, numbers, numbers[1:], strict=False)
        return _all_of([nodes.Compare(op, a, b, place=place) for op, a, b in links], place)

    def rule(self, rule: ast.Rule, env: Env) -> nodes.Mask:
        """Elaborate ``subject sees target, target``."""
        place = env.place(rule.span)
        subject = self.segment(rule.subject, env)
        seen = _any_of([self.target(target, subject, env) for target in rule.targets], place)
        q = nodes.Pos("q", place=place)
        return _all_of([nodes.Within(subject, q, place=place), seen], place)

    def target(self, target: ast.Target, subject: nodes.Segment, env: Env) -> nodes.Mask:
        """Elaborate the keys that a rule shows, and how near they are."""
        place = env.place(target.span)
        q, k = nodes.Pos("q", place=place), nodes.Pos("k", place=place)
        conditions: list[nodes.Mask] = []
        if target.name.text == "self":
            conditions.append(nodes.Same(subject, place=place))
        elif target.name.text != "all":
            seen = self.segment(target.name, env)
            conditions.append(nodes.Within(seen, k, place=place))
        if target.is_causal:
            conditions.append(nodes.Compare("<=", k, q, place=place))
        if target.within is not None:
            width = self.number(target.within, env)
            for a, b in ((q, k), (k, q)):
                distance = nodes.Arithmetic("-", a, b, place=place)
                conditions.append(nodes.Compare("<", distance, width, place=place))
        return _all_of(conditions or [nodes.Truth(True, place=place)], place)

    # ---- names ----

    def named(self, name: str, arguments: tuple[ast.Argument, ...], env: Env) -> nodes.Node:
        """Elaborate a parameter, a binding, a `where` function or a mask by name."""
        local = env.names.get(name)
        if isinstance(local, Given):
            return self.moved(local)
        if isinstance(local, Later):
            assert not isinstance(local.value, ast.Every), "checked: a segment is no value"
            if isinstance(local.value, ast.BindFunction):
                return self.value(local.value.value, _function_env(local, arguments, env))
            if local not in self.known:
                self.known[local] = self.value(local.value, local.env)
            return self.known[local]
        found = env.scope.find_mask(name)
        assert found is not None, f"checked: {name} is a mask"
        definition, scope = found
        return self.mask(definition.value, self.call_env(definition, scope, arguments, env))

    def moved(self, given: Given) -> nodes.Node:
        """Return a value that was given further out."""
        levels = self.depth - given.depth
        if levels == 0 or isinstance(given.node, nodes.Const | nodes.RowColumn | nodes.Free):
            return given.node
        if isinstance(given.node, nodes.Outside):
            return nodes.Outside(
                levels + given.node.levels, given.node.value, place=given.node.place
            )
        return nodes.Outside(levels, cast("nodes.Number", given.node), place=given.node.place)

    def value(self, value: ast.Expr, env: Env) -> nodes.Node:
        """Elaborate the value of a binding: a number or a mask."""
        match value:
            case ast.Number() | ast.Sign() | ast.Binary() | ast.Attribute():
                return self.number(value, env)
            case ast.Name("q" | "k" | "len" as name) if name not in env.names:
                return self.number(value, env)
            case ast.Name(name) if name != "paths":
                return self.named(name, (), env)
            case ast.Call(name) if name.text in ("abs", "clamp", "min", "max"):
                return self.number(value, env)
            case ast.Call(name, arguments) if name.text in env.names:
                return self.named(name.text, arguments, env)
        return self.mask(value, env)

    def call_env(
        self,
        definition: ast.MaskDef,
        scope: Scope,
        arguments: tuple[ast.Argument, ...],
        env: Env,
    ) -> Env:
        """Return the names of a mask's body: its parameters and bindings."""
        names: dict[str, Local] = {}
        inner = Env(scope, scope.program, names)
        given = given_arguments(definition, arguments)
        for param in definition.params:
            value = given.get(param.name.text, param.default)
            assert value is not None, f"checked: parameter {param.name.text} has a value"
            at = env if param.name.text in given else inner
            if param.type.text in ("tokens", "int"):
                names[param.name.text] = Given(self.number(value, at), self.depth)
            else:
                names[param.name.text] = Later(value, at)
        bind(definition, names, inner)
        return inner

    # ---- numbers ----

    def number(self, value: ast.Expr, env: Env) -> nodes.Number:
        """Elaborate an expression of a number kind."""
        place = env.place(value.span)
        match value:
            case ast.Number(number):
                return nodes.Const(number, place=place)
            case ast.Name(name) if name in env.names:
                return cast("nodes.Number", self.named(name, (), env))
            case ast.Name("len"):
                return nodes.Length(place=place)
            case ast.Name("q" | "k" as side):
                return nodes.Pos(side, place=place)
            case ast.Sign(op, inner):
                return _negated(self.number(inner, env)) if op == "-" else self.number(inner, env)
            case ast.Binary(op, left, right):
                a, b = self.number(left, env), self.number(right, env)
                return nodes.Arithmetic(op, a, b, place=place)
            case ast.Attribute():
                return self.attribute(value, env)
            case ast.Call(name, arguments) if name.text in env.names:
                return cast("nodes.Number", self.named(name.text, arguments, env))
            case ast.Call(name, arguments):
                return _builtin(name.text, [self.number(a.value, env) for a in arguments], place)
        raise AssertionError(f"checked: {type(value).__name__} is no number")

    def attribute(self, value: ast.Attribute, env: Env) -> nodes.Number:
        """Elaborate `row.col`, `S.count`, `q.S`, `q.S.start` and `q.token`."""
        name, inner, place = value.name.text, value.value, env.place(value.span)
        if inner == ast.Name("row") and "row" not in env.names:
            return nodes.RowColumn(name, place=place)
        if isinstance(inner, ast.Name) and is_segment(inner.text, env):
            segment = self.segment(ast.Ident(inner.text, span=inner.span), env)
            return nodes.Count(segment, place=place)
        token = env.scope.tokens.get(name)
        if isinstance(inner, ast.Attribute) and is_instance(inner, env):
            if token is not None and token.segment == inner.name:
                return self.column(token, inner.value, env, place)
            table = self.segment(inner.name, env)
            fact = cast("nodes.Fact", name)
            return nodes.Lookup(table, fact, self.number(inner.value, env), place=place)
        at = self.number(inner, env)
        if is_segment(name, env):
            return nodes.Lookup(self.segment(value.name, env), "number", at, place=place)
        if token is None:
            return nodes.Lookup(_tree(env, place), "path", at, place=place)
        return self.column(token, inner, env, place)

    def column(self, token: ast.Token, at: ast.Expr, env: Env, place: Place) -> nodes.Lookup:
        """Elaborate a column of tokens or instances, read at a position."""
        text = Env(env.scope, env.scope.program)  # where names are those of the statement
        segment = None if token.segment is None else self.segment(token.segment, text)
        column = nodes.TokenColumn(
            token.name.text, token.column.text, token.size, segment, place=place
        )
        return nodes.Lookup(column, "number", self.number(at, env), place=place)

    # ---- segments ----

    def chosen(self, value: ast.Expr, env: Env) -> nodes.Segment:
        """Elaborate a segment: by name, or `first(S, m)`, `last(S, m)`."""
        if isinstance(value, ast.Name):
            return self.segment(ast.Ident(value.text, span=value.span), env)
        assert isinstance(value, ast.Call), "checked: a segment is a name or a call"
        segment = self.chosen(value.arguments[0].value, env)
        place = env.place(value.span)
        count: nodes.Number = nodes.Const(1, place=place)
        if len(value.arguments) > 1:
            count = self.number(value.arguments[1].value, env)
        return nodes.Chosen(value.name.text == "first", segment, count, place=place)

    def segment(self, name: ast.Ident, env: Env) -> nodes.Segment:
        """Elaborate a segment by name, once."""
        local = env.names.get(name.text)
        if isinstance(local, Later):
            assert isinstance(local.value, ast.Every), "checked: the name is a segment"
            if local not in self.known:
                self.known[local] = self.tiles(local.value, local.env)
            return cast("nodes.Segment", self.known[local])
        statement = env.scope.segments[name.text]
        key = id(statement), name.text
        if key not in self.known:
            if isinstance(statement.source, ast.Every):
                self.known[key] = self.tiles(statement.source, Env(env.scope, env.scope.program))
            else:
                place = env.place(name.span)
                self.known[key] = nodes.Laid(statement, name.text, place=place)
        return cast("nodes.Segment", self.known[key])

    def tiles(self, every: ast.Every, env: Env) -> nodes.Segment:
        """Elaborate `every`."""
        size = self.number(every.size, env)
        parent = None if every.parent is None else self.segment(every.parent, env)
        return nodes.Tiles(size, parent, place=env.place(every.size.span))


def _function_env(function: Later, arguments: tuple[ast.Argument, ...], env: Env) -> Env:
    """Return the names of a `where` function's body."""
    assert isinstance(function.value, ast.BindFunction), "only functions have parameters"
    outer, names = function.env, dict(function.env.names)
    for param, argument in zip(function.value.params, arguments, strict=True):
        names[param.text] = Later(argument.value, env)
    return Env(outer.scope, outer.program, names)


def _tree(env: Env, place: Place) -> nodes.Laid:
    """Return the layout with branches of a text."""
    (statement,) = env.scope.trees()
    return nodes.Laid(statement, statement.name.text, place=place)


def _all_of(items: list[nodes.Mask], place: Place) -> nodes.Mask:
    return items[0] if len(items) == 1 else nodes.And(tuple(items), place=place)


def _any_of(items: list[nodes.Mask], place: Place) -> nodes.Mask:
    return items[0] if len(items) == 1 else nodes.Or(tuple(items), place=place)


def _negated(number: nodes.Number) -> nodes.Number:
    minus = nodes.Const(-1, place=number.place)
    if isinstance(number, nodes.Const):
        return nodes.Const(-number.value, place=number.place)
    return nodes.Arithmetic("*", minus, number, place=number.place)


def _builtin(name: str, numbers: list[nodes.Number], place: Place) -> nodes.Number:
    """Return abs, min, max or clamp by the smaller and the larger of two numbers."""

    def join(op: nodes.Operation, a: nodes.Number, b: nodes.Number) -> nodes.Number:
        return nodes.Arithmetic(op, a, b, place=place)

    if name == "abs":
        return join("max", numbers[0], _negated(numbers[0]))
    if name == "clamp":
        return join("min", join("max", numbers[0], numbers[1]), numbers[2])
    return reduce(lambda a, b: join(cast("nodes.Operation", name), a, b), numbers)
