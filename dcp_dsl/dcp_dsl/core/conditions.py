"""Decide which instances of a segment fulfil a condition on their columns, all at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add, and_, eq, floordiv, ge, gt, le, lt, mod, mul, ne, or_, sub
from typing import Any

import numpy as np

from dcp_dsl.arrays import Bools
from dcp_dsl.core.columns import Column, read_instances, read_row
from dcp_dsl.core.instances import Instances
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.rising import RISING_FUNCTIONS

_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": add, "-": sub, "*": mul, "//": floordiv, "%": mod, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def fulfil(condition: nodes.Mask, own: Instances, columns: Mapping[str, Column]) -> Bools:
    """Return which instances of a segment fulfil a condition, bool ``[I]``."""
    found = _Condition(own, columns).mask(condition)
    return np.broadcast_to(np.asarray(found, np.bool_), (len(own),))


@dataclass(frozen=True, slots=True)
class _Condition:
    """Evaluates a condition for all instances of a segment, with the columns of a sample."""

    own: Instances
    columns: Mapping[str, Column]

    def mask(self, node: nodes.Mask) -> Any:  # Any: a truth for all, or one for each
        match node:
            case nodes.Truth(flag):
                return flag
            case nodes.Not(item):
                return np.logical_not(self.mask(item))
            case nodes.And(items) | nodes.Or(items):
                join = and_ if isinstance(node, nodes.And) else or_
                return reduce(join, map(self.mask, items))
            case nodes.Compare(op, left, right):
                (a, a_known), (b, b_known) = self.number(left), self.number(right)
                return np.asarray(_COMPARE[op](a, b), np.bool_) & a_known & b_known
        raise AssertionError(f"checked: no {type(node).__name__} in a condition")

    def number(self, node: nodes.Number) -> Any:  # Any: numbers, and where they are defined
        match node:
            case nodes.Const(value):
                return value, True
            case nodes.RowColumn(name):
                return read_row(name, self.columns), True
            case nodes.Lookup(nodes.TokenColumn() as column):
                return read_instances(column, self.columns, self.own), True
            case nodes.Rising(name, inner):
                values, known = self.number(inner)
                rising = RISING_FUNCTIONS[name]
                powers = [rising.at(int(x)) for x in np.broadcast_to(values, len(self.own))]
                numbers = np.array([power or 0 for power in powers], np.int64)
                return numbers, known & np.array([power is not None for power in powers], np.bool_)
            case nodes.Arithmetic(op, left, right):
                (a, a_known), (b, b_known) = self.number(left), self.number(right)
                # Python's integers, as products may leave int64
                x, y = np.asarray(a, object), np.asarray(b, object)
                known = np.logical_and(a_known, b_known)
                if op in ("//", "%"):  # dividing by 0 gives nothing
                    known = known & np.asarray(y != 0, np.bool_)
                    y = np.where(np.asarray(y == 0, np.bool_), 1, y)
                return _ARITHMETIC[op](x, y), known
        raise AssertionError(f"checked: no {type(node).__name__} in a condition")
