"""The slow, obvious meaning of a mask: its syntax tree evaluated pair by pair with numpy.

Everything that claims to be exact is tested against this. It shares with the compiler the syntax
tree and the lookup of names, nothing else: layouts are laid out token by token here, and every
expression is an array over queries and keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import ast
from dcp_dsl.ast import Program, Span
from dcp_dsl.budget import Budget
from dcp_dsl.diagnostics import make_diagnostic
from dcp_dsl.errors import DatasetError, SpecError
from dcp_dsl.mask import Mask
from dcp_dsl.oracle_layout import Instance, lay_out
from dcp_dsl.sample import Sample
from dcp_dsl.scope import Scope

Bools = NDArray[np.bool_]

_NOWHERE = Span(0, 0)
MAX_TOKENS = 2**15  # 1 GiB of pairs
STEPS_PER_NODE = 2**13  # what visiting a node costs beside its pairs
PAIRS_AT_ONCE = 2**21  # rows are evaluated in bunches of about so many pairs, to bound memory


def dense_mask(mask: Mask, sample: Sample, *, budget: Budget | None = None) -> Bools:
    """Evaluate a mask on every pair of a sample.

    The reference for all other forms; O(n^2) time and result.

    Args:
        mask: any mask of a spec.
        sample: its columns and length n.
        budget: most steps (one numpy operation on one pair) to take; without it, any number.

    Returns:
        bool ``[n, n]``: entry (q, k) says whether query q sees key k.

    Raises:
        DatasetError: if the sample lacks a column, its layout does not fill it, or it is longer
            than `MAX_TOKENS`.
        SpecError: for constructs that have no meaning yet (E190).
        OverBudget: if the budget is used up.

    >>> from dcp_dsl import Spec
    >>> band = Spec.from_text("mask band = causal and q - k < 2").mask("band")
    >>> dense_mask(band, Sample(length=3)).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    missing = sorted(mask.columns - sample.columns.keys())
    if missing:
        raise DatasetError(f"mask `{mask.name}` needs the column `{missing[0]}`")
    if sample.length > MAX_TOKENS:
        raise DatasetError(
            f"a dense mask of {sample.length:_} tokens is too large; expected at most "
            f"{MAX_TOKENS:_}, or use `mask.bind(sample)`"
        )
    env = _Env(mask.scope, mask.program, {})
    return evaluate(mask.expression, env, sample.columns, sample.length, budget)


def evaluate(
    value: ast.Expr,
    env: "_Env",
    columns: Mapping[str, Any],  # Any: see Sample
    length: int,
    budget: Budget | None = None,
) -> Bools:
    """Evaluate a mask expression on all pairs, some rows at a time."""
    result = np.zeros((length, length), np.bool_)
    step = max(1, PAIRS_AT_ONCE // max(1, length))
    cache: dict[tuple[int, str], list[Instance]] = {}
    for begin in range(0, length, step):
        rows = np.arange(begin, min(begin + step, length))
        result[rows] = _Oracle(length, rows, columns, True, cache, budget).mask(value, env)
    return result


@dataclass(frozen=True, slots=True)
class _Env:
    scope: Scope
    program: Program
    names: Mapping[str, "_Local"]


@dataclass(frozen=True, slots=True)
class _Thunk:
    value: "ast.Expr | ast.Every | ast.BindFunction"
    env: _Env


@dataclass(frozen=True, slots=True, eq=False)
class _Number:
    """Values over queries and keys (broadcastable to [rows, n]) and where they are defined."""

    values: Any  # Any: int64 array or Python integer, as broadcasting wants
    is_defined: Any  # Any: bool array or bool
    home: object = None  # the frame of an argument: arrays mean nothing in another one


_Local: TypeAlias = _Thunk | _Number


_COMPARISONS = {
    "<=": np.less_equal, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
    "<": np.less, ">": np.greater,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Oracle:
    """Evaluates expressions for some rows against all keys of a sample (or `per` instance)."""

    n: int
    rows: NDArray[np.int64]
    columns: Mapping[str, Any]  # Any: see Sample
    is_whole: bool
    cache: dict[tuple[int, str], list[Instance]]
    budget: Budget | None
    # Arguments already evaluated in this frame, by identity (and kept alive).
    seen: dict[int, tuple[_Thunk, Bools]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.n

    def spend(self) -> None:
        if self.budget is not None:
            self.budget.spend(STEPS_PER_NODE + len(self.rows) * self.n)

    def mask(self, value: ast.Expr, env: _Env) -> Bools:
        """Evaluate a mask to bool ``[rows, n]``."""
        self.spend()
        match value:
            case ast.Bool(flag):
                return np.full(self.shape, flag)
            case ast.Not(inner):
                return ~self.mask(inner, env)
            case ast.And(items):
                return _all([self.mask(item, env) for item in items])
            case ast.Or(items):
                return _any([self.mask(item, env) for item in items])
            case ast.Minus(left, right):
                return self.mask(left, env) & ~self.mask(right, env)
            case ast.Per(inner, segment):
                return self.per(inner, self.segment(segment, env), env)
            case ast.Rules(rules):
                return _any([self.rule(rule, env) for rule in rules])
        return self.atom(value, env)

    def atom(self, value: ast.Expr, env: _Env) -> Bools:
        """Evaluate a comparison, a membership or a mask by name."""
        match value:
            case ast.Compare(operands, ops):
                numbers = [self.number(operand, env) for operand in operands]
                result = np.ones(self.shape, np.bool_)
                for a, op, b in zip(numbers, ops, numbers[1:], strict=False):
                    truth = _COMPARISONS[op](a.values, b.values)
                    result &= truth & a.is_defined & b.is_defined
                return result
            case ast.In(item, container, negated):
                inside = self.lookup(self.inside(self.instances(container, env)), item, env).values
                return np.broadcast_to(inside != negated, self.shape)
            case ast.Name() | ast.Call():
                return self.named(value, env)
        raise AssertionError(f"no mask: {type(value).__name__}")

    def named(self, value: ast.Name | ast.Call, env: _Env) -> Bools:
        name = value.text if isinstance(value, ast.Name) else value.name.text
        arguments = value.arguments if isinstance(value, ast.Call) else ()
        if name == "same" and arguments:
            return self.same(self.instances(arguments[0].value, env))
        if name in env.names:
            local = env.names[name]
            assert isinstance(local, _Thunk), f"{name} is no mask"
            if isinstance(local.value, ast.BindFunction):
                return self.mask(local.value.value, self.function_env(local, arguments, env))
            assert not isinstance(local.value, ast.Every), f"{name} is no mask"
            if id(local) not in self.seen:
                self.seen[id(local)] = local, self.mask(local.value, local.env)
            return self.seen[id(local)][1]
        found = env.scope.find_mask(name)
        assert found is not None, f"unknown mask {name}"
        definition, scope = found
        return self.mask(definition.value, self.mask_env(definition, scope, arguments, env))

    def mask_env(
        self, definition: ast.MaskDef, scope: Scope, arguments: tuple[ast.Argument, ...], env: _Env
    ) -> _Env:
        names: dict[str, _Local] = {}
        inner = _Env(scope, scope.program, names)
        for index, param in enumerate(definition.params):
            chosen, at = param.default, inner
            for position, argument in enumerate(arguments):
                if (argument.name is None and position == index) or (
                    argument.name is not None and argument.name.text == param.name.text
                ):
                    chosen, at = argument.value, env
            assert chosen is not None, f"no value for {param.name.text}"
            if param.type.text in ("mask", "bool"):
                names[param.name.text] = _Thunk(chosen, at)
            else:
                names[param.name.text] = replace(self.number(chosen, at), home=self)
        for binding in definition.bindings:
            match binding:
                case ast.BindSegment(name=name, source=source):
                    names[name.text] = _Thunk(source, inner)
                case ast.BindValue(name=name, value=bound):
                    names[name.text] = _Thunk(bound, inner)
                case ast.BindFunction(name=name):
                    names[name.text] = _Thunk(binding, inner)
        return inner

    def function_env(self, local: _Thunk, arguments: tuple[ast.Argument, ...], env: _Env) -> _Env:
        assert isinstance(local.value, ast.BindFunction), "only functions have parameters"
        names = dict(local.env.names)
        for param, argument in zip(local.value.params, arguments, strict=True):
            names[param.text] = replace(self.number(argument.value, env), home=self)
        return _Env(local.env.scope, local.env.program, names)

    def same(self, instances: list[Instance]) -> Bools:
        which = self.per_token(instances, range(len(instances)), -1)
        at_q, at_k = which[self.rows][:, None], which[None, :]
        is_same: Bools = (at_q == at_k) & (at_q >= 0)
        return is_same

    def rule(self, rule: ast.Rule, env: _Env) -> Bools:
        subject = self.segment(rule.subject, env)
        q, k = self.rows[:, None], np.arange(self.n)[None, :]
        result = np.zeros(self.shape, np.bool_)
        for target in rule.targets:
            if target.name.text == "all":
                seen = np.ones(self.shape, np.bool_)
            elif target.name.text == "self":
                seen = self.same(subject)
            else:
                inside = self.inside(self.segment(target.name, env))
                seen = np.broadcast_to(inside[None, :], self.shape)
            if target.is_causal:
                seen = seen & (k <= q)
            if target.within is not None:
                seen = seen & (abs(q - k) < self.constant(target.within, env))
            result |= seen
        return result & self.inside(subject)[self.rows][:, None]

    def per(self, inner: ast.Expr, instances: list[Instance], env: _Env) -> Bools:
        result = np.zeros(self.shape, np.bool_)
        for instance in instances:
            mine = np.flatnonzero((self.rows >= instance.start) & (self.rows < instance.end))
            if len(mine):
                rows = self.rows[mine] - instance.start
                size = instance.end - instance.start
                part = _Oracle(size, rows, self.columns, False, {}, self.budget)
                result[mine, instance.start : instance.end] = part.mask(inner, env)
        return result

    # ---- numbers ----

    def number(self, value: ast.Expr, env: _Env) -> _Number:
        """Evaluate a number to arrays that broadcast to ``[rows, n]``."""
        self.spend()
        match value:
            case ast.Number(constant):
                return _Number(constant, True)
            case ast.Name(name):
                return self.named_number(name, env)
            case ast.Sign(op, inner):
                number = self.number(inner, env)
                return number if op == "+" else _Number(-number.values, number.is_defined)
            case ast.Binary():
                return self.arithmetic(value, env)
            case ast.Attribute():
                return self.attribute(value, env)
            case ast.Call(name, arguments):
                if name.text in env.names:
                    local = env.names[name.text]
                    assert isinstance(local, _Thunk), f"{name.text} is no function"
                    assert isinstance(local.value, ast.BindFunction), f"{name.text} is no function"
                    inner_env = self.function_env(local, arguments, env)
                    return self.number(local.value.value, inner_env)
                return self.builtin(name.text, [self.number(a.value, env) for a in arguments])
        raise AssertionError(f"no number: {type(value).__name__}")

    def named_number(self, name: str, env: _Env) -> _Number:
        if name in env.names:
            local = env.names[name]
            if isinstance(local, _Number):
                if isinstance(local.values, np.ndarray) and local.home is not self:
                    self.fail("E190", f"not supported yet: `{name}` inside `per`", env, _NOWHERE)
                return local
            assert not isinstance(local.value, ast.Every | ast.BindFunction), f"{name} is no number"
            return self.number(local.value, local.env)
        known: dict[str, Any] = {  # Any: arrays and an integer
            "q": self.rows[:, None], "k": np.arange(self.n)[None, :], "len": self.n,
        }  # fmt: skip
        return _Number(known[name], True)

    def arithmetic(self, value: ast.Binary, env: _Env) -> _Number:
        a, b = self.number(value.left, env), self.number(value.right, env)
        is_defined = np.logical_and(a.is_defined, b.is_defined)
        match value.op:
            case "+":
                return _Number(a.values + b.values, is_defined)
            case "-":
                return _Number(a.values - b.values, is_defined)
            case "*":
                return _Number(a.values * b.values, is_defined)
        if np.any(np.asarray(b.values) < 1):
            self.fail("E111", "this divides by a number below 1", env, value.right.span)
        if value.op == "//":
            return _Number(a.values // b.values, is_defined)
        return _Number(a.values % b.values, is_defined)

    def builtin(self, name: str, numbers: list[_Number]) -> _Number:
        values = [number.values for number in numbers]
        is_defined = np.logical_and.reduce(np.broadcast_arrays(*(n.is_defined for n in numbers)))
        if name == "abs":
            return _Number(abs(values[0]), is_defined)
        if name == "clamp":
            return _Number(np.minimum(np.maximum(values[0], values[1]), values[2]), is_defined)
        result = values[0]
        for other in values[1:]:
            result = np.maximum(result, other) if name == "max" else np.minimum(result, other)
        return _Number(result, is_defined)

    def constant(self, value: ast.Expr, env: _Env) -> int:
        return int(self.number(value, env).values)

    def attribute(self, value: ast.Attribute, env: _Env) -> _Number:
        name, inner = value.name.text, value.value
        if inner == ast.Name("row"):
            if not isinstance(self.columns[name], int):
                raise DatasetError(f"`row.{name}`: expected one integer")
            return _Number(self.columns[name], True)
        if isinstance(inner, ast.Attribute):
            instances = self.segment(inner.name, env)
            numbers = {
                "start": [i.start for i in instances], "end": [i.end for i in instances],
                "len": [i.end - i.start for i in instances], "pos": [i.start for i in instances],
            }[name]  # fmt: skip
            labels = self.per_token(instances, numbers, 0)
            if name == "pos":
                labels = np.arange(self.n) - labels
            return self.lookup(labels, inner.value, env, self.inside(instances))
        if name == "count" and isinstance(inner, ast.Name) and inner.text not in ("q", "k"):
            return _Number(len(self.segment(ast.Ident(inner.text), env)), True)
        if name not in env.names and name not in env.scope.segments:
            column = self.columns[env.scope.tokens[name].column.text]
            if not isinstance(column, list) or len(column) != self.n or not self.is_whole:
                raise DatasetError(f"token column `{name}`: expected {self.n} integers")
            return self.lookup(np.asarray(column, np.int64), inner, env)
        instances = self.segment(value.name, env)
        labels = self.per_token(instances, [i.number for i in instances], 0)
        return self.lookup(labels, inner, env, self.inside(instances))

    def lookup(
        self, labels: NDArray[Any], item: ast.Expr, env: _Env, is_defined: Bools | None = None
    ) -> _Number:
        """Read a value per token at the position that `item` says."""
        position = self.number(item, env)
        at = np.clip(position.values, 0, self.n - 1)
        is_inside = (position.values >= 0) & (position.values < self.n) & position.is_defined
        if is_defined is None:
            return _Number(labels[at], is_inside)
        return _Number(labels[at], is_inside & is_defined[at])

    # ---- segments ----

    def per_token(self, instances: list[Instance], numbers: Any, default: int) -> NDArray[np.int64]:
        """Write one number per instance on all its tokens."""
        labels = np.full(self.n, default, np.int64)
        for instance, number in zip(instances, numbers, strict=True):
            for token in range(instance.start, instance.end):
                labels[token] = number
        return labels

    def inside(self, instances: list[Instance]) -> Bools:
        is_inside: Bools = self.per_token(instances, [1] * len(instances), 0) == 1
        return is_inside

    def instances(self, value: ast.Expr, env: _Env) -> list[Instance]:
        if isinstance(value, ast.Name):
            return self.segment(ast.Ident(value.text, span=value.span), env)
        assert isinstance(value, ast.Call), "a segment is a name or a call"
        instances = self.instances(value.arguments[0].value, env)
        how_many = self.constant(value.arguments[1].value, env) if len(value.arguments) > 1 else 1
        if value.name.text == "first":
            return [i for i in instances if i.number < how_many]
        return [i for i in instances if i.number >= i.total - how_many]

    def segment(self, name: ast.Ident, env: _Env) -> list[Instance]:
        local = env.names.get(name.text)
        if isinstance(local, _Thunk) and isinstance(local.value, ast.Every):
            return self.tiles(local.value, local.env)
        statement = env.scope.segments[name.text]
        if isinstance(statement.source, ast.Every):
            return self.tiles(statement.source, _Env(env.scope, env.scope.program, {}))
        if isinstance(statement.source, ast.Columns) or not self.is_whole:
            self.fail("E190", f"not supported yet: `{name.text}` here", env, name.span)
        key = (id(env.scope), name.text)
        if key not in self.cache:
            self.cache[key] = lay_out(statement, statement.source, name.text, self.columns, self.n)
        return self.cache[key]

    def tiles(self, every: ast.Every, env: _Env) -> list[Instance]:
        size = self.constant(every.size, env)
        if size < 1:
            self.fail("E111", f"`every {size}` makes no tiles", env, every.size.span)
        parents = [(0, self.n)]
        if every.parent is not None:
            parents = [(i.start, i.end) for i in self.segment(every.parent, env)]
        found = []
        for start, end in parents:
            starts = list(range(start, end, size))
            for number, at in enumerate(starts):
                found.append(Instance(at, min(at + size, end), number, len(starts)))
        return found

    def fail(self, code: str, message: str, env: _Env, span: Span) -> NoReturn:
        program = env.program
        raise SpecError((make_diagnostic(code, message, program.text, span, name=program.name),))


def _all(masks: list[Bools]) -> Bools:
    result: Bools = np.logical_and.reduce(masks)
    return result


def _any(masks: list[Bools]) -> Bools:
    result: Bools = np.logical_or.reduce(masks)
    return result
