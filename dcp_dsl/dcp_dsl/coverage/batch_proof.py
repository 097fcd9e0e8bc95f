"""Prove for a batch of rows at once statements that do not hold for every possible row.

``causal and q - k < row.window`` has empty rows for a window of 0, so nothing is proved about it in
general. In a batch whose windows lie between 1 and 4096 it has none: the proof is tried once more
with what the columns of these rows say. Rows that spoil a proof are found by halving.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from dcp_dsl.arrays import Bools, Ints, expand
from dcp_dsl.claims.guard import Guard, MaskRule
from dcp_dsl.data.nesting import NestedColumn
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.proving import never

MAX_PROOFS = 64  # for one batch; a proof costs about as much as binding a row or two
SMALLEST = 8  # rows that are rather bound than proved


def prove_rows(guard: Guard, columns: Mapping[str, NestedColumn], rows: Ints) -> Bools:
    """Return for each of some rows of a batch whether the rules of a guard are proved to hold.

    Rows must be free of missing values, and their token columns as long as the rows; `columns` go
    by the mask's names.
    """

    def holds(chosen: Ints) -> bool:
        return all(_holds(rule, columns, chosen) for rule in guard.rules)

    is_proved = np.zeros(len(rows), np.bool_)
    pending, proofs_left = [(0, len(rows))], MAX_PROOFS
    while pending:
        first, last = pending.pop()
        if last - first < SMALLEST or proofs_left <= 0:
            continue
        proofs_left -= 1
        if holds(rows[first:last]):
            is_proved[first:last] = True
            continue
        if last - first == len(rows) and not any(map(holds, _single_rows(rows))):
            break  # else all proofs would be spent on halves, in vain
        middle = (first + last) // 2
        pending += [(middle, last), (first, middle)]
    return is_proved


def _single_rows(rows: Ints) -> Iterator[Ints]:
    """Yield three rows, each alone: facts about columns that prove nothing there help nowhere."""
    for row in rows[:: max(1, len(rows) // 3)][:3]:
        yield np.array([row])


def _holds(rule: MaskRule, columns: Mapping[str, NestedColumn], rows: Ints) -> bool:
    mask = rule.mask.core
    facts = tuple(_facts(mask, columns, rows))
    blind = nodes.And((nodes.Not(mask), *facts))
    if not (rule.is_total_proved or never(blind, ("same",))):
        return False
    ahead = mask if rule.leaks is None else rule.leaks.core
    return rule.is_causal_proved or never(nodes.And((ahead, *facts)), ("before",))


def _facts(
    mask: nodes.Mask, columns: Mapping[str, NestedColumn], rows: Ints
) -> Iterator[nodes.Mask]:
    """Yield the facts that hold on all of these rows, as masks."""
    for name, column in columns.items():
        if column.depth == 0:
            yield _between(nodes.RowColumn(name), column.values[rows])
    tokens = {
        n.column for n in nodes.walk(mask)
        if isinstance(n, nodes.TokenColumn) and n.size is None and n.segment is None
    }  # fmt: skip
    for name in sorted(tokens):
        per_token = columns.get(name)
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
