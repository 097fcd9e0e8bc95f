"""Read the columns of a layout: lengths of parts, repetitions of groups, parents of branches."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add, floordiv, mod, mul, sub
from typing import Any, NoReturn, TypeAlias

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.elaboration.reads import layout_columns
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast

Column: TypeAlias = (
    Any  # Any: an integer, a list of integers or a list of such lists; checked on use
)


def list_names(names: list[str]) -> str:
    """Write names of columns one behind the other."""
    return ", ".join(f"`{n}`" for n in names)


@dataclass(slots=True)
class LayoutColumns:
    """Reads and checks the columns of one statement on one sample.

    Attributes:
        statement: for messages.
        columns: of the sample.
        length: tokens of the sample.
    """

    statement: ast.Segment
    columns: Mapping[str, Column]
    length: int

    def fail(self, message: str) -> NoReturn:
        """Raise for something about the columns of the statement."""
        raise DatasetError(f"segment `{self.statement.name.text}`: {message}")

    def column(self, name: str, row: Mapping[str, Column]) -> Column:
        """Return a column where it must be."""
        if name not in row:
            known = list_names(sorted(self.columns)) or "none"
            segment = self.statement.name.text
            raise DatasetError(
                f"segment `{segment}` needs the column `{name}`; the sample has {known}"
            )
        return row[name]

    def lengths(self, name: str, value: Column) -> Ints:
        """Check a column to be a list of lengths."""
        array = self.integers(name, value)
        if array.size and array.min() < 0:
            self.fail(f"column `{name}` has the negative length {array.min()}")
        if array.size and int(array.max()) > self.length:
            self.fail(
                f"column `{name}` has a part of {array.max()} tokens, the sample only {self.length}"
            )
        return array

    def integers(self, name: str, value: Column) -> Ints:
        """Check a column to be a list of integers."""
        array = np.asarray(value) if not _is_ragged(value) else None
        if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            self.fail(f"expected column `{name}` to be a list of integers, got {_shorten(value)}")
        return array.astype(np.int64)

    def arithmetic(self, value: ast.Expr, row: Mapping[str, Column]) -> int:
        """Evaluate the length of a part that is not repeated."""
        result = self._number(value, row)
        if result < 0:
            self.fail(f"a part would have {result} tokens; expected at least 0, mend the column")
        if result > self.length:
            self.fail(f"a part would have {result} tokens, the sample has {self.length}")
        return result

    def _number(self, value: ast.Expr, row: Mapping[str, Column]) -> int:
        match value:
            case ast.Number(number):
                return number
            case ast.Name("len"):
                return self.length
            case ast.Name(name):
                found = self.column(name, row)
                if isinstance(found, bool) or not isinstance(found, int | np.integer):
                    self.fail(
                        f"expected column `{name}` to be one integer, got {_shorten(found)}; "
                        f"a list of lengths needs a `*` behind its part"
                    )
                return int(found)
            case ast.Sign(op, inner):
                return -self._number(inner, row) if op == "-" else self._number(inner, row)
            case ast.Binary(op, left, right):
                return self._binary(op, self._number(left, row), self._number(right, row))
        raise AssertionError(f"checked: no {type(value).__name__} in a length")

    def _binary(self, op: ast.Arithmetic, a: int, b: int) -> int:
        if op in ("//", "%") and b == 0:
            self.fail("a length divides by zero")
        return int({"+": add, "-": sub, "*": mul, "//": floordiv, "%": mod}[op](a, b))

    def repetitions(self, group: ast.Group, row: Mapping[str, Column]) -> tuple[int, int | None]:
        """Count the repetitions of a group: its columns have one element per repetition.

        The last repetition may end early: the columns of its missing parts are one element short.

        Returns:
            Repetitions, and how many parts the last one has if it ends early, else None.
        """
        sizes: dict[str, int] = {}
        for name in layout_columns(group):
            value = self.column(name, row)
            if isinstance(value, int | np.integer | str | bytes) or not hasattr(value, "__len__"):
                self.fail(
                    f"column `{name}` stands in a repeated group, so it needs one element per "
                    f"repetition, got {_shorten(value)}"
                )
            sizes[name] = len(value)
        count = max(sizes.values(), default=0)
        if all(size == count for size in sizes.values()):
            return count, None
        short = [any(sizes[c] < count for c in _part_columns(part)) for part in group.parts]
        first = short.index(True)
        late = [c for part in group.parts[first:] for c in _part_columns(part)]
        if first and all(sizes[c] == count - 1 for c in late):
            return count, first
        shown = ", ".join(f"`{n}` {s}" for n, s in sizes.items())
        self.fail(
            f"the columns of a repeated group must have equally many elements, got {shown}; only "
            f"the last repetition may lack its last parts"
        )

    def parents(self, name: str, row: Mapping[str, Column], size: int) -> Ints:
        """Check a column to hold the parents of so many branches, int64 ``[size]``."""
        parents = self.integers(name, self.column(name, row))
        if len(parents) != size:
            self.fail(f"column `{name}` has {len(parents)} parents for {size} branches")
        wrong = np.flatnonzero((parents < -1) | (parents >= np.arange(size)))
        if len(wrong):
            at = wrong[0]
            self.fail(
                f"column `{name}`: branch {at} goes on from {parents[at]}; expected an earlier "
                f"branch, or -1 for the place where the part stands"
            )
        return parents


def _part_columns(part: ast.Leaf | ast.Group) -> tuple[str, ...]:
    """Return the columns that one part reads."""
    return layout_columns(ast.Layout((part,)))


def _is_ragged(value: Column) -> bool:
    return not hasattr(value, "__len__") or any(hasattr(v, "__len__") for v in value)


def _shorten(value: Column) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
