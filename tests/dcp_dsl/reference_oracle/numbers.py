"""Evaluate numbers and segments for the oracle: arrays over queries and keys, labels per token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools
from dcp_dsl.budget import Budget
from dcp_dsl.checks.scope import Scope
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program, Span
from dcp_dsl.syntax.diagnostics import SpecError, make_diagnostic
from reference_oracle.layout import Instance, choose, cut_to, lay_out, lay_paths, spell_out

STEPS_PER_NODE = 2**13  # what visiting a node costs beside its pairs


@dataclass(frozen=True, slots=True)
class OracleEnv:
    """The names at one place: definitions, the text for messages, parameters and bindings."""

    scope: Scope
    program: Program
    names: Mapping[str, "Local"]


@dataclass(frozen=True, slots=True)
class Thunk:
    """An expression with the environment it is read in."""

    value: "ast.Expr | ast.Every | ast.BindFunction"
    env: OracleEnv


@dataclass(frozen=True, slots=True, eq=False)
class OracleNumber:
    """Values over queries and keys (broadcastable to [rows, n]) and where they are defined."""

    values: Any  # Any: int64 array or Python integer, as broadcasting wants
    is_defined: Any  # Any: bool array or bool
    home: object = None  # the frame of an argument: arrays mean nothing in another one


Local: TypeAlias = Thunk | OracleNumber


@dataclass(frozen=True, slots=True)
class OracleNumbers:
    """Evaluates numbers and segments for some rows against all keys of a sample (or instance)."""

    n: int
    rows: NDArray[np.int64]
    columns: Mapping[str, Any]  # Any: see Sample
    length: int  # of the sample
    offset: int  # of the instance in the sample; 0 outside `per`
    outer: "OracleNumbers | None"  # the frame around this one, None outside `per`
    cell: Instance | None  # the instance that this frame is, as the frame around has it
    cache: dict[tuple[int, str], list[Instance]]
    budget: Budget | None

    @property
    def shape(self) -> tuple[int, int]:
        """Pairs that are evaluated: rows, keys."""
        return len(self.rows), self.n

    def spend(self) -> None:
        """Pay for visiting one node."""
        if self.budget is not None:
            self.budget.spend(STEPS_PER_NODE + len(self.rows) * self.n)

    def number(self, value: ast.Expr, env: OracleEnv) -> OracleNumber:
        """Evaluate a number to arrays that broadcast to ``[rows, n]``."""
        self.spend()
        match value:
            case ast.Number(constant):
                return OracleNumber(constant, True)
            case ast.Name(name):
                return self.named_number(name, env)
            case ast.Sign(op, inner):
                number = self.number(inner, env)
                return number if op == "+" else OracleNumber(-number.values, number.is_defined)
            case ast.Binary():
                return self.arithmetic(value, env)
            case ast.Attribute():
                return self.attribute(value, env)
            case ast.Call(name, arguments):
                if name.text in env.names:
                    local = env.names[name.text]
                    assert isinstance(local, Thunk), f"{name.text} is no function"
                    assert isinstance(local.value, ast.BindFunction), f"{name.text} is no function"
                    inner_env = self.function_env(local, arguments, env)
                    return self.number(local.value.value, inner_env)
                return self.builtin(name.text, [self.number(a.value, env) for a in arguments])
        raise AssertionError(f"no number: {type(value).__name__}")

    def named_number(self, name: str, env: OracleEnv) -> OracleNumber:
        """Evaluate a parameter, a binding, `q`, `k` or `len`."""
        if name in env.names:
            local = env.names[name]
            if isinstance(local, OracleNumber):
                return self.relocated(local)
            assert not isinstance(local.value, ast.Every | ast.BindFunction), f"{name} is no number"
            return self.number(local.value, local.env)
        known: dict[str, Any] = {  # Any: arrays and an integer
            "q": self.rows[:, None], "k": np.arange(self.n)[None, :], "len": self.n,
        }  # fmt: skip
        return OracleNumber(known[name], True)

    def relocated(self, number: OracleNumber) -> OracleNumber:
        """Return an argument evaluated around a `per` on the pairs inside an instance."""
        home = number.home
        if np.ndim(number.values) == 0 and np.ndim(number.is_defined) == 0:
            return number
        if home is None or home is self or not isinstance(home, OracleNumbers):
            return number
        rows = np.searchsorted(home.rows, self.rows + self.offset - home.offset)
        columns = np.arange(self.n) + self.offset - home.offset

        def cut(values: Any) -> Any:  # Any: see OracleNumber
            return np.broadcast_to(values, home.shape)[np.ix_(rows, columns)]

        return OracleNumber(cut(number.values), cut(number.is_defined))

    def arithmetic(self, value: ast.Binary, env: OracleEnv) -> OracleNumber:
        """Evaluate ``left op right``."""
        a, b = self.number(value.left, env), self.number(value.right, env)
        is_defined = np.logical_and(a.is_defined, b.is_defined)
        match value.op:
            case "+":
                return OracleNumber(a.values + b.values, is_defined)
            case "-":
                return OracleNumber(a.values - b.values, is_defined)
            case "*":
                return OracleNumber(a.values * b.values, is_defined)
        if np.ndim(b.values) == 0 and b.values < 1:
            self.fail("E111", "this divides by a number below 1", env, value.right.span)
        is_defined = np.logical_and(is_defined, b.values != 0)
        divisor = np.where(b.values == 0, 1, b.values)
        if value.op == "//":
            return OracleNumber(a.values // divisor, is_defined)
        return OracleNumber(a.values % divisor, is_defined)

    def builtin(self, name: str, numbers: list[OracleNumber]) -> OracleNumber:
        """Evaluate `abs`, `min`, `max`, `clamp`."""
        values = [number.values for number in numbers]
        is_defined = np.logical_and.reduce(np.broadcast_arrays(*(n.is_defined for n in numbers)))
        if name == "abs":
            return OracleNumber(abs(values[0]), is_defined)
        if name == "clamp":
            return OracleNumber(np.minimum(np.maximum(values[0], values[1]), values[2]), is_defined)
        result = values[0]
        for other in values[1:]:
            result = np.maximum(result, other) if name == "max" else np.minimum(result, other)
        return OracleNumber(result, is_defined)

    def constant(self, value: ast.Expr, env: OracleEnv) -> int:
        """Evaluate a number that is the same for all pairs."""
        return int(self.number(value, env).values)

    def attribute(self, value: ast.Attribute, env: OracleEnv) -> OracleNumber:
        """Evaluate `row.col`, `S.count`, `q.S`, `q.S.start` and `q.token`."""
        name, inner = value.name.text, value.value
        if inner == ast.Name("row"):
            if not isinstance(self.columns[name], int):
                raise DatasetError(f"`row.{name}`: expected one integer")
            return OracleNumber(self.columns[name], True)
        if isinstance(inner, ast.Attribute) and self.is_number_of(inner, env):
            labels = self.facts_of(inner.name, name, env)
            return self.lookup(labels, inner.value, env, self.inside(self.segment(inner.name, env)))
        if name == "count" and isinstance(inner, ast.Name) and inner.text not in ("q", "k"):
            counted = self.segment(ast.Ident(inner.text), env)
            number = max([i.total for i in counted if i.is_id], default=len(counted))
            return OracleNumber(number, True)
        if name == "path":
            return self.lookup(self.places_on_paths(self.tree(env)), inner, env)
        if name not in env.names and name not in env.scope.segments:
            column = self.columns[env.scope.tokens[name].column.text]
            if not isinstance(column, list) or len(column) != self.length:
                raise DatasetError(f"token column `{name}`: expected {self.length} integers")
            own = column[self.offset : self.offset + self.n]
            return self.lookup(np.asarray(own, np.int64), inner, env)
        instances = self.segment(value.name, env)
        labels = self.per_token(instances, [i.number for i in instances], 0)
        return self.lookup(labels, inner, env, self.inside(instances))

    def facts_of(self, segment: ast.Ident, fact: str, env: OracleEnv) -> NDArray[np.int64]:
        """Return what is asked about the instance of each token."""
        if fact == "path":
            return self.places_on_paths(env.scope.segments[segment.text])
        instances = self.segment(segment, env)
        if fact == "count":
            return self.per_token(instances, [i.total for i in instances], 0)
        numbers = {
            "start": [i.start for i in instances], "end": [i.end for i in instances],
            "len": [i.end - i.start for i in instances], "pos": [i.start for i in instances],
        }[fact]  # fmt: skip
        labels = self.per_token(self.whole_stretches(instances), numbers, 0)
        return np.arange(self.n) - labels if fact == "pos" else labels

    def tree(self, env: OracleEnv) -> ast.Segment:
        """Return the layout of a text that has branches."""
        layouts = dict.fromkeys(env.scope.segments.values())
        (found,) = (each for each in layouts if "is_branch=True" in repr(each))
        return found

    def lay_paths(self, statement: ast.Segment) -> list[tuple[int, ...]]:
        """Return for each token of the whole sample those on its path."""
        assert isinstance(statement.source, ast.Layout), "only layouts have branches"
        return lay_paths(statement, statement.source, self.columns, self.length)

    def places_on_paths(self, statement: ast.Segment) -> NDArray[np.int64]:
        """Return the place of each token on its path, from the first token of the instance."""
        paths = self.lay_paths(statement)[self.offset : self.offset + self.n]
        places = np.array([len(path) for path in paths], np.int64)
        return places - places[:1]

    def is_number_of(self, value: ast.Attribute, env: OracleEnv) -> bool:
        """Say whether an attribute is the number of a token's instance: dots alternate.

        Behind a position stands a segment (`q.S`), behind that a border (`q.S.end`), which may be
        a position again (`q.S.end.T`).
        """
        dots: list[str] = []
        at: ast.Expr = value
        while isinstance(at, ast.Attribute):
            dots.insert(0, at.name.text)
            at = at.value
        is_number = False
        for dot in dots:
            is_number = not is_number and (dot in env.names or dot in env.scope.segments)
        return is_number

    def lookup(
        self, labels: NDArray[Any], item: ast.Expr, env: OracleEnv, is_defined: Bools | None = None
    ) -> OracleNumber:
        """Read a value per token at the position that `item` says."""
        position = self.number(item, env)
        at = np.clip(position.values, 0, self.n - 1)
        is_inside = (position.values >= 0) & (position.values < self.n) & position.is_defined
        if is_defined is None:
            return OracleNumber(labels[at], is_inside)
        return OracleNumber(labels[at], is_inside & is_defined[at])

    def function_env(
        self, local: Thunk, arguments: tuple[ast.Argument, ...], env: OracleEnv
    ) -> OracleEnv:
        """Return the environment of a `where` function's body."""
        assert isinstance(local.value, ast.BindFunction), "only functions have parameters"
        names = dict(local.env.names)
        for param, argument in zip(local.value.params, arguments, strict=True):
            names[param.text] = Thunk(argument.value, env)
        return OracleEnv(local.env.scope, local.env.program, names)

    # ---- segments ----

    def per_token(self, instances: list[Instance], numbers: Any, default: int) -> NDArray[np.int64]:
        """Write one number per instance on all its tokens."""
        labels = np.full(self.n, default, np.int64)
        for instance, number in zip(instances, numbers, strict=True):
            for token in range(instance.start, instance.end):
                labels[token] = number
        return labels

    def inside(self, instances: list[Instance]) -> Bools:
        """Say of every token whether it lies in one of the instances."""
        is_inside: Bools = self.per_token(instances, [1] * len(instances), 0) == 1
        return is_inside

    def instances(self, value: ast.Expr, env: OracleEnv) -> list[Instance]:
        """Return the instances of a segment, of its first or its last ones."""
        if isinstance(value, ast.Name):
            return self.segment(ast.Ident(value.text, span=value.span), env)
        assert isinstance(value, ast.Call), "a segment is a name or a call"
        instances = self.instances(value.arguments[0].value, env)
        how_many = self.constant(value.arguments[1].value, env) if len(value.arguments) > 1 else 1
        return choose(instances, value.name.text, how_many)

    def segment(self, name: ast.Ident, env: OracleEnv) -> list[Instance]:
        """Return the instances of a segment by name."""
        local = env.names.get(name.text)
        if isinstance(local, Thunk) and isinstance(local.value, ast.Every):
            return self.tiles(local.value, local.env)
        statement = env.scope.segments[name.text]
        if isinstance(statement.source, ast.Every):
            return self.tiles(statement.source, OracleEnv(env.scope, env.scope.program, {}))
        return self.placed(statement, (id(env.scope), name.text))

    def placed(self, statement: ast.Segment, key: tuple[int, str]) -> list[Instance]:
        """Return the instances of a name of a statement, inside `per` cut to each frame in turn."""
        if self.outer is not None and self.cell is not None:
            return cut_to(self.outer.placed(statement, key), self.cell, self.outer.n)
        if key not in self.cache:
            self.cache[key] = self.lay_out(statement, key[1])
        return self.cache[key]

    def lay_out(self, statement: ast.Segment, name: str) -> list[Instance]:
        """Return the instances of a name of a statement on the whole sample."""
        match statement.source:
            case ast.Layout() as layout:
                return lay_out(statement, layout, name, self.columns, self.length)
            case ast.Columns() as source:
                is_own = name == statement.name.text
                column = self.columns[source.column.text]
                return spell_out(source, is_own, name, column, self.length)
        raise AssertionError("tiles are cut where they are used")

    def whole_stretches(self, instances: list[Instance]) -> list[Instance]:
        """Refuse ids that come back after others."""
        filled = [i.name for i in instances if i.end > i.start and i.is_id]
        if len(set(filled)) < len(filled):
            raise DatasetError("an id comes back after others")
        return instances

    def tiles(self, every: ast.Every, env: OracleEnv) -> list[Instance]:
        """Cut the sample, or each instance of the parent, into tiles."""
        size = self.constant(every.size, env)
        if size < 1:
            self.fail("E111", f"`every {size}` makes no tiles", env, every.size.span)
        parents: list[Instance | None] = [None]
        if every.parent is not None:
            parents = [*self.segment(every.parent, env)]
        found: list[Instance] = []
        for index, parent in enumerate(parents):
            start, end = (0, self.n) if parent is None else (parent.start, parent.end)
            starts = list(range(start, end, size))
            for number, at in enumerate(starts):
                found.append(
                    Instance(
                        at, min(at + size, end), number, len(starts), index, len(found),
                        within=parent,
                    )
                )  # fmt: skip
        return found

    def fail(self, code: str, message: str, env: OracleEnv, span: Span) -> NoReturn:
        """Raise for something that has no meaning."""
        program = env.program
        raise SpecError((make_diagnostic(code, message, program.text, span, name=program.name),))
