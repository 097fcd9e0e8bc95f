"""Evaluate the syntax tree of a mask on one sample, symbolically: expressions become regions.

Names are looked up in three steps: parameters and `where` bindings, then the text, then the
standard library. Bindings are evaluated where they are used, in the coordinates of that place,
which is what `per` needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import NoReturn, TypeAlias

import numpy as np

from dcp_dsl import ast
from dcp_dsl.ast import Program, Span
from dcp_dsl.layout import Column, Instances, bind_layout, tile
from dcp_dsl.piecewise import MAX_VALUE, Piecewise, ValueTooLarge
from dcp_dsl.region import Region, TooManyPieces
from dcp_dsl.scope import Scope
from dcp_dsl.terms import (
    Extreme,
    NotSeparable,
    Number,
    Term,
    add,
    compare_numbers,
    extreme,
    scale,
)  # fmt: skip


class LoweringError(Exception):
    """A mask that cannot be bound: not supported yet, or a constant out of range."""

    def __init__(
        self, code: str, message: str, program: Program, span: Span, hint: str = ""
    ) -> None:
        self.code, self.message, self.program = code, message, program
        self.span, self.hint = span, hint
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Closure:
    """An expression with the environment it is read in: an argument or a `where` binding."""

    value: "ast.Expr | ast.Every | ast.BindFunction"
    env: "Env"


Value: TypeAlias = Number | bool | Closure


@dataclass(frozen=True, slots=True, eq=False)
class Env:
    """What names mean at one place.

    Attributes:
        scope: definitions.
        program: the text that spans point into.
        names: parameters and bindings.
    """

    scope: Scope
    program: Program
    names: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The coordinates an expression is evaluated in: a sample, or one instance inside `per`.

    Attributes:
        num_tokens: tokens, at least 1.
        columns: of the sample.
        is_whole: False inside `per`, where layouts and token columns are not available yet.
        layouts: instances already bound, by text and statement.
    """

    num_tokens: int
    columns: Mapping[str, Column]
    is_whole: bool = True
    layouts: dict[tuple[int, str], dict[str, Instances]] = field(default_factory=dict)


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
    return _Lowering(Frame(num_tokens, columns)).mask(value, env)


class _Lowering:
    """Evaluates expressions in one frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.n = frame.num_tokens
        # Arguments and bindings already evaluated, by identity; kept alive with their closures.
        self.masks: dict[int, tuple[Closure, Region]] = {}

    # ---- masks ----

    def mask(self, value: ast.Expr, env: Env) -> Region:
        """Evaluate an expression of kind mask."""
        try:
            return self._mask(value, env)
        except TooManyPieces:
            self.fail(
                "E191", "this falls into too many pieces on this sample", env, value.span,
                "use a shorter sample, or larger tiles",
            )  # fmt: skip
        except ValueTooLarge:
            self.fail(
                "E192", f"a number here grows beyond {MAX_VALUE:_}", env, value.span,
                "lengths are in tokens; check the factors",
            )  # fmt: skip
        except NotSeparable:
            self.unsupported(
                "a number that mixes q and k other than by adding", env, value.span,
                "compare sums such as `q - k` or `q // 16 - k // 16`",
            )  # fmt: skip

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
            filled = self.instances(arguments[0].value, env).filled()
            return Region.rectangles(self.n, filled.start, filled.end, filled.start, filled.end)
        if name in env.names:
            return self.local_mask(env.names[name], arguments, env)
        found = env.scope.find_mask(name)
        if found is None:
            self.unsupported(
                f"`{name}`, which is imported", env, value.span, "copy it into the file"
            )
        definition, scope = found
        return self.mask(definition.value, self.call_env(definition, scope, arguments, env))

    def local_mask(self, local: Value, arguments: tuple[ast.Argument, ...], env: Env) -> Region:
        if isinstance(local, bool):
            return Region.full(self.n) if local else Region.empty(self.n)
        assert isinstance(local, Closure), "checked: a number is no mask"
        if isinstance(local.value, ast.BindFunction):
            return self.mask(local.value.value, self.function_env(local, arguments, env))
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
        return self.number(value, env) if param.type.text == "pos" else self.constant(value, env)

    def function_env(self, function: Closure, arguments: tuple[ast.Argument, ...], env: Env) -> Env:
        assert isinstance(function.value, ast.BindFunction), "only functions have parameters"
        values = [self.number(a.value, env) for a in arguments]
        params = [p.text for p in function.value.params]
        names = {**function.env.names, **dict(zip(params, values, strict=True))}
        return Env(function.env.scope, function.env.program, names)

    def comparison(self, value: ast.Compare, env: Env) -> Region:
        numbers = [self.number(operand, env) for operand in value.operands]
        result: Region | None = None
        for a, op, b in zip(numbers, value.ops, numbers[1:], strict=False):
            region = compare_numbers(a, b, op, self.n)
            result = region if result is None else result & region
        assert result is not None, "a comparison has an operator"
        return result

    def membership(self, value: ast.In, env: Env) -> Region:
        on_q, on_k = self.position(value.item, env)
        inside = self.unary(self.instances(value.container, env), on_k)
        assert on_q != on_k, "a position is one of q or of k"
        return ~inside if value.negated else inside

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
        self.unsupported("`in` for other positions than `q` and `k`", env, value.span, "")

    def unary(self, instances: Instances, is_of_k: bool) -> Region:
        """Give the rows (or columns) of the tokens inside instances."""
        filled = instances.filled()
        whole = np.zeros_like(filled.start), np.full_like(filled.start, self.n)
        own = filled.start, filled.end
        return Region.rectangles(self.n, *(*whole, *own) if is_of_k else (*own, *whole))

    def per(self, value: ast.Per, env: Env) -> Region:
        """Evaluate a mask inside every instance of a segment, in its own coordinates."""
        filled = self.segment(value.segment.text, env, value.segment.span).filled()
        known: dict[int, Region] = {}
        parts = []
        for start, end in zip(filled.start.tolist(), filled.end.tolist(), strict=True):
            if end - start not in known:
                frame = Frame(end - start, self.frame.columns, is_whole=False)
                known[end - start] = _Lowering(frame).mask(value.value, env)
            columns = known[end - start].columns()
            parts.append((*(c + start for c in columns[:4]), *columns[4:]))
        if not parts:
            return Region.empty(self.n)
        joined = tuple(np.concatenate(group) for group in zip(*parts, strict=True))
        return Region.of(self.n, joined)

    def rule(self, rule: ast.Rule, env: Env) -> Region:
        result = Region.empty(self.n)
        subject = self.segment(rule.subject.text, env, rule.subject.span)
        for target in rule.targets:
            match target.name.text:
                case "all":
                    seen = Region.full(self.n)
                case "self":
                    own = subject.filled()
                    seen = Region.rectangles(self.n, own.start, own.end, own.start, own.end)
                case name:
                    seen = self.unary(self.segment(name, env, target.name.span), True)
            if target.is_causal:
                seen = seen & self.near(env, 0, None)
            if target.within is not None:
                width = self.constant(target.within, env)
                seen = seen & self.near(env, 1 - width, width - 1)
            result = result | seen
        return result & self.unary(subject, False)

    def near(self, env: Env, low: int, high: int | None) -> Region:
        """Give the pairs with ``low <= q - k <= high``."""
        distance = Term(Piecewise.position(self.n), Piecewise.position(self.n).scale(-1))
        result = compare_numbers(distance, low, ">=", self.n)
        return result if high is None else result & compare_numbers(distance, high, "<=", self.n)

    # ---- numbers ----

    def number(self, value: ast.Expr, env: Env) -> Number:
        """Evaluate an expression of kind number."""
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
        if value.text in env.names:
            local = env.names[value.text]
            if isinstance(local, Closure):
                assert not isinstance(local.value, ast.Every | ast.BindFunction), "checked"
                return self.number(local.value, local.env)
            assert not isinstance(local, bool), "checked: a bool is no number"
            if _num_tokens(local) not in (None, self.n):
                what = f"`{value.text}`, a position from outside, inside `per`"
                self.unsupported(what, env, value.span, "")
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
        left, right = self.number(value.left, env), self.number(value.right, env)
        match value.op:
            case "+":
                return self.bounded(add(left, right, self.n))
            case "-":
                return self.bounded(add(left, scale(right, -1), self.n))
            case "*":
                if isinstance(right, int):
                    return self.bounded(scale(left, right))
                if isinstance(left, int):
                    return self.bounded(scale(right, left))
                self.unsupported("the product of two positions", env, value.span, "")
            case "//" | "%":
                return self.divide(value, left, right, env)
        raise AssertionError(f"unknown operator {value.op}")

    def divide(self, value: ast.Binary, left: Number, right: Number, env: Env) -> Number:
        if not isinstance(right, int):
            self.unsupported("dividing by a position", env, value.right.span, "")
        if right < 1:
            self.fail(
                "E111",
                f"this divides by {right}",
                env,
                value.right.span,
                "the divisor is at least 1",
            )
        if isinstance(left, int):
            return left // right if value.op == "//" else left % right
        if isinstance(left, Extreme):
            raise NotSeparable
        return left.map(value.op, right)

    def bounded(self, value: Number) -> Number:
        if isinstance(value, int) and abs(value) > MAX_VALUE:
            raise ValueTooLarge
        return value

    def constant(self, value: ast.Expr, env: Env) -> int:
        """Evaluate a number that depends on no position."""
        number = self.number(value, env)
        if not isinstance(number, int):
            self.unsupported("a number that depends on the position", env, value.span, "")
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
        instances = self.segment(name.text, env, name.span)
        if len(instances.total) and int(instances.total[0]) != len(instances.total):
            self.unsupported(f"`.count` of `{name.text}`, which is nested", env, name.span, "")
        return len(instances.total)

    def row_column(self, name: str) -> int:
        from dcp_dsl.errors import DatasetError

        if name not in self.frame.columns:
            raise DatasetError(
                f"the mask reads `row.{name}`, but the sample has no column `{name}`"
            )
        value = self.frame.columns[name]
        if not isinstance(value, int):
            raise DatasetError(f"`row.{name}`: expected one integer, got {str(value)[:60]}")
        return value

    def token_column(self, name: str, env: Env, span: Span) -> Piecewise:
        from dcp_dsl.errors import DatasetError

        if not self.frame.is_whole:
            self.unsupported(f"the token column `{name}` inside `per`", env, span, "")
        column = env.scope.tokens[name].column.text
        values = np.asarray(self.frame.columns.get(column, ()))
        if values.shape != (self.n,) or values.dtype.kind not in "iu":
            raise DatasetError(
                f"token column `{column}`: expected {self.n} integers, one per token, got an "
                f"array of "
                f"shape {values.shape}"
            )
        if values.max() > MAX_VALUE or values.min() < -MAX_VALUE:
            raise DatasetError(
                f"token column `{column}`: values beyond {MAX_VALUE} are not supported"
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
        local = env.names.get(name)
        if isinstance(local, Closure):
            assert isinstance(local.value, ast.Every), "checked: the name is a segment"
            return self.tiles(local.value, local.env)
        statement = env.scope.segments[name]
        match statement.source:
            case ast.Every() as every:
                return self.tiles(every, Env(env.scope, env.scope.program))
            case ast.Columns(kind=kind):
                self.unsupported(f"a segment from `{kind.text}(...)`", env, span, "")
            case ast.Layout() as layout:
                if not self.frame.is_whole:
                    self.unsupported(
                        f"the layout of `{name}` inside `per`", env, span,
                        "inside `per`, use positions and `every`",
                    )  # fmt: skip
                key = (id(env.scope), statement.name.text)
                if key not in self.frame.layouts:
                    self.frame.layouts[key] = bind_layout(
                        statement, layout, self.frame.columns, self.n
                    )
                return self.frame.layouts[key][name]

    def tiles(self, every: ast.Every, env: Env) -> Instances:
        size = self.constant(every.size, env)
        if size < 1:
            self.fail(
                "E111", f"`every {size}` makes no tiles", env, every.size.span,
                "the size of a tile is at least 1 token",
            )  # fmt: skip
        if every.parent is None:
            whole = Instances.of(np.array([0]), np.array([self.n]))
            return tile(size, whole)
        return tile(size, self.segment(every.parent.text, env, every.parent.span))

    # ---- errors ----

    def fail(self, code: str, message: str, env: Env, span: Span, hint: str) -> NoReturn:
        raise LoweringError(code, message, env.program, span, hint)

    def unsupported(self, what: str, env: Env, span: Span, hint: str) -> NoReturn:
        self.fail("E190", f"not supported yet: {what}", env, span, hint)


def _num_tokens(value: Number) -> int | None:
    """Give the size of the frame that a number was evaluated in, None for constants."""
    if isinstance(value, int):
        return None
    term = value.terms[0] if isinstance(value, Extreme) else value
    return term.on_q.num_tokens
