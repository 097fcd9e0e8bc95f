"""Evaluate a mask pair by pair with numpy, from its syntax tree.

It shares with the compiler the syntax tree and the lookup of names, nothing else: layouts are laid
out token by token here, and every expression is an array over queries and keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dcp_dsl.arrays import Bools
from dcp_dsl.budget import Budget
from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast
from reference_oracle.layout import Instance
from reference_oracle.numbers import Local, OracleEnv, OracleNumbers, Thunk

MAX_TOKENS = 2**15  # 1 GiB of pairs
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
        SpecError: for constants out of range (E111).
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
    env = OracleEnv(mask.scope, mask.program, {})
    return evaluate(mask.expression, env, sample.columns, sample.length, budget)


def evaluate(
    value: ast.Expr,
    env: "OracleEnv",
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
        oracle = _Oracle(length, rows, columns, length, 0, None, None, cache, budget)
        result[rows] = oracle.mask(value, env)
    return result


_COMPARISONS = {
    "<=": np.less_equal, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
    "<": np.less, ">": np.greater,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Oracle(OracleNumbers):
    """Evaluates masks for some rows against all keys of a sample (or `per` instance)."""

    # Arguments already evaluated in this frame, by identity (and kept alive).
    seen: dict[int, tuple[Thunk, Bools]] = field(default_factory=dict)

    def mask(self, value: ast.Expr, env: OracleEnv) -> Bools:
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

    def atom(self, value: ast.Expr, env: OracleEnv) -> Bools:
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
                found = self.lookup(self.inside(self.instances(container, env)), item, env)
                inside = np.logical_and(found.values, found.is_defined)
                return np.broadcast_to(inside != negated, self.shape)
            case ast.Name() | ast.Call():
                return self.named(value, env)
        raise AssertionError(f"no mask: {type(value).__name__}")

    def named(self, value: ast.Name | ast.Call, env: OracleEnv) -> Bools:
        name = value.text if isinstance(value, ast.Name) else value.name.text
        arguments = value.arguments if isinstance(value, ast.Call) else ()
        if name == "same" and arguments:
            return self.same(self.instances(arguments[0].value, env))
        if name == "paths":
            return self.paths(self.tree(env))
        if name in env.names:
            local = env.names[name]
            assert isinstance(local, Thunk), f"{name} is no mask"
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
        self,
        definition: ast.MaskDef,
        scope: Scope,
        arguments: tuple[ast.Argument, ...],
        env: OracleEnv,
    ) -> OracleEnv:
        names: dict[str, Local] = {}
        inner = OracleEnv(scope, scope.program, names)
        for index, param in enumerate(definition.params):
            chosen, at = param.default, inner
            for position, argument in enumerate(arguments):
                if (argument.name is None and position == index) or (
                    argument.name is not None and argument.name.text == param.name.text
                ):
                    chosen, at = argument.value, env
            assert chosen is not None, f"no value for {param.name.text}"
            if param.type.text in ("tokens", "int"):
                names[param.name.text] = replace(self.number(chosen, at), home=self)
            else:
                names[param.name.text] = Thunk(chosen, at)
        for binding in definition.bindings:
            match binding:
                case ast.BindSegment(name=name, source=source):
                    names[name.text] = Thunk(source, inner)
                case ast.BindValue(name=name, value=bound):
                    names[name.text] = Thunk(bound, inner)
                case ast.BindFunction(name=name):
                    names[name.text] = Thunk(binding, inner)
        return inner

    def paths(self, statement: ast.Segment) -> Bools:
        paths = self.lay_paths(statement)[self.offset : self.offset + self.n]
        found = [[k + self.offset in paths[q] for k in range(self.n)] for q in self.rows]
        return np.array(found, np.bool_).reshape(self.shape)

    def same(self, instances: list[Instance]) -> Bools:
        which = self.per_token(instances, [i.name for i in instances], -1)
        at_q, at_k = which[self.rows][:, None], which[None, :]
        is_same: Bools = (at_q == at_k) & (at_q >= 0)
        return is_same

    def rule(self, rule: ast.Rule, env: OracleEnv) -> Bools:
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

    def per(self, inner: ast.Expr, instances: list[Instance], env: OracleEnv) -> Bools:
        result = np.zeros(self.shape, np.bool_)
        for instance in self.whole_stretches(instances):
            mine = np.flatnonzero((self.rows >= instance.start) & (self.rows < instance.end))
            if len(mine):
                rows = self.rows[mine] - instance.start
                size = instance.end - instance.start
                offset = self.offset + instance.start
                part = _Oracle(
                    size, rows, self.columns, self.length, offset, self, instance, self.cache,
                    self.budget,
                )  # fmt: skip
                result[mine, instance.start : instance.end] = part.mask(inner, env)
        return result


def _all(masks: list[Bools]) -> Bools:
    result: Bools = np.logical_and.reduce(masks)
    return result


def _any(masks: list[Bools]) -> Bools:
    result: Bools = np.logical_or.reduce(masks)
    return result
