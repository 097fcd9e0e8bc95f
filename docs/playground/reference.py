"""Evaluate masks on short samples in plain Python, a query's row of keys at a time.

It reads core programs, as `dcp_dsl.dense_mask` does, and needs no numpy. A row is an integer with a
byte per key, 1 where the query sees it, so that `and`, `or` and `not` are one operation a row.
Segments are laid out by `plain_layout`, which judges the product's layouts in the tests.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from plain_layout import Frame, Instance, Refused
from statements import SampleFrame, statement_of

from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import laid_statements
from dcp_dsl.elaboration.rising import RISING_FUNCTIONS

if TYPE_CHECKING:
    from dcp_dsl.core.mask import Mask
    from dcp_dsl.core.sample import Rectangle, Sample

Value: TypeAlias = int | None  # None: undefined at this position
Values: TypeAlias = Value | list[Value]  # of all keys alike, or one for each
COMPARE = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
ARITHMETIC = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod, "min": min, "max": max,
}  # fmt: skip


@cache
def reads_query(node: nodes.Node) -> bool:
    """Return whether a node differs from query to query."""
    kinds = nodes.Same, nodes.Along, nodes.Per
    return any(isinstance(n, kinds) or n_is_query(n) for n in nodes.walk(node))


def n_is_query(node: nodes.Node) -> bool:
    """Return whether a node is the position of the query."""
    return isinstance(node, nodes.Pos) and node.side == "q"


def rise(name: str, value: Values) -> Values:
    """Return a rising function of a number, undefined where the number or the function is."""
    if isinstance(value, list):
        return [None if x is None else RISING_FUNCTIONS[name].at(x) for x in value]
    return None if value is None else RISING_FUNCTIONS[name].at(value)


class Reference:
    """The masks and numbers of a core program in a frame.

    Attributes:
        frame: the sample, or an instance inside `per`.
        outer: that of the frame around.
        rectangle: queries and keys, where they are two sequences.
        size: tokens.
        full: the row of a query that sees all keys.
    """

    def __init__(self, frame: Frame, outer: "Reference | None" = None) -> None:
        self.frame, self.outer = frame, outer
        self.rectangle: Rectangle | None = None
        self.size = frame.end - frame.start
        self.full = int.from_bytes(b"\1" * self.size, "little")
        self.known: dict[Any, Any] = {}  # Any: rows, numbers and tables, by node
        self.inner: dict[int, Reference] = {}

    @classmethod
    def of(cls, columns: Mapping[str, Any], length: int) -> "Reference":
        """Return that of a whole sample."""
        return cls(SampleFrame(dict(columns), 0, length))

    @classmethod
    def of_mask(cls, mask: "Mask", sample: "Sample") -> "Reference":
        """Return that of the sample of a mask, whose keys may be another sequence."""
        from dcp_dsl.core.sample import Rectangle  # without numpy its imports read this module

        if mask.keys is None:
            return cls.of(sample.columns, sample.length)
        found = Rectangle.of(mask.core, mask.keys, sample.columns, sample.length)
        laid = {*laid_statements(mask.core), mask.keys.statement}
        frame = SampleFrame(dict(sample.columns), 0, found.size)
        frame.sizes = {statement_of(each): found.tokens(each) for each in laid}
        frame.sizes[statement_of(mask.keys.statement)] = found.num_kv
        own = cls(frame)
        own.rectangle = found
        return own

    def once(self, key: Any, find: Callable[[], Any]) -> Any:
        """Return what is known, or find it; Any: as `known`."""
        if key not in self.known:
            self.known[key] = find()
        return self.known[key]

    # ---- masks ----

    def rows(self, mask: nodes.Mask) -> list[int]:
        """Return the row of every query."""
        found = self.rectangle
        if found is None:
            return [self.row(mask, q) for q in range(self.size)]
        keys = (1 << 8 * found.num_kv) - 1
        places = range(found.first_row, found.first_row + found.num_q)
        return [self.row(mask, q) & keys if q >= 0 and keys else 0 for q in places]

    def row(self, node: nodes.Mask, q: int) -> int:
        """Return the keys that a query sees."""
        key = node, q if reads_query(node) else -1
        found: int = self.once(key, lambda: self._row(node, q))
        return found

    def _row(self, node: nodes.Mask, q: int) -> int:
        match node:
            case nodes.Truth(flag):
                return self.full * flag
            case nodes.Not(item):
                return self.full ^ self.row(item, q)
            case nodes.And(items):
                seen = self.full
                for item in items:
                    seen = seen and seen & self.row(item, q)
                return seen
            case nodes.Or(items):
                seen = 0
                for item in items:
                    seen |= self.row(item, q)
                return seen
            case nodes.Along(layout):
                return self.along(layout, q)
            case nodes.Per(segment, body):
                return self.per(segment, body, q)
        return self.test(node, q)

    def test(self, node: nodes.Mask, q: int) -> int:
        """Return the keys for which a comparison, or a question about places, holds."""
        match node:
            case nodes.Compare(op, left, right):
                return self.packed(COMPARE[op], self.number(left, q), self.number(right, q))
            case nodes.Within(segment, at):
                labels = self.labels(segment)
                return self.packed(lambda i: i is not None, self.look_up(labels, at, q))
            case nodes.Same(segment):
                labels = self.labels(segment)
                own = labels[q]
                return self.packed(lambda i: own is not None and i is own, labels)
            case nodes.Listed(item, table, at):
                lists = self.look_up(self.column(table), at, q)
                return self.packed(
                    lambda x, c: x is not None and c is not None and x >= 0 and x in c,
                    self.number(item, q), lists,
                )  # fmt: skip
        raise AssertionError(f"no mask on a sample: {type(node).__name__}")

    def packed(self, test: Callable[..., bool], *values: Any) -> int:
        """Return the row of a test of values; Any: of what it tests.

        Comparisons with something undefined are false.
        """
        lists = [v if isinstance(v, list) else None for v in values]
        if test in COMPARE.values() and any(
            v is None or (isinstance(v, list) and None in v) for v in values
        ):
            operation = test
            test = lambda a, b: a is not None and b is not None and operation(a, b)  # noqa: E731
        if not any(given is not None for given in lists):
            return self.full if test(*values) else 0
        spread = (
            repeat(v, self.size) if given is None else given
            for v, given in zip(values, lists, strict=True)
        )
        return int.from_bytes(bytes(map(test, *spread)), "little")

    def along(self, layout: nodes.Laid, q: int) -> int:
        """Return the keys on the path of a query."""
        row = bytearray(self.size)
        start = self.frame.start
        for token in self.frame.path(statement_of(layout.statement), layout.name, start + q):
            if start <= token < self.frame.end:
                row[token - start] = 1
        return int.from_bytes(row, "little")

    def per(self, segment: nodes.Segment, body: nodes.Mask, q: int) -> int:
        """Return the keys that a query sees inside its instance of a segment."""
        cell = self.labels(segment)[q]
        if cell is None:
            return 0
        if cell.tokens is not None and len(cell.tokens) < cell.end - cell.start:
            raise Refused("`per` needs instances of one stretch each; an id comes back here")
        inner = self.inner.setdefault(id(cell), Reference(self.frame.inside(cell), self))
        before = cell.start - self.frame.start
        return inner.row(body, q - before) << 8 * before

    # ---- numbers ----

    def number(self, node: nodes.Number, q: int) -> Values:
        """Return a number for a query: one value, or one for each key."""
        key = node, q if reads_query(node) else -1
        found: Values = self.once(key, lambda: self._number(node, q))
        return found

    def _number(self, node: nodes.Number, q: int) -> Values:
        match node:
            case nodes.Const(value):
                return value
            case nodes.Pos(side):
                return q if side == "q" else list(range(self.size))
            case nodes.Length():
                return self.size
            case nodes.Count(segment):
                return self.count(segment)
            case nodes.RowColumn(name):
                return self.row_column(name)
            case nodes.Outside(levels, inner):
                return self.outside(levels, inner, q)
            case nodes.Arithmetic(op, left, right):
                return self.arithmetic(op, self.number(left, q), self.divisor(op, right, q))
            case nodes.Rising(name, inner):
                return rise(name, self.number(inner, q))
            case nodes.Lookup(table, fact, at):
                return self.look_up(self.facts(table, fact), at, q)
        raise AssertionError(f"no number on a sample: {type(node).__name__}")

    def divisor(self, op: str, node: nodes.Number, q: int) -> Values:
        """Return the right side of an operation; a divisor of all pairs is at least 1."""
        value = self.number(node, q)
        is_fixed = op in ("//", "%") and nodes.is_fixed(node)
        if is_fixed and isinstance(value, int) and value < 1:
            raise Refused("a number is divided by something below 1")
        return value

    def constant(self, node: nodes.Number) -> int:
        """Return a number that depends on no position."""
        value = self.number(node, 0)
        assert isinstance(value, int), "checked: sizes depend on no position"
        return value

    def outside(self, levels: int, node: nodes.Number, q: int) -> Values:
        """Return a number of a frame further out, at the positions of this one."""
        home: Reference = self
        for _ in range(levels):
            assert home.outer is not None, "every frame but the sample has one around it"
            home = home.outer
        before = self.frame.start - home.frame.start
        found = home.number(node, q + before)
        return found[before : before + self.size] if isinstance(found, list) else found

    def arithmetic(self, op: str, left: Values, right: Values) -> Values:
        """Return ``left op right``, undefined where one of them is, or the divisor is 0."""
        operation = ARITHMETIC[op]
        if op in ("//", "%"):
            right = [x or None for x in right] if isinstance(right, list) else right or None
        if not isinstance(left, list) and not isinstance(right, list):
            return None if left is None or right is None else operation(left, right)
        a: Iterable[Value] = left if isinstance(left, list) else repeat(left, self.size)
        b: Iterable[Value] = right if isinstance(right, list) else repeat(right, self.size)
        return [
            None if x is None or y is None else operation(x, y) for x, y in zip(a, b, strict=True)
        ]

    def look_up(self, values: list[Any], at: nodes.Number, q: int) -> Any:
        """Return what stands at a position; Any: whatever the list holds."""
        match at:
            case nodes.Pos("q"):
                return values[q]
            case nodes.Pos("k"):
                return values
        places = self.number(at, q)
        if isinstance(places, list):
            return [None if p is None or not 0 <= p < self.size else values[p] for p in places]
        return None if places is None or not 0 <= places < self.size else values[places]

    # ---- tables ----

    def key(self, segment: nodes.Segment) -> tuple[Any, ...]:
        """Return a segment as the frame calls it; Any: statements, names and sizes."""
        match segment:
            case nodes.Laid(statement, name):
                return ("file", statement_of(statement), name)
            case nodes.Chosen(is_first, inner, count):
                return ("first" if is_first else "last", self.key(inner), self.constant(count))
            case nodes.Tiles(size, parent):
                tokens = self.constant(size)
                if tokens < 1:
                    raise Refused(f"`every {tokens}` makes no tiles")
                return ("every", tokens, parent and self.key(parent))
            case nodes.Filtered(inner, condition):
                return ("picked", self.key(inner), self.fulfilling(inner, condition))
            case nodes.Union(segments):
                return ("union", *map(self.key, segments))

    def fulfilling(self, segment: nodes.Segment, condition: nodes.Mask) -> frozenset[int]:
        """Return which instances of the whole sample fulfil a condition on their columns."""
        if self.outer is not None:
            return self.outer.fulfilling(segment, condition)
        count = len(self.instances(segment))
        return frozenset(i for i in range(count) if self.holds(condition, i))

    def holds(self, node: nodes.Mask, i: int) -> bool:
        """Return whether instance i fulfils a condition."""
        match node:
            case nodes.Truth(flag):
                return flag
            case nodes.Not(item):
                return not self.holds(item, i)
            case nodes.And(items):
                return all(self.holds(item, i) for item in items)
            case nodes.Or(items):
                return any(self.holds(item, i) for item in items)
            case nodes.Compare(op, left, right):
                a, b = self.of_instance(left, i), self.of_instance(right, i)
                return a is not None and b is not None and COMPARE[op](a, b)
        raise AssertionError(f"no condition: {type(node).__name__}")

    def of_instance(self, node: nodes.Number, i: int) -> Value:
        """Return a number of a condition for instance i."""
        match node:
            case nodes.Lookup(nodes.TokenColumn(_, column)):
                if column not in self.frame.columns:
                    raise Refused(f"column `{column}`: the sample does not have it")
                return int(_flat(self.frame.columns[column], of_lists=False)[i])
            case nodes.Arithmetic(op, left, right):
                a, b = self.of_instance(left, i), self.of_instance(right, i)
                is_nothing = a is None or b is None or (op in ("//", "%") and b == 0)
                return None if is_nothing else ARITHMETIC[op](a, b)
            case nodes.Rising(name, inner):
                found = rise(name, self.of_instance(inner, i))
                return found if isinstance(found, int) else None
        value = self.number(node, 0)
        return value if isinstance(value, int) else None

    def instances(self, segment: nodes.Segment) -> list[Instance]:
        """Return the instances of a segment in the frame."""
        return self.frame.instances(self.once(segment, lambda: self.key(segment)))

    def labels(self, segment: nodes.Segment) -> list[Instance | None]:
        """Return the instance that each token lies in."""

        def find() -> list[Instance | None]:
            labels: list[Instance | None] = [None] * self.size
            for each in self.instances(segment):
                for token in each.tokens or range(each.start, each.end):
                    if self.frame.start <= token < self.frame.end:
                        labels[token - self.frame.start] = each
            return labels

        found: list[Instance | None] = self.once((segment, "labels"), find)
        return found

    def ids(self, segment: nodes.Segment) -> list[int] | None:
        """Return the column of a segment whose numbers are its ids, else None."""
        if isinstance(segment, nodes.Laid):
            statement = statement_of(segment.statement)
            if statement.is_ids and segment.name == statement.name:
                ids = self.frame.columns[statement.segments[statement.name][1]]
                return [*ids, *[-1] * (self.frame.end - len(ids))]  # of the shorter sequence
        return None

    def count(self, segment: nodes.Segment) -> int:
        """Count the instances of a segment; ids count up to the largest, or to the last name."""
        ids = self.ids(segment)
        if ids is None:
            return len(self.instances(segment))
        assert isinstance(segment, nodes.Laid), "has ids"
        return len(statement_of(segment.statement).names) - 1 or max(ids, default=-1) + 1

    def row_column(self, name: str) -> int:
        """Return a column with one integer for the sample."""
        if not isinstance(self.frame.columns.get(name), int):
            raise Refused(f"the mask reads `row.{name}`; expected one integer")
        return int(self.frame.columns[name])

    def facts(self, segment: nodes.Segment | nodes.TokenColumn, fact: nodes.Fact) -> list[Value]:
        """Return a fact about the instance of each token, or its column."""
        if isinstance(segment, nodes.TokenColumn):
            return self.column(segment)
        found: list[Value] = self.once((segment, fact), lambda: self._facts(segment, fact))
        return found

    def _facts(self, segment: nodes.Segment, fact: nodes.Fact) -> list[Value]:
        labels, start = self.labels(segment), self.frame.start
        ids = self.ids(segment)
        if ids is not None and fact in ("number", "count"):
            own = ids[start : self.frame.end]
            return [None if x < 0 else x if fact == "number" else self.count(segment) for x in own]
        if fact == "path":
            assert isinstance(segment, nodes.Laid), "paths are those of a layout"
            file, name = statement_of(segment.statement), segment.name
            depths = [self.frame.place_on_path(file, name, at) for at in range(self.size)]
            is_whole = name == file.name
            return [d if is_whole or i else None for d, i in zip(depths, labels, strict=True)]
        read: dict[str, Callable[[Instance, int], int]] = {
            "number": lambda i, at: i.number,
            "count": lambda i, at: i.count,
            "start": lambda i, at: i.start - start,
            "end": lambda i, at: i.end - start,
            "len": lambda i, at: i.end - i.start,
            "pos": lambda i, at: at - (i.start - start),
        }
        return [None if i is None else read[fact](i, at) for at, i in enumerate(labels)]

    def column(self, table: nodes.TokenColumn) -> list[Any]:
        """Return the value of a column at each token; Any: integers or tuples of them."""

        def find() -> list[Any]:
            return [tuple(v) if isinstance(v, list) else v for v in self._column(table)]

        found: list[Any] = self.once((table.column, table.size, table.segment, "column"), find)
        return found

    def _column(self, table: nodes.TokenColumn) -> list[Any]:
        if table.column not in self.frame.columns:
            raise Refused(f"column `{table.column}`: the sample does not have it")
        value = self.frame.columns[table.column]
        if self.outer is not None:
            root = self.outer
            before = self.frame.start - root.frame.start
            return root.column(table)[before : before + self.size]
        if table.segment is None:
            size = self.rectangle.tokens(table.column) if self.rectangle else self.size
            if len(value) != size:
                raise Refused(f"column `{table.column}`: expected {size} values")
            return [*value, *[None] * (self.size - size)]
        flat = _flat(value, of_lists=table.size is not None)
        ids = self.ids(table.segment)
        if ids is not None:
            return [None if which < 0 else flat[which] for which in ids]
        places = {id(each): which for which, each in enumerate(self.instances(table.segment))}
        labels = self.labels(table.segment)
        return [None if each is None else flat[places[id(each)]] for each in labels]


def _flat(value: Any, *, of_lists: bool) -> list[Any]:
    """Return the values of nested lists as one list; Any: integers, or lists of them."""
    items = [item for item in value if isinstance(item, list)]
    inner = [item for item in items if any(isinstance(x, list) for x in item)]
    if inner or (items and not of_lists):
        return [x for item in value for x in _flat(item, of_lists=of_lists)]
    return list(value)
