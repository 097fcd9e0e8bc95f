"""Prove for a batch of rows at once statements that do not hold for every possible row.

``causal and q - k < row.window`` has empty rows for a window of 0, so nothing is proved about it in
general. In a batch whose windows lie between 1 and 4096 it has none: the proof is tried once more
with what the columns of these rows say. Rows that spoil a proof are found by halving.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints
from dcp_dsl.claims.guard import Guard, MaskRule
from dcp_dsl.data.nesting import NestedColumn
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.proving import never
from dcp_dsl.symbolic.piecewise import expand

MAX_PROOFS = 64  # for one batch; a proof costs about as much as binding a row or two
SMALLEST = 8  # rows that are rather bound than proved


@dataclass(slots=True, eq=False)
class BatchProver:
    """Proves a guard's rules for subsets of a batch.

    Attributes:
        guard: the rules.
        columns: of the batch, by the mask's names.
        proofs_left: how many proofs may still be tried.
    """

    guard: Guard
    columns: Mapping[str, NestedColumn]
    proofs_left: int = MAX_PROOFS

    def prove(self, rows: Ints) -> NDArray[np.bool_]:
        """Return for each of some rows whether the rules are proved to hold on it.

        Rows must be free of missing values, and their token columns as long as the rows.
        """
        is_proved = np.zeros(len(rows), np.bool_)
        pending = [(0, len(rows))]
        while pending:
            first, last = pending.pop()
            if last - first < SMALLEST or self.proofs_left <= 0:
                continue
            self.proofs_left -= 1
            if all(self._holds(rule, rows[first:last]) for rule in self.guard.rules):
                is_proved[first:last] = True
            elif first == 0 and last == len(rows) and not self._can_help(rows):
                break  # else all proofs would be spent on halves, in vain
            else:
                middle = (first + last) // 2
                pending += [(middle, last), (first, middle)]
        return is_proved

    def _can_help(self, rows: Ints) -> bool:
        """Return whether facts about columns prove anything, tried on single rows."""
        tried = rows[:: max(1, len(rows) // 3)][:3]
        return any(
            all(self._holds(rule, tried[i : i + 1]) for rule in self.guard.rules)
            for i in range(len(tried))
        )

    def _holds(self, rule: MaskRule, rows: Ints) -> bool:
        mask = rule.mask.core
        facts = tuple(self._facts(mask, rows))
        blind = nodes.And((nodes.Not(mask), *facts))
        if not (rule.is_total_proved or never(blind, ("same",))):
            return False
        ahead = mask if rule.leaks is None else rule.leaks.core
        return rule.is_causal_proved or never(nodes.And((ahead, *facts)), ("before",))

    def _facts(self, mask: nodes.Mask, rows: Ints) -> Iterator[nodes.Mask]:
        """Yield the facts that hold on all of these rows, as masks."""
        for name, column in self.columns.items():
            if column.depth == 0:
                yield _between(nodes.RowColumn(name), column.values[rows])
        tokens = {
            n.column for n in nodes.walk(mask)
            if isinstance(n, nodes.TokenColumn) and n.size is None and n.segment is None
        }  # fmt: skip
        for name in sorted(tokens):
            per_token = self.columns.get(name)
            if per_token is None or per_token.depth != 1:
                continue
            chosen, position = _tokens_of(per_token, rows)
            if not len(chosen):
                continue
            for at in (nodes.Pos("q"), nodes.Pos("k")):
                value = nodes.Lookup(nodes.TokenColumn(name, name), "number", at)
                yield _between(value, chosen)
                yield _between(nodes.Arithmetic("-", value, at), chosen - position)


def _between(value: nodes.Number, values: Ints) -> nodes.Mask:
    low, high = nodes.Const(int(values.min())), nodes.Const(int(values.max()))
    return nodes.And((nodes.Compare("<=", low, value), nodes.Compare("<=", value, high)))


def _tokens_of(column: NestedColumn, rows: Ints) -> tuple[Ints, Ints]:
    """Return the values of a column with one integer per token, and their positions in the row."""
    starts, ends = column.offsets[0][rows], column.offsets[0][rows + 1]
    row, position = expand(0, ends - starts)
    return column.values[starts[row] + position], position
