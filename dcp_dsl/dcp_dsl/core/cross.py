"""Bind masks whose keys are another sequence: where queries stand among them, who has which facts.

Both sequences are put into one square of tokens. With an alignment that is the sequence of the keys
and the queries are some of its rows; without one both begin at 0, and every fact has its own side.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dcp_dsl.core.columns import Column
from dcp_dsl.core.layout import natural_length
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.keys import KeySequence, facts_of_keys
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast


@dataclass(frozen=True, slots=True, eq=False)
class Rectangle:
    """The queries and keys of a mask on a sample, in one square of tokens.

    Attributes:
        num_q, num_kv: tokens of both sequences.
        first_row: the row of the square that is query 0.
        size: tokens of the square.
        facts: of the keys: statements, and columns of tokens; None for all.
    """

    num_q: int
    num_kv: int
    first_row: int
    size: int
    facts: frozenset[object] | None

    @classmethod
    def of(
        cls, core: nodes.Mask, keys: KeySequence, columns: Mapping[str, Column], num_q: int
    ) -> "Rectangle":
        """Lay the keys out beside so many queries.

        Raises:
            DatasetError: if the columns do not fit the layout, or a query stands behind all keys.
            SpecError: E126 if the mask mixes facts of both sequences.
        """
        layout = keys.statement.source
        assert isinstance(layout, ast.Layout), "checked: keys have a layout"
        num_kv = natural_length(keys.statement, layout, columns)
        assert num_kv is not None, "checked: the layout of keys does not ask for `len`"
        facts = facts_of_keys(core, keys)
        if not keys.alignment:
            return cls(num_q, num_kv, 0, max(num_q, num_kv), facts)
        if keys.alignment == "top_left" and num_q > num_kv:
            raise DatasetError(
                f"`@keys({keys.statement.name.text}, top_left)`: expected at most as many queries "
                f"as keys, got {num_q} and {num_kv}: query {num_kv} would stand behind all keys"
            )
        first = num_kv - num_q if keys.alignment == "bottom_right" else 0
        return cls(num_q, num_kv, first, num_kv, None)

    @property
    def is_empty(self) -> bool:
        """True without a query or without a key."""
        return min(self.num_q, self.num_kv) == 0

    def tokens(self, fact: object) -> int:
        """Return the tokens of the sequence that a statement or a column belongs to."""
        return self.num_kv if self.facts is None or fact in self.facts else self.num_q

    def cut(self, core: nodes.Mask) -> nodes.Mask:
        """Return a mask without the pairs of the square that are outside the rectangle."""
        q, k = nodes.Pos("q"), nodes.Pos("k")
        bounds = (
            nodes.Compare(">=", q, nodes.Const(max(0, self.first_row))),
            nodes.Compare("<", q, nodes.Const(self.first_row + self.num_q)),
            nodes.Compare("<", k, nodes.Const(self.num_kv)),
        )
        return nodes.And((core, *bounds), place=core.place)
