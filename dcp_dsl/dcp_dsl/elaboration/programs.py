"""Find the facts of queries and keys that core programs read; substitute in programs; print them.

`@keys(cache, bottom_right)` makes queries and keys tokens of one sequence, that of the keys: a core
program means there what it means anywhere. `@keys(source)` says nothing about where queries stand
among the keys, so a fact is either one of queries or one of keys, and nothing may compare places.
A call puts values in the place of the free parameters of a program. As text, a program has a line
for each part of a mask, and numbers as they are written in masks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NoReturn, TypeAlias, TypeVar, cast

from dcp_dsl.elaboration import nodes
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import column_name, format_number, walk, walk_parts

Alignment: TypeAlias = Literal["", "top_left", "bottom_right"]
ALIGNMENTS: tuple[Alignment, ...] = ("top_left", "bottom_right")


@dataclass(frozen=True, slots=True)
class KeySequence:
    """The layout of the keys of a mask, and the corner of the matrix that is on the diagonal.

    That is "" if positions do not compare.
    """

    statement: ast.Segment
    alignment: Alignment


def facts_of_keys(core: nodes.Mask, keys: KeySequence) -> frozenset[object]:
    """Return the statements and token columns that a mask reads at keys.

    Equal statements of two texts, such as one of the library, lay out the same sequence. With an
    alignment queries are tokens of the keys' sequence, so that all facts belong to it.
    """
    reader = _Facts(keys, {})
    # `sides` is left empty with an alignment: every fact is one of the keys' sequence anyway.
    if keys.alignment:
        for node in nodes.walk(core):
            if isinstance(node, nodes.Laid):
                reader.expect_keys(node)
    else:
        for node in nodes.walk(core):
            reader.look(node)
    return frozenset(fact for fact, side in reader.sides.items() if side == "k")


@dataclass(frozen=True, slots=True)
class _Facts:
    """Finds the side of every fact; `sides` holds those found so far."""

    keys: KeySequence
    sides: dict[object, nodes.Side]

    @property
    def name(self) -> str:
        return self.keys.statement.name.text

    def expect_keys(self, node: nodes.Laid) -> None:
        """Refuse a layout of the queries where both tokens are of the keys' sequence."""
        is_own = node.statement == self.keys.statement
        if isinstance(node.statement.source, ast.Layout) and not is_own:
            node.place.fail(
                "E126", f"`{node.name}` is no part of `{self.name}`, which lays the keys out",
                f"with `{self.keys.alignment}` queries are tokens of `{self.name}` too: ask about "
                f"its parts, or write `@keys({self.name})`",
            )  # fmt: skip

    def look(self, node: nodes.Node) -> None:
        """Note the sides of the facts that one node reads."""
        match node:
            case nodes.Lookup(table, _, at) | nodes.Within(table, at) | nodes.Listed(_, table, at):
                self.belongs(table, self.side_of(at), node.place)
            case nodes.Compare(_, left, right):
                if len(_places(left) | _places(right)) == 2:  # of q and of k
                    self.unaligned(node.place, "this compares places of queries and of keys")
            case nodes.Same() | nodes.Along() | nodes.Per():
                words = {nodes.Same: "same", nodes.Along: "paths", nodes.Per: "per"}
                word = words[type(node)]
                self.unaligned(node.place, f"`{word}` needs two tokens of one sequence")
            case nodes.Length():
                hint = "count a part, or give the number a column: `row.name`"
                node.place.fail("E126", "`len` could be that of the queries or of the keys", hint)
            case nodes.Count(segment) if not _is_layout(segment):
                hint = "read the count at a token: `q.S.count` or `k.S.count`"
                node.place.fail("E126", "this counts instances of queries or of keys", hint)

    def side_of(self, at: nodes.Number) -> nodes.Side:
        """Return the side that a position belongs to."""
        # A column or a border is read at q or at k; a constant or `q + k` is a place of neither.
        sides = {node.side for node in nodes.walk(at) if isinstance(node, nodes.Pos)}
        if len(sides) != 1:
            self.unaligned(at.place, "this is no place of the queries, and none of the keys")
        return sides.pop()

    def belongs(
        self, table: nodes.Segment | nodes.TokenColumn, side: nodes.Side, place: nodes.Place
    ) -> None:
        """Note that a fact is read at one side; refuse the other one."""
        match table:
            case nodes.TokenColumn(name, column, segment=None):
                self.note(column, side, f"token column `{name}`", place)
            case nodes.TokenColumn(segment=nodes.Node() as segment) | nodes.Chosen(_, segment):
                self.belongs(segment, side, place)
            case nodes.Filtered(segment):
                self.belongs(segment, side, place)
            case nodes.Union(segments):
                for each in segments:
                    self.belongs(each, side, place)
            case nodes.Tiles(_, parent) if parent is not None:
                self.belongs(parent, side, place)
            case nodes.Tiles():
                hint = "divide the position: `k // 64`, or tile a part: `every 64 in S`"
                place.fail("E126", "tiles could be cut from the queries or from the keys", hint)
            case nodes.Laid(statement, name):
                # Which layout it is decides, before anything is read from it; `note` then refuses
                # a use at the other side. The segments of a column have no side of their own.
                if isinstance(statement.source, ast.Layout):
                    is_key = statement == self.keys.statement
                    self.sides[statement] = "k" if is_key else "q"
                self.note(statement, side, f"`{name}`", place)

    def note(self, fact: object, side: nodes.Side, what: str, place: nodes.Place) -> None:
        """Refuse a fact that is read at both sides."""
        known = self.sides.setdefault(fact, side)
        if known != side:
            words = {"q": "queries", "k": "keys"}
            place.fail(
                "E126", f"{what} belongs to the {words[known]}, `{side}` to the {words[side]}",
                f"ask about `{known}`, or declare another one for the {words[side]}",
            )  # fmt: skip

    def unaligned(self, place: nodes.Place, message: str) -> NoReturn:
        """Fail for want of an alignment."""
        place.fail(
            "E126", f"{message}; `@keys({self.name})` does not say how the sequences lie",
            f"if queries are the last tokens of `{self.name}`, write "
            f"`@keys({self.name}, bottom_right)`; if the first ones, `top_left`",
        )  # fmt: skip


def _is_layout(segment: nodes.Segment) -> bool:
    """Return whether a segment is made of parts of a layout."""
    match segment:
        case nodes.Laid(statement):
            return isinstance(statement.source, ast.Layout)
        case nodes.Chosen(_, inner) | nodes.Filtered(inner):
            return _is_layout(inner)
        case nodes.Union(segments):
            return all(map(_is_layout, segments))
        case nodes.Tiles(_, parent):
            return parent is not None and _is_layout(parent)


def _places(number: nodes.Number) -> set[nodes.Side]:
    """Return the sides whose positions a number is computed from; borders are positions."""
    match number:
        case nodes.Arithmetic("*" | "//" | "%"):  # no place any more
            return set()
        case nodes.Pos(side):
            return {side}
        case nodes.Lookup(_, "start" | "end", at):
            return _places(at)
        case nodes.Arithmetic(_, left, right):
            return _places(left) | _places(right)
    return set()


Reader: TypeAlias = ast.Layout | ast.Columns | nodes.TokenColumn | nodes.RowColumn


def column_readers(*roots: nodes.Node) -> Iterator[tuple[str, Reader]]:
    """Yield every column that programs read, with the node or layout that reads it."""
    for node in nodes.walk(*roots):
        match node:
            case nodes.RowColumn(name) | nodes.TokenColumn(_, name):
                yield name, node
    for statement in laid_statements(*roots):
        if isinstance(statement.source, ast.Layout):
            for column in layout_columns(statement.source):
                yield column, statement.source
        elif isinstance(statement.source, ast.Columns):
            yield statement.source.column.text, statement.source


def listing_columns(*roots: nodes.Node) -> frozenset[str]:
    """Return the columns that list instances: of layouts and of spans, not a value per token."""
    return frozenset(
        name for name, reader in column_readers(*roots)
        if isinstance(reader, ast.Layout)
        or (isinstance(reader, ast.Columns) and reader.kind.text == "spans")
    )  # fmt: skip


def key_columns(keys: KeySequence | None) -> frozenset[str]:
    """Return the columns that say how many keys there are."""
    if keys is None or not isinstance(keys.statement.source, ast.Layout):
        return frozenset()
    return frozenset(layout_columns(keys.statement.source))


def laid_statements(*roots: nodes.Node) -> tuple[ast.Segment, ...]:
    """Return the segment statements that programs lay out, each once."""
    laid = (node.statement for node in nodes.walk(*roots) if isinstance(node, nodes.Laid))
    return tuple({id(statement): statement for statement in laid}.values())


# Rows of a data set share their layouts, and each row asks again.
@lru_cache(1024)
def reads_length(layout: ast.Layout) -> bool:
    """Return whether a layout depends on the sample's length: by `len` or by `[..]`."""
    return any(
        isinstance(node, ast.Leaf) and (node.length is None or ast.Name("len") in walk(node.length))
        for node in walk(layout)
    )


# Every `paths` and `q.path` of a text asks it of all layouts.
@lru_cache(1024)
def has_branches(layout: ast.Layout) -> bool:
    """Return whether parts of a layout go on from the same place."""
    return any(isinstance(node, ast.Leaf | ast.Group) and node.is_branch for node in walk(layout))


@lru_cache(1024)
def has_joins(layout: ast.Layout) -> bool:
    """Return whether parts of a layout go on from all that is in front of them."""
    return any(isinstance(node, ast.Leaf | ast.Group) and node.is_join for node in walk(layout))


def fork_columns(layout: ast.Layout) -> tuple[str, ...]:
    """Return the columns behind `from token`, which hold tokens and -1."""
    parts = (node for node in walk(layout) if isinstance(node, ast.Leaf | ast.Group))
    return tuple(p.parents.text for p in parts if p.parents is not None and p.is_forked)


def parent_columns(layout: ast.Layout) -> tuple[str, ...]:
    """Return the columns behind `from`: numbers of branches or tokens and -1, not lengths."""
    parts = (node for node in walk(layout) if isinstance(node, ast.Leaf | ast.Group))
    return tuple(part.parents.text for part in parts if part.parents is not None)


@lru_cache(1024)
def layout_columns(layout: ast.Layout | ast.Group) -> tuple[str, ...]:
    """Return the columns that a layout, or a group of one, reads; in the order of the text."""
    names = (node.text for node in walk(layout.parts) if isinstance(node, ast.Name))
    return tuple(dict.fromkeys(name for name in names if name != "len"))


def column_depths(layout: ast.Layout) -> dict[str, int]:
    """Return the depth of the lists of each column of a layout.

    >>> from dcp_dsl.syntax.parser import parse
    >>> layout = parse("segment p = doc(head[h] body[b]*)* tail[t]").statements[0].source
    >>> column_depths(layout)
    {'h': 1, 'b': 2, 't': 0}
    """
    found: dict[str, int] = {}
    for part, _, depth, _ in walk_parts(layout.parts):
        if isinstance(part, ast.Leaf) and part.length is not None:
            found |= dict.fromkeys(layout_columns(ast.Layout((part,))), depth + part.is_repeated)
        if part.parents is not None:
            found[part.parents.text] = depth + 1
    return found


_NODE = TypeVar("_NODE", bound=nodes.Node)


def substitute(node: _NODE, given: Mapping[str, nodes.Node]) -> _NODE:
    """Return a program with values for its free parameters; unchanged nodes are shared.

    Masks and positions are read in the coordinates of the place where they are put; lengths and
    integers keep the coordinates of the frame around the whole program.
    """
    return cast("_NODE", _Substitution(given).put(node, 0))


@dataclass(frozen=True, slots=True)
class _Substitution:
    """Values, and the nodes rewritten with them so far, by how many frames are around them."""

    given: Mapping[str, nodes.Node]
    known: dict[tuple[nodes.Node, int], nodes.Node] = field(default_factory=dict)

    def put(self, node: nodes.Node, depth: int) -> nodes.Node:
        """Rewrite a node with so many frames around it."""
        key = node, depth
        if key not in self.known:
            self.known[key] = self._put(node, depth)
        return self.known[key]

    def _put(self, node: nodes.Node, depth: int) -> nodes.Node:
        match node:
            case nodes.Free(name, kind):  # `LOST`, a node with an error, stays
                value = self.given.get(name, node)
                return _outside(depth, value) if kind in ("tokens", "int") else value
            case nodes.Outside(levels, value):
                return _outside(levels, self.put(value, depth - levels))
        changed: dict[str, object] = {}
        # slots of the class itself: `place`, a slot of `Node`, is not among them
        for name in type(node).__slots__:
            old = getattr(node, name)
            if isinstance(old, nodes.Node):
                # The body of a `Per` alone lies one frame further in.
                new = self.put(old, depth + (name == "body"))
                if new is not old:
                    changed[name] = new
            elif type(old) is tuple:
                items = tuple(self.put(item, depth) for item in old)
                if any(a is not b for a, b in zip(items, old, strict=True)):
                    changed[name] = items
        result = replace(node, **changed) if changed else node  # type: ignore[arg-type]  # nodes
        match result:
            # `-w` with a value for w is a constant, as `-4` is one where it is written.
            case nodes.Arithmetic("*", nodes.Const(-1), nodes.Const() as number):
                return nodes.negated(number)
        return result


def condition_at(node: nodes.Filtered, side: nodes.Side) -> nodes.Mask:
    """Return the condition of a filtered segment for the instance of a token."""
    reads = [each for each in nodes.walk(node.condition) if isinstance(each, nodes.Pos)]
    moved: dict[tuple[nodes.Node, int], nodes.Node] = {
        (at, 0): nodes.Pos(side, place=at.place) for at in reads
    }
    return cast("nodes.Mask", _Substitution({}, moved).put(node.condition, 0))


def _outside(levels: int, node: nodes.Node) -> nodes.Node:
    """Return a number of a frame so many levels further out.

    The number is not an `Outside` node yet: an argument stays a parameter until it is put in, once,
    through all frames between the call and the place.
    """
    # Constants and columns of the row are the same in all frames.
    if levels == 0 or isinstance(node, nodes.Const | nodes.RowColumn | nodes.Free):
        return node
    assert not isinstance(node, nodes.Outside), "a number is put in once"
    return nodes.Outside(levels, cast("nodes.Number", node), place=node.place)


_LEVELS = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}  # how tightly each binds
_ATTRIBUTE = 3  # `(q + 1).doc` needs brackets around any arithmetic


def show_mask(node: nodes.Mask) -> str:
    """Return a core program as text.

    `frame S` stands for the instances of S, with coordinates of their own; `out(n, x)` is the
    number x as it is n frames further out.
    """
    return "\n".join(_lines(node, ""))


def _lines(node: nodes.Mask, indent: str) -> Iterator[str]:
    items: tuple[nodes.Mask, ...] = ()
    match node:
        case nodes.And(items) | nodes.Or(items):
            head = type(node).__name__.lower()
        case nodes.Not(item):
            head, items = "not", (item,)
        case nodes.Per(segment, body):
            head, items = f"frame {show_segment(segment)}", (body,)
        case _:
            head = _atom(node)
    yield indent + head
    for item in items:
        yield from _lines(item, indent + "  ")


def _atom(node: nodes.Mask) -> str:
    match node:
        case nodes.Truth(flag):
            return str(flag).lower()
        case nodes.Compare(op, left, right):
            return f"{show_number(left)} {op} {show_number(right)}"
        case nodes.Within(segment, at):
            return f"{show_number(at)} in {show_segment(segment)}"
        case nodes.Listed(item, table, at):
            return f"{show_number(item)} in {show_number(nodes.Lookup(table, 'number', at))}"
        case nodes.Same(segment):
            return f"same({show_segment(segment)})"
        case nodes.Along(layout):
            return f"paths({layout.name})"
        case nodes.Free(name):
            return name
    raise AssertionError(f"has parts: {type(node).__name__}")


def show_number(node: nodes.Number, level: int = 0) -> str:
    """Return a number as text; `level` is the precedence of the text around it."""
    match node:
        case nodes.Const(value):
            return format_number(value)
        case nodes.Pos(text) | nodes.Free(text):
            return text
        case nodes.Length():
            return "len"
        case nodes.Count(segment):
            return f"{show_segment(segment)}.count"
        case nodes.RowColumn(name):
            return f"row.{column_name(name)}"
        case nodes.Lookup(table, fact, at):
            read = f"{show_number(at, _ATTRIBUTE)}.{show_segment(table)}"
            return read if fact == "number" else f"{read}.{fact}"
        case nodes.Outside(levels, value):
            return f"out({levels}, {show_number(value)})"
        case nodes.Arithmetic(op, left, right) if op in _LEVELS:
            tight = _LEVELS[op]
            # Operators group from the left, so the right side binds more tightly.
            text = f"{show_number(left, tight)} {op} {show_number(right, tight + 1)}"
            return f"({text})" if tight < level else text
        case nodes.Rising(name, inner):
            return f"{name}({show_number(inner)})"
    return f"{node.op}({show_number(node.left)}, {show_number(node.right)})"


def show_segment(node: nodes.Segment | nodes.TokenColumn) -> str:
    """Return a segment, or a column, as text."""
    match node:
        case nodes.TokenColumn(name, segment=segment):
            own = column_name(name)
            return own if segment is None else f"{show_segment(segment)}.{own}"
        case nodes.Laid(_, name):
            return name
        case nodes.Tiles(size, parent):
            inside = "" if parent is None else f", {show_segment(parent)}"
            return f"every({show_number(size)}{inside})"
        case nodes.Chosen(is_first, segment, count):
            word = "first" if is_first else "last"
            return f"{word}({show_segment(segment)}, {show_number(count)})"
        case nodes.Filtered(segment, condition):
            kept = " ".join(line.strip() for line in show_mask(condition).splitlines())
            return f"filter({show_segment(segment)}, {kept})"
        case nodes.Union(segments):
            return f"union({', '.join(map(show_segment, segments))})"
