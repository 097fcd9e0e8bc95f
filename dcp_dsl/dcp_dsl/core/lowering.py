"""Evaluate a mask on one sample, symbolically: expressions become regions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from dcp_dsl.budget import OverBudget
from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.environment import Closure, Env, Frame, Value
from dcp_dsl.core.instances import Instances
from dcp_dsl.core.number_lowering import NumberLowering, VaryingLength
from dcp_dsl.errors import DatasetError
from dcp_dsl.symbolic.classes import Classes, MaskValue, num_slabs
from dcp_dsl.symbolic.piecewise import MAX_VALUE, TooManyPieces, ValueTooLarge
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import (
    Cyclic,
    Extreme,
    NotSeparable,
    Number,
    Quotient,
    Term,
    add,
    as_term,
    scale,
)
from dcp_dsl.syntax import ast

_MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}


def compare_numbers(a: Number, b: Number, op: str, frame: Frame) -> MaskValue:
    """Return the pairs of the frame where ``a op b``.

    Raises:
        NotSeparable: if the difference has no form that can be solved.
        TooManyPieces: if the answer is too wide.
    """
    if isinstance(b, Quotient):
        a, b, op = b, a, _MIRRORED[op]
    if isinstance(a, Quotient) and isinstance(b, int):
        return _compare_quotient(a, b, op, frame)
    difference = add(a, scale(b, -1), frame.num_tokens)
    if isinstance(difference, Cyclic):
        if frame.is_transposed:  # remainders are those of q - k, rows would be keys
            raise TooManyPieces
        return Classes.of_truth(difference.compare(op), frame.everything())
    if isinstance(difference, Extreme):
        return _compare_extreme(difference, op, frame)
    assert not isinstance(difference, Quotient), "a sum with a quotient is none"
    return frame.compare(as_term(difference, frame.num_tokens), op)


def _compare_quotient(value: Quotient, limit: int, op: str, frame: Frame) -> Region:
    distance = frame.distance().scale(value.factor)
    parts = [frame.compare(distance.shift(-bound), sign) for sign, bound in value.bound(op, limit)]
    if len(parts) == 1:
        return parts[0]
    return parts[0] & parts[1] if op == "==" else parts[0] | parts[1]


def _compare_extreme(value: Extreme, op: str, frame: Frame) -> Region:
    """``max(a, b) <= 0`` is `and`, ``max(a, b) >= 0`` is `or`; min the other way round."""
    if op == "==":
        return _compare_extreme(value, "<=", frame) & _compare_extreme(value, ">=", frame)
    if op == "!=":
        return _compare_extreme(value, "<", frame) | _compare_extreme(value, ">", frame)
    regions = [frame.compare(term, op) for term in value.terms]
    is_and = value.is_max == (op in ("<", "<="))
    result = regions[0]
    for region in regions[1:]:
        result = result & region if is_and else result | region
    if is_and:  # each term is defined where all of them compare true
        return result
    # An undefined term makes the extreme undefined, so `or` must not let one term decide alone.
    for term in value.terms:
        if not (term.on_q.is_defined.all() and term.on_k.is_defined.all()):
            result = result & _defined(term, frame)
    return result


def _defined(term: Term, frame: Frame) -> Region:
    """Return the pairs on which a term is defined."""
    both = []
    for function, make in ((term.on_q, Term.of_q), (term.on_k, Term.of_k)):
        flat = np.zeros_like(function.values)
        both.append(frame.compare(make(function.with_values(flat, flat)), "=="))
    return both[0] & both[1]


STEPS_PER_NODE = 250
MAX_NARROW_JOBS = 2**12  # a wider comparison waits until its neighbours in `and` have been found


@dataclass(frozen=True, slots=True)
class Place:
    """The expression that has no symbolic form, and why."""

    error: Exception
    span: ast.Span
    env: Env


class Lowering:
    """Evaluates expressions in one frame.

    Attributes:
        frame: the coordinates.
        numbers: numbers and segments in them.
        obstacle: the innermost expression that had no symbolic form, once one was met.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.n = frame.num_tokens
        self.numbers = NumberLowering(frame)
        self.obstacle: Place | None = None
        # Arguments and bindings already evaluated, by identity; kept alive with their closures.
        self.masks: dict[int, tuple[Closure, MaskValue]] = {}

    def mask(self, value: ast.Expr, env: Env) -> MaskValue:
        """Evaluate an expression of kind mask.

        Raises:
            LoweringError: for constants out of range.
            NotSeparable, TooManyPieces, OverBudget: if it has no (short) symbolic form.
        """
        try:
            self.frame.budget.spend(STEPS_PER_NODE)
            found = self._mask(value, env)
            self.frame.budget.spend(num_slabs(found))
        except (TooManyPieces, OverBudget, NotSeparable) as error:
            if self.obstacle is None:
                self.obstacle = Place(error, value.span, env)
            raise
        except ValueTooLarge:
            env.fail(
                "E192", f"a number here grows beyond {MAX_VALUE:_}", value.span,
                "lengths are in tokens; check the factors",
            )  # fmt: skip
        return found

    def _mask(self, value: ast.Expr, env: Env) -> MaskValue:
        match value:
            case ast.Not(inner):
                return self.frame.everything() - self.mask(inner, env)
            case ast.And(items):
                return self.conjunction(items, env)
            case ast.Or(items):
                return reduce(or_, [self.mask(item, env) for item in items])
            case ast.Minus(left, right):
                return self.mask(left, env) - self.mask(right, env)
            case ast.Per():
                return self.per(value, env)
            case ast.Rules(rules):
                return reduce(or_, [self.rule(rule, env) for rule in rules])
        return self.atom(value, env)

    def conjunction(self, items: Sequence[ast.Expr], env: Env) -> MaskValue:
        """Evaluate `and`: narrow items first, wide ones only where those leave something."""
        narrow = Lowering(self.frame.narrow(MAX_NARROW_JOBS))
        narrow.masks, narrow.numbers = self.masks, self.numbers
        found: MaskValue | None = None
        wide = []
        for item in items:
            try:
                value = narrow.mask(item, env)
            except TooManyPieces:
                wide.append(item)
                narrow.obstacle = None
            except (NotSeparable, OverBudget):
                self.obstacle = narrow.obstacle
                raise
            else:
                found = value if found is None else found & value
        for item in wide:
            if isinstance(found, Region):
                found = found & self.in_frame(self.frame.within(found), item, env)
            else:
                value = self.mask(item, env)
                found = value if found is None else found & value
        assert found is not None, "`and` has operands"
        return found

    def atom(self, value: ast.Expr, env: Env) -> MaskValue:
        """Evaluate a comparison, a membership, a constant or a mask by name."""
        match value:
            case ast.Bool(flag):
                return self.frame.everything() if flag else Region.empty(self.n)
            case ast.Name() | ast.Call():
                return self.named_mask(value, env)
            case ast.Compare():
                return self.comparison(value, env)
            case ast.In():
                return self.membership(value, env)
        raise AssertionError(f"checked: {type(value).__name__} is no mask")

    def named_mask(self, value: ast.Name | ast.Call, env: Env) -> MaskValue:
        """Evaluate a mask by name: a parameter, a binding, `same`, or a definition."""
        name = value.text if isinstance(value, ast.Name) else value.name.text
        arguments = value.arguments if isinstance(value, ast.Call) else ()
        if name == "same" and isinstance(value, ast.Call):
            return self.same(self.numbers.instances(arguments[0].value, env))
        if name in env.names:
            return self.local_mask(env.names[name], arguments, env)
        found = env.scope.find_mask(name)
        assert found is not None, f"checked: {name} is a mask"
        definition, scope = found
        return self.mask(definition.value, self.call_env(definition, scope, arguments, env))

    def same(self, instances: Instances) -> Region:
        """Return the pairs of tokens of the same instance."""
        own = instances.filled()
        if own.is_split:
            return self.same_id(own)
        return Region.rectangles(self.n, own.start, own.end, own.start, own.end)

    def same_id(self, own: Instances) -> Region:
        """Return the pairs of tokens with the same id, which may come in several stretches."""
        group = own.parent * (int(own.number.max()) + 1) + own.number
        order = np.argsort(group, kind="stable")
        _, first, counts = np.unique(group[order], return_index=True, return_counts=True)
        if int((counts.astype(np.float64) ** 2).sum()) > self.frame.max_jobs:
            raise TooManyPieces
        size = np.repeat(counts, counts)
        left = np.repeat(order, size)
        shift = np.repeat(np.cumsum(size) - size - np.repeat(first, counts), size)
        right = order[np.arange(len(left)) - shift]
        start, end = own.start, own.end
        return Region.rectangles(self.n, start[left], end[left], start[right], end[right])

    def local_mask(self, local: Value, arguments: tuple[ast.Argument, ...], env: Env) -> MaskValue:
        """Evaluate a parameter or a binding."""
        if isinstance(local, bool):
            return self.frame.everything() if local else Region.empty(self.n)
        assert isinstance(local, Closure), "checked: a number is no mask"
        if isinstance(local.value, ast.BindFunction):
            return self.mask(local.value.value, self.numbers.function_env(local, arguments, env))
        assert not isinstance(local.value, ast.Every), "checked: a segment is no mask"
        if id(local) not in self.masks:  # once per frame: masks that double their argument nest
            self.masks[id(local)] = local, self.mask(local.value, local.env)
        return self.masks[id(local)][1]

    def call_env(
        self,
        definition: ast.MaskDef,
        scope: Scope,
        arguments: tuple[ast.Argument, ...],
        env: Env,
        position: Callable[[ast.Expr, Env], Value] | None = None,
    ) -> Env:
        """Return the environment of a mask's body: its parameters and bindings.

        Args:
            definition: the mask.
            scope: where its body is read.
            arguments: of the call.
            env: where the call stands.
            position: evaluates arguments that are positions, by default to numbers.
        """
        evaluate = position or self.numbers.number
        names: dict[str, Value] = {}
        inner = Env(scope, scope.program, names)
        given = {a.name.text: a.value for a in arguments if a.name is not None}
        in_order = [a.value for a in arguments if a.name is None]
        for index, param in enumerate(definition.params):
            name = param.name.text
            if index < len(in_order):
                names[name] = self.argument(in_order[index], param, env, evaluate)
            elif name in given:
                names[name] = self.argument(given[name], param, env, evaluate)
            else:
                assert param.default is not None, f"checked: parameter {name} has a value"
                names[name] = self.argument(param.default, param, inner, evaluate)
        for binding in definition.bindings:
            match binding:
                case ast.BindSegment(name=ident, source=source):
                    names[ident.text] = Closure(source, inner)
                case ast.BindValue(name=ident, value=bound):
                    names[ident.text] = Closure(bound, inner)
                case ast.BindFunction(name=ident):
                    names[ident.text] = Closure(binding, inner)
        return inner

    def argument(
        self,
        value: ast.Expr,
        param: ast.Param,
        env: Env,
        position: Callable[[ast.Expr, Env], Value],
    ) -> Value:
        """Evaluate an argument; masks are evaluated where they are used."""
        if param.type.text in ("mask", "bool"):
            return Closure(value, env)
        if param.type.text == "pos":
            return position(value, env)
        return self.numbers.constant(value, env)

    def comparison(self, value: ast.Compare, env: Env) -> MaskValue:
        """Evaluate a chain of comparisons."""
        result: MaskValue | None = None
        previous: Number | None = None
        for left, op, right in zip(value.operands, value.ops, value.operands[1:], strict=False):
            shift = self.common_remainder(left, right, op, env)
            if shift is not None:
                found, previous = compare_numbers(shift, 0, op, self.frame), None
            else:
                a = self.numbers.number(left, env) if previous is None else previous
                previous = self.numbers.number(right, env)
                found = compare_numbers(a, previous, op, self.frame)
            result = found if result is None else result & found
        assert result is not None, "a comparison has an operator"
        return result

    def common_remainder(self, left: ast.Expr, right: ast.Expr, op: str, env: Env) -> Number | None:
        """Read ``a % c == b % c`` as ``(a - b) % c == 0`` where a - b depends on q - k alone."""
        if op not in ("==", "!=") or not isinstance(left, ast.Binary):
            return None
        if not isinstance(right, ast.Binary) or left.op != "%" or right.op != "%":
            return None
        if self.numbers.number(left.right, env) != self.numbers.number(right.right, env):
            return None
        both = ast.Binary("-", left.left, right.left, span=left.span)
        try:
            number = self.numbers.number(ast.Binary("%", both, left.right, span=left.span), env)
        except NotSeparable:
            return None
        return number if isinstance(number, Cyclic) else None

    def membership(self, value: ast.In, env: Env) -> MaskValue:
        """Evaluate `in` and `not in`."""
        instances = self.numbers.instances(value.container, env).filled()
        item = self.numbers.number(value.item, env)
        for name, is_of_k in (("q", False), ("k", True)):
            if item is self.numbers.positions.get(name):
                inside = self.frame.unary(instances, is_of_k=is_of_k)
                return self.frame.everything() - inside if value.negated else inside
        zeros = np.zeros(len(instances), np.int64)
        function = instances.function(self.n, zeros)  # defined inside
        term = self.numbers.at_position(function, value.item, env)
        inside = self.frame.compare(term, "==")
        return self.frame.everything() - inside if value.negated else inside

    def per(self, value: ast.Per, env: Env) -> MaskValue:
        """Evaluate a mask inside every instance of a segment, in its own coordinates."""
        cells = self.numbers.segment(value.segment.text, env, value.segment.span).filled()
        if cells.is_split:
            raise DatasetError(
                f"`per {value.segment.text}` needs instances of one stretch each, but an id comes "
                f"back after others"
            )
        if len(cells) == 0:
            return Region.empty(self.n)
        return self.inside(cells, value.value, env)

    def inside(self, cells: Instances, value: ast.Expr, env: Env) -> MaskValue:
        """Evaluate a mask inside each cell."""
        try:
            return self.in_frame(self.frame.inside(cells), value, env)
        except VaryingLength:  # a size depends on the instance: one length at a time, or one by one
            sizes = cells.end - cells.start
            groups = np.unique(sizes)
            which = sizes if len(groups) > 1 else np.arange(len(sizes))
            parts = [
                self.inside(cells.select(which == group), value, env)
                for group in np.unique(which).tolist()
            ]
            return reduce(or_, parts)

    def in_frame(self, frame: Frame, value: ast.Expr, env: Env) -> MaskValue:
        """Evaluate a mask in another frame of the same sample."""
        inner = Lowering(frame)
        try:
            return inner.mask(value, env)
        finally:
            self.obstacle = self.obstacle or inner.obstacle

    def rule(self, rule: ast.Rule, env: Env) -> MaskValue:
        """Evaluate one rule of a rule block."""
        result: MaskValue = Region.empty(self.n)
        subject = self.numbers.segment(rule.subject.text, env, rule.subject.span)
        for target in rule.targets:
            match target.name.text:
                case "all":
                    seen = self.frame.everything()
                case "self":
                    seen = self.same(subject)
                case name:
                    segment = self.numbers.segment(name, env, target.name.span)
                    seen = self.frame.unary(segment, is_of_k=True)
            if target.is_causal:
                seen = seen & self.near(0, ">=")
            if target.within is not None:
                width = self.numbers.constant(target.within, env)
                seen = seen & self.near(-width, ">") & self.near(width, "<")
            result = result | seen
        return result & self.frame.unary(subject, is_of_k=False)

    def near(self, limit: int, op: str) -> Region:
        """Return the pairs with ``q - k op limit``."""
        return self.frame.compare(self.frame.distance().shift(-limit), op)
