"""Evaluate a mask on one sample, symbolically: expressions become regions."""

from collections.abc import Mapping
from functools import reduce

import numpy as np

from dcp_dsl import ast
from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.environment import Closure, Env, Frame, Value
from dcp_dsl.layout import Column, Instances
from dcp_dsl.number_lowering import NumberLowering
from dcp_dsl.piecewise import MAX_VALUE, Piecewise, TooManyPieces, ValueTooLarge
from dcp_dsl.region import Region
from dcp_dsl.scope import Scope
from dcp_dsl.terms import NotSeparable, Term, compare_numbers

MAX_STEPS = 2**23  # slabs and nodes; one or two seconds
STEPS_PER_NODE = 250


def lower(value: ast.Expr, env: Env, columns: Mapping[str, Column], num_tokens: int) -> Region:
    """Give the pairs that a mask expression allows on a sample.

    Args:
        value: expression of kind mask, already checked.
        env: where its names are looked up.
        columns: of the sample.
        num_tokens: tokens of the sample.

    Raises:
        LoweringError: for what is not supported yet, and for constants out of range.
        DatasetError: if the sample does not fit a layout.
    """
    if num_tokens == 0:
        return Region.empty(0)
    return _Lowering(Frame(num_tokens, columns, Budget(MAX_STEPS))).mask(value, env)


class _Lowering:
    """Evaluates expressions in one frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.n = frame.num_tokens
        self.numbers = NumberLowering(frame)
        # Arguments and bindings already evaluated, by identity; kept alive with their closures.
        self.masks: dict[int, tuple[Closure, Region]] = {}

    def mask(self, value: ast.Expr, env: Env) -> Region:
        """Evaluate an expression of kind mask."""
        try:
            self.frame.budget.spend(STEPS_PER_NODE)
            region = self._mask(value, env)
            self.frame.budget.spend(len(region.q_start))
        except (TooManyPieces, OverBudget):
            env.fail(
                "E191", "this falls into too many pieces on this sample", value.span,
                "use a shorter sample, or larger tiles",
            )  # fmt: skip
        except ValueTooLarge:
            env.fail(
                "E192", f"a number here grows beyond {MAX_VALUE:_}", value.span,
                "lengths are in tokens; check the factors",
            )  # fmt: skip
        except NotSeparable:
            env.refuse(
                "a number that mixes q and k other than by adding", value.span,
                "compare sums such as `q - k` or `q // 16 - k // 16`",
            )  # fmt: skip
        return region

    def _mask(self, value: ast.Expr, env: Env) -> Region:
        match value:
            case ast.Not(inner):
                return ~self.mask(inner, env)
            case ast.And(items):
                return reduce(Region.__and__, [self.mask(item, env) for item in items])
            case ast.Or(items):
                return reduce(Region.__or__, [self.mask(item, env) for item in items])
            case ast.Minus(left, right):
                return self.mask(left, env) - self.mask(right, env)
            case ast.Per():
                return self.per(value, env)
            case ast.Rules(rules):
                return reduce(Region.__or__, [self.rule(rule, env) for rule in rules])
        return self.atom(value, env)

    def atom(self, value: ast.Expr, env: Env) -> Region:
        match value:
            case ast.Bool(flag):
                return Region.full(self.n) if flag else Region.empty(self.n)
            case ast.Name() | ast.Call():
                return self.named_mask(value, env)
            case ast.Compare():
                return self.comparison(value, env)
            case ast.In():
                return self.membership(value, env)
        raise AssertionError(f"checked: {type(value).__name__} is no mask")

    def named_mask(self, value: ast.Name | ast.Call, env: Env) -> Region:
        """Evaluate a mask by name: a parameter, a binding, `same`, or a definition."""
        name = value.text if isinstance(value, ast.Name) else value.name.text
        arguments = value.arguments if isinstance(value, ast.Call) else ()
        if name == "same" and isinstance(value, ast.Call):
            filled = self.numbers.instances(arguments[0].value, env).filled()
            return Region.rectangles(self.n, filled.start, filled.end, filled.start, filled.end)
        if name in env.names:
            return self.local_mask(env.names[name], arguments, env)
        found = env.scope.find_mask(name)
        if found is None:
            env.refuse(f"`{name}`, which is imported", value.span, "copy it into the file")
        definition, scope = found
        return self.mask(definition.value, self.call_env(definition, scope, arguments, env))

    def local_mask(self, local: Value, arguments: tuple[ast.Argument, ...], env: Env) -> Region:
        if isinstance(local, bool):
            return Region.full(self.n) if local else Region.empty(self.n)
        assert isinstance(local, Closure), "checked: a number is no mask"
        if isinstance(local.value, ast.BindFunction):
            return self.mask(local.value.value, self.numbers.function_env(local, arguments, env))
        assert not isinstance(local.value, ast.Every), "checked: a segment is no mask"
        if id(local) not in self.masks:  # once per frame: masks that double their argument nest
            self.masks[id(local)] = local, self.mask(local.value, local.env)
        return self.masks[id(local)][1]

    def call_env(
        self, definition: ast.MaskDef, scope: Scope, arguments: tuple[ast.Argument, ...], env: Env
    ) -> Env:
        """Give the environment of a mask's body: its parameters and bindings."""
        names: dict[str, Value] = {}
        inner = Env(scope, scope.program, names)
        given = {a.name.text: a.value for a in arguments if a.name is not None}
        in_order = [a.value for a in arguments if a.name is None]
        for index, param in enumerate(definition.params):
            name = param.name.text
            if index < len(in_order):
                names[name] = self.argument(in_order[index], param, env)
            elif name in given:
                names[name] = self.argument(given[name], param, env)
            else:
                assert param.default is not None, f"checked: parameter {name} has a value"
                names[name] = self.argument(param.default, param, inner)
        for binding in definition.bindings:
            match binding:
                case ast.BindSegment(name=ident, source=source):
                    names[ident.text] = Closure(source, inner)
                case ast.BindValue(name=ident, value=bound):
                    names[ident.text] = Closure(bound, inner)
                case ast.BindFunction(name=ident):
                    names[ident.text] = Closure(binding, inner)
        return inner

    def argument(self, value: ast.Expr, param: ast.Param, env: Env) -> Value:
        if param.type.text in ("mask", "bool"):
            return Closure(value, env)
        return (
            self.numbers.number(value, env)
            if param.type.text == "pos"
            else self.numbers.constant(value, env)
        )

    def comparison(self, value: ast.Compare, env: Env) -> Region:
        numbers = [self.numbers.number(operand, env) for operand in value.operands]
        result: Region | None = None
        for a, op, b in zip(numbers, value.ops, numbers[1:], strict=False):
            region = compare_numbers(a, b, op, self.n)
            result = region if result is None else result & region
        assert result is not None, "a comparison has an operator"
        return result

    def membership(self, value: ast.In, env: Env) -> Region:
        on_q, on_k = self.numbers.position(value.item, env)
        inside = self.unary(self.numbers.instances(value.container, env), on_k)
        assert on_q != on_k, "a position is one of q or of k"
        return ~inside if value.negated else inside

    def unary(self, instances: Instances, is_of_k: bool) -> Region:
        """Give the rows (or columns) of the tokens inside instances."""
        filled = instances.filled()
        whole = np.zeros_like(filled.start), np.full_like(filled.start, self.n)
        own = filled.start, filled.end
        return Region.rectangles(self.n, *(*whole, *own) if is_of_k else (*own, *whole))

    def per(self, value: ast.Per, env: Env) -> Region:
        """Evaluate a mask inside every instance of a segment, in its own coordinates."""
        filled = self.numbers.segment(value.segment.text, env, value.segment.span).filled()
        sizes = filled.end - filled.start
        parts = [(filled.start[:0],) * 6]
        for size in np.unique(sizes).tolist():
            frame = Frame(size, self.frame.columns, self.frame.budget, is_whole=False)
            columns = _Lowering(frame).mask(value.value, env).columns()
            starts = filled.start[sizes == size]
            self.frame.budget.spend(len(starts) * len(columns[0]))
            moved = [np.add.outer(starts, c).ravel() for c in columns[:4]]
            parts.append((*moved, *(np.tile(c, len(starts)) for c in columns[4:])))
        return Region.of(self.n, tuple(map(np.concatenate, zip(*parts, strict=True))))

    def rule(self, rule: ast.Rule, env: Env) -> Region:
        result = Region.empty(self.n)
        subject = self.numbers.segment(rule.subject.text, env, rule.subject.span)
        for target in rule.targets:
            match target.name.text:
                case "all":
                    seen = Region.full(self.n)
                case "self":
                    own = subject.filled()
                    seen = Region.rectangles(self.n, own.start, own.end, own.start, own.end)
                case name:
                    seen = self.unary(self.numbers.segment(name, env, target.name.span), True)
            if target.is_causal:
                seen = seen & self.near(env, 0, None)
            if target.within is not None:
                width = self.numbers.constant(target.within, env)
                seen = seen & self.near(env, 1 - width, width - 1)
            result = result | seen
        return result & self.unary(subject, False)

    def near(self, env: Env, low: int, high: int | None) -> Region:
        """Give the pairs with ``low <= q - k <= high``."""
        distance = Term(Piecewise.position(self.n), Piecewise.position(self.n).scale(-1))
        result = compare_numbers(distance, low, ">=", self.n)
        return result if high is None else result & compare_numbers(distance, high, "<=", self.n)
