"""Bind a mask without a symbolic form: regions where they exist, comparisons of trees elsewhere."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.core.environment import Closure, Env, Frame, Value
from dcp_dsl.core.instances import Instances
from dcp_dsl.core.layout import Column
from dcp_dsl.core.lowering import Lowering, Place
from dcp_dsl.core.number_lowering import VaryingLength
from dcp_dsl.forms.conversion import to_form
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.tiles import Compared, Inverted, Joined, Known, Predicate, Tiles
from dcp_dsl.symbolic.number_trees import Combined, Grid, LookedUp, NumberTree, Operation, Plain
from dcp_dsl.symbolic.piecewise import Piecewise, TooManyPieces
from dcp_dsl.symbolic.terms import NotSeparable, Term
from dcp_dsl.syntax import ast

MAX_STEPS = 2**22  # of symbolic work on one part
MAX_UNDECIDED = 2**31  # pairs to look at one by one; some seconds
MAX_BLOCKS = 2**9  # per side, when deciding whether a mask is too large


def bind_tiles(
    value: ast.Expr, env: Env, columns: Mapping[str, Column], num_tokens: int, place: Place
) -> Form:
    """Return the mask as a predicate.

    Args:
        value: as for `bind_expression`, like the next three.
        env: where names are looked up.
        columns: of the sample.
        num_tokens: tokens of the sample.
        place: what had no symbolic form, for messages.

    Raises:
        LoweringError: if too many pairs would have to be looked at one by one.
    """
    frame = Frame.of(num_tokens, columns, Budget(MAX_STEPS), is_transposed=False)
    try:
        predicate = _Tiling(Lowering(frame)).mask(value, env)
    except (NotSeparable, TooManyPieces, OverBudget):
        _refuse(place)
    block = max(64, -(-num_tokens // MAX_BLOCKS))
    bounds = np.unique(np.append(np.arange(0, num_tokens, block), num_tokens))
    always, ever = predicate.on(Grid(bounds, bounds))
    if int((ever & ~always).sum()) * block**2 > MAX_UNDECIDED:
        _refuse(place)
    return Tiles(num_tokens, predicate)


def _refuse(place: Place) -> NoReturn:
    place.env.fail(
        "E191", "this falls into too many pieces on this sample", place.span,
        "use a shorter sample, or larger tiles",
    )  # fmt: skip


class _Tiling:
    """Builds the predicate of an expression in one frame."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.frame = lowering.frame
        self.numbers = lowering.numbers

    def mask(self, value: ast.Expr, env: Env) -> Predicate:
        """Return a mask as a predicate: known as a whole, or made of its parts."""
        try:
            found = self.lowering.mask(value, env)
        except (NotSeparable, TooManyPieces):
            return self.parts(value, env)
        return Known(to_form(found, is_transposed=False))

    def parts(self, value: ast.Expr, env: Env) -> Predicate:
        """Return a mask as a tree of its parts."""
        match value:
            case ast.Not(inner):
                return self.inside(Inverted(self.mask(inner, env)))
            case ast.And(items):
                return Joined(True, tuple(self.mask(item, env) for item in items))
            case ast.Or(items):
                return Joined(False, tuple(self.mask(item, env) for item in items))
            case ast.Minus(left, right):
                return Joined(True, (self.mask(left, env), Inverted(self.mask(right, env))))
            case ast.Per():
                return self.per(value, env)
            case ast.Rules(rules):
                return Joined(False, tuple(self.rule(rule, env) for rule in rules))
            case ast.Compare():
                return self.comparison(value, env)
            case ast.In():
                return self.membership(value, env)
            case ast.Name() | ast.Call():
                return self.named_mask(value, env)
        raise AssertionError(f"checked: {type(value).__name__} is no mask")

    def inside(self, predicate: Predicate) -> Predicate:
        """Leave out what lies outside all cells."""
        if self.frame.is_whole:
            return predicate
        everything = Known(to_form(self.frame.everything(), is_transposed=False))
        return Joined(True, (everything, predicate))

    def named_mask(self, value: ast.Name | ast.Call, env: Env) -> Predicate:
        """Return a mask by name."""
        name = value.text if isinstance(value, ast.Name) else value.name.text
        arguments = value.arguments if isinstance(value, ast.Call) else ()
        if name == "same" and arguments:
            return self.same(self.numbers.instances(arguments[0].value, env))
        if name in env.names:
            return self.local_mask(env.names[name], arguments, env)
        found = env.scope.find_mask(name)
        assert found is not None, f"checked: {name} is a mask"
        definition, scope = found
        inner = self.lowering.call_env(definition, scope, arguments, env, self.argument)
        return self.mask(definition.value, inner)

    def local_mask(self, local: Value, arguments: Sequence[ast.Argument], env: Env) -> Predicate:
        """Return a parameter or a binding."""
        assert isinstance(local, Closure), "checked: a number is no mask"
        if isinstance(local.value, ast.BindFunction):
            return self.mask(local.value.value, self.function_env(local, arguments, env))
        assert not isinstance(local.value, ast.Every), "checked: a segment is no mask"
        return self.mask(local.value, local.env)

    def function_env(self, function: Closure, arguments: Sequence[ast.Argument], env: Env) -> Env:
        """Return the environment of a `where` function's body, whose arguments may be trees."""
        assert isinstance(function.value, ast.BindFunction), "only functions have parameters"
        values = [self.argument(a.value, env) for a in arguments]
        names = {p.text: v for p, v in zip(function.value.params, values, strict=True)}
        return Env(function.env.scope, function.env.program, {**function.env.names, **names})

    def argument(self, value: ast.Expr, env: Env) -> Value:
        """Return a number as the value of a parameter."""
        tree = self.tree(value, env)
        return tree.value if isinstance(tree, Plain) else tree

    def same(self, instances: Instances) -> Predicate:
        """Return equality of the numbers of instances, for ids that come in many stretches."""
        own = instances.filled()
        function = own.function(self.frame.num_tokens, own.number)
        of_q, of_k = Plain(Term.of_q(function)), Plain(Term.of_k(function))
        return self.inside(Compared("==", of_q, of_k))

    def rule(self, rule: ast.Rule, env: Env) -> Predicate:
        """Bind a rule of a rule block."""
        subject = self.numbers.segment(rule.subject.text, env, rule.subject.span)
        queries = Known(to_form(self.frame.unary(subject, is_of_k=False), is_transposed=False))
        seen: list[Predicate] = []
        for target in rule.targets:
            if target.name.text != "self":
                alone = ast.Rule(rule.subject, (target,), span=rule.span)
                whole = ast.Rules((alone,), span=rule.span)
                seen.append(Known(to_form(self.lowering.mask(whole, env), is_transposed=False)))
                continue
            near = ast.Target(ast.Ident("all"), target.is_causal, target.within, span=target.span)
            alone = ast.Rule(rule.subject, (near,), span=rule.span)
            region = self.lowering.mask(ast.Rules((alone,), span=rule.span), env)
            distance = Known(to_form(region, is_transposed=False))
            seen.append(Joined(True, (self.same(subject), distance)))
        return Joined(True, (queries, Joined(False, tuple(seen))))

    def per(self, value: ast.Per, env: Env) -> Predicate:
        """Return a mask inside every instance of a segment."""
        cells = self.numbers.segment(value.segment.text, env, value.segment.span).filled()
        return self.per_cells(cells, value.value, env)

    def per_cells(self, cells: Instances, value: ast.Expr, env: Env) -> Predicate:
        """Return a mask inside each cell."""
        inner = _Tiling(Lowering(self.frame.inside(cells)))
        try:
            return inner.inside(inner.mask(value, env))
        except VaryingLength:  # a size depends on the instance: one by one
            which = range(len(cells))
            alone = [cells.select(np.arange(len(cells)) == i) for i in which]
            return Joined(False, tuple(self.per_cells(cell, value, env) for cell in alone))

    def comparison(self, value: ast.Compare, env: Env) -> Predicate:
        """Return a chain of comparisons."""
        trees = [self.tree(operand, env) for operand in value.operands]
        pairs = zip(value.ops, trees, trees[1:], strict=False)
        items = tuple(self.inside(Compared(op, a, b)) for op, a, b in pairs)
        return items[0] if len(items) == 1 else Joined(True, items)

    def membership(self, value: ast.In, env: Env) -> Predicate:
        """Return `in` and `not in`."""
        instances = self.numbers.instances(value.container, env).filled()
        zeros = np.zeros(len(instances), np.int64)
        function = instances.function(self.frame.num_tokens, zeros)
        inside = Compared("==", self.look_up(function, value.item, env), Plain(0))
        return self.inside(Inverted(inside) if value.negated else inside)

    # ---- numbers ----

    def tree(self, value: ast.Expr, env: Env) -> NumberTree:
        """Return a number: known as a whole, or made of its parts."""
        try:
            return Plain(self.numbers.number(value, env))
        except (NotSeparable, TooManyPieces):
            return self.number_parts(value, env)

    def number_parts(self, value: ast.Expr, env: Env) -> NumberTree:
        """Return a number as a tree of its parts."""
        match value:
            case ast.Name(text) if text in env.names:
                local = env.names[text]
                if not isinstance(local, Closure):
                    assert not isinstance(local, bool | int | Term), "those are plain"
                    return local if isinstance(local, NumberTree) else Plain(local)
                assert not isinstance(local.value, ast.Every | ast.BindFunction), "checked"
                return self.tree(local.value, local.env)
            case ast.Sign(op, inner):
                sign = Plain(-1 if op == "-" else 1)
                return Combined("*", sign, self.tree(inner, env))
            case ast.Binary(op, left, right):
                return Combined(op, self.tree(left, env), self.tree(right, env))
            case ast.Call(name, arguments) if name.text in env.names:
                local = env.names[name.text]
                assert isinstance(local, Closure), "checked: only functions are called"
                assert isinstance(local.value, ast.BindFunction), "checked: a function"
                return self.tree(local.value.value, self.function_env(local, arguments, env))
            case ast.Call(name, arguments):
                return self.builtin(name.text, [self.tree(a.value, env) for a in arguments])
            case ast.Attribute():
                return self.attribute(value, env)
        raise AssertionError(f"checked: {type(value).__name__} is no number")

    def builtin(self, name: str, numbers: list[NumberTree]) -> NumberTree:
        """Return abs, min, max or clamp."""
        if name == "abs":
            return Combined("max", numbers[0], Combined("*", Plain(-1), numbers[0]))
        if name == "clamp":
            return Combined("min", Combined("max", numbers[0], numbers[1]), numbers[2])
        op: Operation = "max" if name == "max" else "min"
        result = numbers[0]
        for number in numbers[1:]:
            result = Combined(op, result, number)
        return result

    def attribute(self, value: ast.Attribute, env: Env) -> NumberTree:
        """Return the number that an attribute reads of a token."""
        function, position = self.numbers.function_of(value, env)
        return self.look_up(function, position, env)

    def look_up(self, function: Piecewise, position: ast.Expr, env: Env) -> NumberTree:
        """Read a function of the token that a tree points at."""
        at = self.tree(position, env)
        if self.frame.is_whole:
            return LookedUp(function, at)
        cells, n = self.frame.cells, self.frame.num_tokens
        start, size = cells.function(n, cells.start), cells.function(n, cells.end - cells.start)
        return LookedUp(function, at, start, size)
