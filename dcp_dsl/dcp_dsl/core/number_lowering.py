"""Evaluate the numbers of a mask on one sample: functions of q and k."""

from dataclasses import dataclass, field

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.core.environment import Closure, Env
from dcp_dsl.core.instances import Instances
from dcp_dsl.core.segment_lowering import SegmentLowering, per_token_values
from dcp_dsl.errors import DatasetError
from dcp_dsl.symbolic.number_trees import NumberTree
from dcp_dsl.symbolic.piecewise import MAX_VALUE, Piecewise, ValueTooLarge
from dcp_dsl.symbolic.terms import (
    Cyclic,
    Extreme,
    NotSeparable,
    Number,
    Quotient,
    Term,
    add,
    extreme,
    scale,
)  # fmt: skip
from dcp_dsl.syntax import ast

STEPS_PER_NODE = 250


class VaryingLength(Exception):
    """A constant depends on `len`, which differs from instance to instance inside `per`."""


@dataclass(frozen=True, slots=True, eq=False)
class NumberLowering(SegmentLowering):
    """Evaluates numbers and segments in one frame."""

    positions: dict[str, Term] = field(default_factory=dict)  # q and k themselves

    def position_of(self, name: str) -> Term:
        """Return `q` or `k`, counted from the start of its cell."""
        if name not in self.positions:
            cells = self.frame.cells
            function = cells.function(self.n, np.zeros(len(cells), np.int64), slope=1)
            self.positions[name] = Term.of_q(function) if name == "q" else Term.of_k(function)
        return self.positions[name]

    def length(self) -> Number:
        """Return `len`: of the sample, or of the instance."""
        cells = self.frame.cells
        sizes = cells.end - cells.start
        if (sizes == sizes[0]).all():
            return int(sizes[0])
        return Term.of_q(cells.function(self.n, sizes))

    def number(self, value: ast.Expr, env: Env) -> Number:
        """Evaluate an expression of kind number."""
        result = self._number(value, env)
        self.frame.budget.spend(STEPS_PER_NODE + _num_pieces(result))
        return result

    def _number(self, value: ast.Expr, env: Env) -> Number:
        match value:
            case ast.Number(number):
                return number
            case ast.Name():
                return self.named_number(value, env)
            case ast.Sign(op, inner):
                return scale(self.number(inner, env), -1 if op == "-" else 1)
            case ast.Binary():
                return self.arithmetic(value, env)
            case ast.Attribute():
                return self.attribute(value, env)
            case ast.Call():
                return self.function(value, env)
        raise AssertionError(f"checked: {type(value).__name__} is no number")

    def named_number(self, value: ast.Name, env: Env) -> Number:
        """Evaluate a name: a parameter, a binding, `q`, `k` or `len`."""
        if value.text in env.names:
            local = env.names[value.text]
            if isinstance(local, Closure):
                assert not isinstance(local.value, ast.Every | ast.BindFunction), "checked"
                return self.number(local.value, local.env)
            assert not isinstance(local, bool), "checked: a bool is no number"
            if isinstance(local, NumberTree):
                raise NotSeparable
            return local
        if value.text == "len":
            return self.length()
        assert value.text in ("q", "k"), f"checked: {value.text} is a number"
        return self.position_of(value.text)

    def arithmetic(self, value: ast.Binary, env: Env) -> Number:
        """Evaluate ``left op right``."""
        left, right = self.number(value.left, env), self.number(value.right, env)
        match value.op:
            case "+":
                return _bounded(add(left, right, self.n))
            case "-":
                return _bounded(add(left, scale(right, -1), self.n))
            case "*":
                if isinstance(right, int):
                    return _bounded(scale(left, right))
                if isinstance(left, int):
                    return _bounded(scale(right, left))
                raise NotSeparable
            case "//" | "%":
                return self.divide(value, left, right, env)
        raise AssertionError(f"unknown operator {value.op}")

    def divide(self, value: ast.Binary, left: Number, right: Number, env: Env) -> Number:
        """Evaluate ``left // right`` or ``left % right``; the divisor is a positive constant."""
        if not isinstance(right, int):
            raise NotSeparable
        if right < 1:
            env.fail(
                "E111",
                f"this divides by {right}",
                value.right.span,
                "the divisor is at least 1",
            )
        match left:
            case int():
                return left // right if value.op == "//" else left % right
            case Extreme():
                raise NotSeparable
            case Term():
                cells = self.frame.cells
                return left.divide(value.op, right, (cells.start, cells.end))
            case Cyclic():
                return left.divide(value.op, right)
            case Quotient():
                return left.floor_divide(right) if value.op == "//" else left.modulo(right)

    def constant(self, value: ast.Expr, env: Env) -> int:
        """Evaluate a number that depends on no position."""
        number = self.number(value, env)
        if not isinstance(number, int):
            raise VaryingLength
        return number

    def attribute(self, value: ast.Attribute, env: Env) -> Number:
        """Evaluate `row.col`, `S.count`, `q.S`, `q.S.start` and `q.token`."""
        name = value.name.text
        inner = value.value
        if isinstance(inner, ast.Name) and inner.text == "row" and "row" not in env.names:
            return self.row_column(name)
        if name == "count" and isinstance(inner, ast.Name) and inner.text not in ("q", "k"):
            return self.count(inner, env)
        return self.at_position(*self.function_of(value, env), env)

    def function_of(self, value: ast.Attribute, env: Env) -> tuple[Piecewise, ast.Expr]:
        """Return the function of a token that an attribute reads, and the position read."""
        name, inner = value.name.text, value.value
        if isinstance(inner, ast.Attribute) and self.is_instance(inner, env):
            instances = self.segment(inner.name.text, env, inner.name.span)
            return self.place(instances, name), inner.value
        if name not in env.names and name not in env.scope.segments:
            return self.token_column(name, env), inner
        instances = self.segment(name, env, value.name.span)
        return instances.function(self.n, instances.number), inner

    def is_instance(self, value: ast.Attribute, env: Env) -> bool:
        """Say whether an attribute is the instance of a token, as `q.S` is and `q.S.end` is not."""
        name, inner = value.name.text, value.value
        if isinstance(inner, ast.Attribute) and self.is_instance(inner, env):
            return False
        return name in env.names or name in env.scope.segments

    def at_position(self, function: Piecewise, position: ast.Expr, env: Env) -> Term:
        """Evaluate a function of the token that an expression points at."""
        number = self.number(position, env)
        if isinstance(number, int):
            number = Term.constant(self.n, number)
        if not isinstance(number, Term):
            raise NotSeparable
        for name in ("q", "k"):
            if number is self.positions.get(name):
                return Term.of_q(function) if name == "q" else Term.of_k(function)
        where, is_of_k = number.single()
        at = function.compose(self.absolute(where))
        return Term.of_k(at) if is_of_k else Term.of_q(at)

    def absolute(self, where: Piecewise) -> Piecewise:
        """Turn positions counted from the start of a cell into tokens of the sample."""
        if self.frame.is_whole:
            return where
        cells = self.frame.cells
        zero = np.zeros(len(cells), np.int64)
        # Inside its cell only: where >= 0 and where < size.
        sizes = cells.function(self.n, cells.end - cells.start)
        where = where + cells.function(self.n, zero)
        for side, op in ((where, ">="), (where + sizes.scale(-1), "<")):
            where = where + _defined_on(*side.solve(op), self.n)
        return where + cells.function(self.n, cells.start)

    def place(self, instances: Instances, name: str) -> Piecewise:
        """Return `.start`, `.end`, `.len`, `.pos` or `.count` of the instance of each token."""
        if name == "count":
            return instances.function(self.n, instances.total)
        if instances.is_split:
            raise DatasetError(
                f"`.{name}` needs instances of one stretch each, but an id comes back after "
                f"others; use stretches of tokens (`flags`, `spans`, or a name behind `as`)"
            )
        own = instances.filled()
        if not self.frame.is_whole and name in ("start", "end"):
            cells = self.frame.cells
            base = cells.start[np.searchsorted(cells.end, own.start, side="right")]
        else:
            base = np.zeros(len(own), np.int64)
        values = {
            "start": own.start - base,
            "end": own.end - base,
            "len": own.end - own.start,
            "pos": base,
        }[name]
        return own.function(self.n, values, slope=1 if name == "pos" else 0)

    def count(self, name: ast.Name, env: Env) -> Number:
        """Evaluate `S.count`: instances in the sample, inside `per` in the instance."""
        instances = self.segment(name.text, env, name.span)
        if instances.is_named:
            return int(instances.total.max(initial=0))
        cells = self.frame.cells
        counts = np.bincount(instances.cells, minlength=len(cells))
        if (counts == counts[0]).all():
            return int(counts[0])
        return Term.of_q(cells.function(self.n, counts))

    def row_column(self, name: str) -> int:
        """Evaluate `row.name`."""
        if name not in self.frame.columns:
            raise DatasetError(
                f"the mask reads `row.{name}`, but the sample has no column `{name}`"
            )
        value = self.frame.columns[name]
        if not isinstance(value, int):
            raise DatasetError(f"`row.{name}`: expected one integer, got {str(value)[:60]}")
        if abs(value) > MAX_VALUE:
            raise DatasetError(f"`row.{name}`: values beyond {MAX_VALUE:_} are not supported")
        return value

    def token_column(self, name: str, env: Env) -> Piecewise:
        """Evaluate the value of a token column at each position."""
        column = env.scope.tokens[name].column.text
        where = f"token column `{column}`"
        if column not in self.frame.columns:
            raise DatasetError(f"{where}: the sample does not have it")
        if column not in self.frame.tokens:
            values = per_token_values(self.frame.columns[column], self.n, where)
            self.frame.tokens[column] = Piecewise.from_tokens(values)
        return self.frame.tokens[column]

    def function(self, value: ast.Call, env: Env) -> Number:
        """Evaluate abs, min, max, clamp or a `where` function."""
        name = value.name.text
        if name in env.names:
            local = env.names[name]
            assert isinstance(local, Closure), "checked: only functions are called"
            assert isinstance(local.value, ast.BindFunction), "checked: only functions are called"
            return self.number(local.value.value, self.function_env(local, value.arguments, env))
        numbers = [self.number(a.value, env) for a in value.arguments]
        if name == "abs":
            return extreme(numbers[0], scale(numbers[0], -1), is_max=True, num_tokens=self.n)
        if name == "clamp":
            raised = extreme(numbers[0], numbers[1], is_max=True, num_tokens=self.n)
            return extreme(raised, numbers[2], is_max=False, num_tokens=self.n)
        result = numbers[0]
        for number in numbers[1:]:
            result = extreme(result, number, is_max=name == "max", num_tokens=self.n)
        return result

    def function_env(self, function: Closure, arguments: tuple[ast.Argument, ...], env: Env) -> Env:
        """Return the environment of a `where` function's body: its parameters."""
        assert isinstance(function.value, ast.BindFunction), "only functions have parameters"
        values = [self.number(a.value, env) for a in arguments]
        params = [p.text for p in function.value.params]
        names = {**function.env.names, **dict(zip(params, values, strict=True))}
        return Env(function.env.scope, function.env.program, names)


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and abs(value) > MAX_VALUE:
        raise ValueTooLarge
    return value


def _defined_on(starts: Ints, ends: Ints, num_tokens: int) -> Piecewise:
    """Return 0 on ranges of positions, undefined elsewhere."""
    return Instances.of(starts, ends).function(num_tokens, np.zeros_like(starts))


def _num_pieces(value: Number) -> int:
    """Count the pieces of the functions in a number."""
    if not isinstance(value, Term | Extreme):
        return 0
    terms = value.terms if isinstance(value, Extreme) else (value,)
    return sum(len(term.on_q.starts) + len(term.on_k.starts) for term in terms)
