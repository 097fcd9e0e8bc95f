"""Evaluate the numbers and segments of a mask on one sample: functions of q and k, instances."""

from dataclasses import dataclass

import numpy as np

from dcp_dsl import ast
from dcp_dsl.ast import Span
from dcp_dsl.environment import Closure, Env, Frame
from dcp_dsl.errors import DatasetError
from dcp_dsl.layout import Instances, bind_layout, tile
from dcp_dsl.piecewise import MAX_VALUE, Piecewise, ValueTooLarge
from dcp_dsl.terms import Extreme, NotSeparable, Number, Term, add, extreme, scale

STEPS_PER_NODE = 250


@dataclass(frozen=True, slots=True, eq=False)
class NumberLowering:
    """Evaluates numbers and segments in one frame."""

    frame: Frame

    @property
    def n(self) -> int:
        """Tokens of the frame."""
        return self.frame.num_tokens

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
            if _num_tokens(local) not in (None, self.n):
                what = f"`{value.text}`, a position from outside, inside `per`"
                env.refuse(what, value.span, "")
            return local
        match value.text:
            case "q":
                return Term.of_q(Piecewise.position(self.n))
            case "k":
                return Term.of_k(Piecewise.position(self.n))
            case "len":
                return self.n
        raise AssertionError(f"checked: {value.text} is a number")

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
                env.refuse("the product of two positions", value.span, "")
            case "//" | "%":
                return self.divide(value, left, right, env)
        raise AssertionError(f"unknown operator {value.op}")

    def divide(self, value: ast.Binary, left: Number, right: Number, env: Env) -> Number:
        """Evaluate ``left // right`` or ``left % right``; the divisor is a positive constant."""
        if not isinstance(right, int):
            env.refuse("dividing by a position", value.right.span, "")
        if right < 1:
            env.fail(
                "E111",
                f"this divides by {right}",
                value.right.span,
                "the divisor is at least 1",
            )
        if isinstance(left, int):
            return left // right if value.op == "//" else left % right
        if isinstance(left, Extreme):
            raise NotSeparable
        return left.map(value.op, right)

    def constant(self, value: ast.Expr, env: Env) -> int:
        """Evaluate a number that depends on no position."""
        number = self.number(value, env)
        if not isinstance(number, int):
            env.refuse("a number that depends on the position", value.span, "")
        return number

    def attribute(self, value: ast.Attribute, env: Env) -> Number:
        """Evaluate `row.col`, `S.count`, `q.S`, `q.S.start` and `q.token`."""
        name = value.name.text
        inner = value.value
        if isinstance(inner, ast.Name) and inner.text == "row" and "row" not in env.names:
            return self.row_column(name)
        if isinstance(inner, ast.Attribute):
            instances = self.segment(inner.name.text, env, inner.name.span)
            on_q, _ = self.position(inner.value, env)
            return self.place(instances, name, on_q)
        if name == "count" and isinstance(inner, ast.Name) and inner.text not in ("q", "k"):
            return self.count(inner, env)
        on_q, _ = self.position(inner, env)
        if name not in env.names and name not in env.scope.segments:
            function = self.token_column(name, env, value.span)
        else:
            instances = self.segment(name, env, value.name.span)
            function = instances.function(self.n, instances.number)
        return Term.of_q(function) if on_q else Term.of_k(function)

    def place(self, instances: Instances, name: str, on_q: bool) -> Number:
        """Evaluate `.start`, `.end`, `.len` or `.pos` of the instance a token lies in."""
        values = {
            "start": instances.start,
            "end": instances.end,
            "len": instances.end - instances.start,
            "pos": np.zeros_like(instances.start),
        }[name]
        function = instances.function(self.n, values, slope=1 if name == "pos" else 0)
        return Term.of_q(function) if on_q else Term.of_k(function)

    def count(self, name: ast.Name, env: Env) -> int:
        """Evaluate `S.count`."""
        instances = self.segment(name.text, env, name.span)
        if len(instances.total) and int(instances.total[0]) != len(instances.total):
            env.refuse(f"`.count` of `{name.text}`, which is nested", name.span, "")
        return len(instances.total)

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

    def token_column(self, name: str, env: Env, span: Span) -> Piecewise:
        """Evaluate the value of a token column at each position."""
        if not self.frame.is_whole:
            env.refuse(f"the token column `{name}` inside `per`", span, "")
        column = env.scope.tokens[name].column.text
        values = np.asarray(self.frame.columns.get(column, ()))
        if values.shape == (self.n,) and values.dtype.kind not in "iu":  # integers beyond int64
            raise DatasetError(
                f"token column `{column}`: values beyond {MAX_VALUE:_} are not supported"
            )
        if values.shape != (self.n,):
            raise DatasetError(
                f"token column `{column}`: expected {self.n} integers, one per token, got an "
                f"array of "
                f"shape {values.shape}"
            )
        if values.max() > MAX_VALUE or values.min() < -MAX_VALUE:
            raise DatasetError(
                f"token column `{column}`: values beyond {MAX_VALUE:_} are not supported"
            )
        return Piecewise.from_tokens(values.astype(np.int64))

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
        """Give the environment of a `where` function's body: its parameters."""
        assert isinstance(function.value, ast.BindFunction), "only functions have parameters"
        values = [self.number(a.value, env) for a in arguments]
        params = [p.text for p in function.value.params]
        names = {**function.env.names, **dict(zip(params, values, strict=True))}
        return Env(function.env.scope, function.env.program, names)

    def position(self, value: ast.Expr, env: Env) -> tuple[bool, bool]:
        """Tell whether an expression is q itself or k itself."""
        number = self.number(value, env)
        if isinstance(number, Term):
            for function, other, answer in (
                (number.on_q, number.on_k, (True, False)),
                (number.on_k, number.on_q, (False, True)),
            ):
                is_zero = other.is_constant and other.values[0] == 0
                if is_zero and len(function.starts) == 1 and function.slopes[0] == 1:
                    if function.values[0] == 0:
                        return answer
                    break
        env.refuse("`in` for other positions than `q` and `k`", value.span, "")

    # ---- segments ----

    def instances(self, value: ast.Expr, env: Env) -> Instances:
        """Evaluate a segment: by name, or `first(S, m)`, `last(S, m)`."""
        if isinstance(value, ast.Name):
            return self.segment(value.text, env, value.span)
        assert isinstance(value, ast.Call), "checked: a segment is a name or a call"
        instances = self.instances(value.arguments[0].value, env)
        how_many = 1 if len(value.arguments) < 2 else self.constant(value.arguments[1].value, env)
        if value.name.text == "first":
            return instances.select(instances.number < how_many)
        return instances.select(instances.number >= instances.total - how_many)

    def segment(self, name: str, env: Env, span: Span) -> Instances:
        """Give the instances of a segment by name."""
        local = env.names.get(name)
        if isinstance(local, Closure):
            assert isinstance(local.value, ast.Every), "checked: the name is a segment"
            return self.tiles(local.value, local.env)
        statement = env.scope.segments[name]
        match statement.source:
            case ast.Every() as every:
                return self.tiles(every, Env(env.scope, env.scope.program))
            case ast.Columns(kind=kind):
                env.refuse(f"a segment from `{kind.text}(...)`", span, "")
            case ast.Layout() as layout:
                if not self.frame.is_whole:
                    env.refuse(
                        f"the layout of `{name}` inside `per`", span,
                        "inside `per`, use positions and `every`",
                    )  # fmt: skip
                key = (id(env.scope), statement.name.text)
                if key not in self.frame.layouts:
                    self.frame.layouts[key] = bind_layout(
                        statement, layout, self.frame.columns, self.n
                    )
                return self.frame.layouts[key][name]

    def tiles(self, every: ast.Every, env: Env) -> Instances:
        """Give the tiles of an `every`."""
        size = self.constant(every.size, env)
        if size < 1:
            env.fail(
                "E111", f"`every {size}` makes no tiles", every.size.span,
                "the size of a tile is at least 1 token",
            )  # fmt: skip
        if every.parent is None:
            whole = Instances.of(np.array([0]), np.array([self.n]))
            return tile(size, whole)
        return tile(size, self.segment(every.parent.text, env, every.parent.span))


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and abs(value) > MAX_VALUE:
        raise ValueTooLarge
    return value


def _num_tokens(value: Number) -> int | None:
    """Give the size of the frame that a number was evaluated in, None for constants."""
    if isinstance(value, int):
        return None
    term = value.terms[0] if isinstance(value, Extreme) else value
    return term.on_q.num_tokens


def _num_pieces(value: Number) -> int:
    """Give how many pieces the functions in a number have."""
    if isinstance(value, int):
        return 0
    terms = value.terms if isinstance(value, Extreme) else (value,)
    return sum(len(term.on_q.starts) + len(term.on_k.starts) for term in terms)
