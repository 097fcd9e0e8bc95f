"""Evaluate a mask of a .dcpm text token pair by token pair, as docs/language describes it.

This oracle shares no code with the compiler: it has its own parser, its own layouts and its own
evaluator. It is slow on purpose, and it reads correct texts only.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from plain_layout import ARITHMETIC, Frame, Layout, Refused
from second_oracle_parser import Module, Node, Parser

import dcp_grammar

LIBRARY = Path(dcp_grammar.__file__).parent / "masks"
COMPARE = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
NUMBER_FUNCTIONS = {
    "abs": abs, "min": min, "max": max, "clamp": lambda x, low, high: min(max(x, low), high),
    "exp2": lambda x: 2**x if 0 <= x <= 30 else None,
    "log2": lambda x: max((i for i in range(64) if 2**i <= x), default=None),
}  # fmt: skip


@cache
def library(name: str) -> Module:
    return Parser((LIBRARY / f"{name}.dcpm").read_text()).module()


@dataclass(frozen=True)
class FileKey:
    """A file as a key: two files are the same only if they are one object."""

    name: str
    module: Module = field(compare=False)
    others: "dict[str, FileKey]" = field(default_factory=dict, compare=False)

    def home(self, name: str) -> "FileKey":
        """Return the file that defines a name."""
        source = self.module.imports.get(name)
        return self.others[source] if source else self

    def tree(self) -> "tuple[FileKey, str]":
        """Return the layout with branches, its own or imported."""
        names = [*self.module.segments, *self.module.imports]
        found = {
            (home, home.module.names[name])
            for name in names
            if name in (home := self.home(name)).module.names
            and has_branch(home.module.segments[home.module.names[name]])
        }
        (only,) = found
        return only


@dataclass(frozen=True)
class Scope:
    """The meaning of names at a place of the text."""

    file: FileKey
    names: dict[str, tuple[Node, "Scope"]]


class KeyPlace(int):
    """A position in a sequence of keys that is not that of the queries."""

    def __add__(self, other: int) -> "KeyPlace":
        return KeyPlace(int(self) + other)

    __radd__ = __add__

    def __sub__(self, other: int) -> "KeyPlace":
        return KeyPlace(int(self) - other)


@dataclass(frozen=True)
class Pair:
    """A query and a key in the coordinates of a frame; of two, where keys have their own."""

    frame: Frame
    q: int
    k: int
    keys: "tuple[Frame, str] | None" = None

    def of(self, place: Any) -> Frame:
        """Return the frame that a position belongs to."""
        return self.keys[0] if self.keys and isinstance(place, KeyPlace) else self.frame

    def whose(self, segment: Node) -> Frame:
        """Return the frame that a segment belongs to."""
        while segment[0] != "file":
            segment = segment[2] if segment[0] == "every" else segment[1]
        _, file, name = segment
        is_key = self.keys and file.module.names[name] == self.keys[1]
        return self.keys[0] if self.keys and is_key else self.frame


FIELDS = ("start", "end", "len", "pos", "count", "path")


def has_branch(source: Node) -> bool:
    def look(parts: list[Node]) -> bool:
        return any(part[4] or (part[0] == "group" and look(part[2])) for part in parts)

    return source[0] == "layout" and look(source[1])


def all_known(*values: Any) -> bool:
    return all(value is not None for value in values)


class Evaluator:
    """Decide masks for one pair; a name means what stands behind it, at every place."""

    def value(self, node: Node, scope: Scope, pair: Pair) -> Any:
        return getattr(self, f"_{node[0]}")(scope, pair, *node[1:])

    def _number(self, scope: Scope, pair: Pair, value: Any) -> Any:
        return value

    def _or(self, scope: Scope, pair: Pair, left: Node, right: Node) -> bool:
        return self.value(left, scope, pair) or self.value(right, scope, pair)

    def _and(self, scope: Scope, pair: Pair, left: Node, right: Node) -> bool:
        return self.value(left, scope, pair) and self.value(right, scope, pair)

    def _not(self, scope: Scope, pair: Pair, node: Node) -> bool:
        return not self.value(node, scope, pair)

    def _per(self, scope: Scope, pair: Pair, node: Node, name: str) -> bool:
        segment = self.segment(("name", name), scope, pair)
        cell = pair.frame.at(segment, pair.q)
        if cell is None or cell is not pair.frame.at(segment, pair.k):
            return False
        moved = cell.start - pair.frame.start
        inner = Pair(pair.frame.inside(cell), pair.q - moved, pair.k - moved)
        return bool(self.value(node, scope, inner))

    def _chain(self, scope: Scope, pair: Pair, links: list[tuple[str, Node, Node]]) -> bool:
        for sign, left, right in links:
            a, b = self.value(left, scope, pair), self.value(right, scope, pair)
            if not all_known(a, b) or not COMPARE[sign](a, b):
                return False
        return True

    def _in(self, scope: Scope, pair: Pair, position: Node, segment: Node) -> bool:
        place = self.value(position, scope, pair)
        if segment[0] == "attribute":
            listed = self.value(segment, scope, pair)
            return all_known(place, listed) and place >= 0 and place in listed
        if parts := self.either(segment, scope):  # in one of several, which may share tokens
            return any(self._in(scope, pair, position, part) for part in parts)
        return pair.of(place).at(self.segment(segment, scope, pair), place) is not None

    def _arithmetic(self, scope: Scope, pair: Pair, sign: str, left: Node, right: Node) -> Any:
        a, b = self.value(left, scope, pair), self.value(right, scope, pair)
        if not all_known(a, b) or (sign in ("//", "%") and b == 0):
            return None
        return ARITHMETIC[sign](a, b)

    def _name(self, scope: Scope, pair: Pair, name: str) -> Any:
        match name:
            case "q":
                return pair.q
            case "k":
                return pair.k
            case "len":
                return pair.frame.end - pair.frame.start
        if name in scope.names:
            node, home = scope.names[name]
            return self.value(node, home, pair)
        if name == "paths":
            return self.on_path(scope.file.tree(), pair)
        return self._call(scope, pair, name, [])

    def on_path(self, tree: "tuple[FileKey, str]", pair: Pair) -> bool:
        start = pair.frame.start
        return start + pair.k in pair.frame.path(*tree, start + pair.q)

    def place_on_path(self, tree: "tuple[FileKey, str]", pair: Pair, place: Any) -> int | None:
        frame = pair.frame
        if place is None or not 0 <= place < frame.end - frame.start:
            return None
        return frame.place_on_path(*tree, place)

    def _attribute(self, scope: Scope, pair: Pair, base: Node, name: str) -> Any:
        if base == ("name", "row"):
            return pair.frame.columns[name]
        if name == "count" and base[0] == "name":
            counted = self.segment(base, scope, pair)
            return len((pair.whose(counted) if pair.keys else pair.frame).instances(counted))
        owner = scope.file.home(name).module.owners.get(name)
        if owner and base[0] == "attribute" and base[2] == owner:
            place = self.value(base[1], scope, pair)
            key = self.segment(("name", owner), Scope(scope.file, {}), pair)
            at = pair.of(place).index_of(key, place)
            return None if at is None else pair.frame.columns[scope.file.module.tokens[name]][at]
        if name in FIELDS and base[0] == "attribute" and base[2] not in FIELDS:
            return self.field(scope, pair, base, name)
        place = self.value(base, scope, pair)
        if name == "path":
            return self.place_on_path(scope.file.tree(), pair, place)
        tokens = scope.file.home(name).module.tokens
        if name in tokens and name not in scope.names:
            frame = pair.of(place)
            inside = place is not None and 0 <= place < frame.end - frame.start
            column = frame.columns[tokens[name]]
            return column[frame.start + place] if inside else None
        instance = pair.of(place).at(self.segment(("name", name), scope, pair), place)
        return instance and instance.number

    def field(self, scope: Scope, pair: Pair, base: Node, name: str) -> int | None:
        place = self.value(base[1], scope, pair)
        instance = pair.of(place).at(self.segment(("name", base[2]), scope, pair), place)
        if instance is None:
            return None
        if name == "path":
            return self.place_on_path((scope.file.home(base[2]), base[2]), pair, place)
        start = type(place)(instance.start - pair.frame.start)  # borders are positions, too
        length = instance.end - instance.start
        return {
            "start": start,
            "end": start + length,
            "len": length,
            "pos": place - start,
            "count": instance.count,
        }[name]

    def segment(self, node: Node, scope: Scope, pair: Pair) -> Node:
        """Return the segment that an expression names, as a key of a frame."""
        if node[0] == "or":  # `(a or b)`
            return ("union", *(self.segment(part, scope, pair) for part in node[1:]))
        if node[0] == "call":
            base = self.segment(node[2][0][1], scope, pair)
            count = self.value(node[2][1][1], scope, pair) if len(node[2]) > 1 else 1
            return (node[1], base, count)
        if node[1] in scope.names:
            source, scope = scope.names[node[1]]
        else:
            scope = Scope(scope.file.home(node[1]), {})
            module = scope.file.module
            source = module.segments[module.names[node[1]]]
        if source[0] == "filter":
            base = self.segment(("name", source[1]), scope, pair)
            return ("picked", base, self.fulfilling(scope.file, source, base, pair))
        if source[0] == "union":
            return ("union", *(self.segment(("name", name), scope, pair) for name in source[1:]))
        if source[0] != "every":
            return ("file", scope.file, node[1])
        base = self.segment(("name", source[2]), scope, pair) if source[2] else None
        return ("every", self.value(source[1], scope, pair), base)

    def either(self, segment: Node, scope: Scope) -> list[Node]:
        """Return the segments that are asked about as one; none where there is a single one."""
        if segment[0] == "or":
            return list(segment[1:])
        if segment[0] == "name" and segment[1] not in scope.names:
            module = scope.file.home(segment[1]).module
            source = module.segments.get(module.names.get(segment[1], ""), ("",))
            if source[0] == "union":
                return [("name", name) for name in source[1:]]
        return []

    def fulfilling(self, file: FileKey, source: Node, base: Node, pair: Pair) -> frozenset[int]:
        """Return which instances of the whole sample fulfil the condition of a filtered segment."""
        root = pair.whose(base) if pair.keys else pair.frame
        while root.outer:
            root = root.outer
        known = (id(file), source[1], id(source))
        if known not in root.picked_before:
            module, found = file.module, set()
            own = [name for name, owner in module.owners.items() if owner == source[1]]
            for i in range(len(root.instances(base))):
                values = {n: ("number", root.columns[module.tokens[n]][i]) for n in own}
                names = {n: (value, Scope(file, {})) for n, value in values.items()}
                if self.value(source[2], Scope(file, names), Pair(root, 0, 0)):
                    found.add(i)
            root.picked_before[known] = frozenset(found)
        return root.picked_before[known]

    def _call(self, scope: Scope, pair: Pair, name: str, arguments: list[Any]) -> Any:
        if name == "same" and (parts := self.either(arguments[0][1], scope)):
            return any(self._call(scope, pair, "same", [(None, part)]) for part in parts)
        if name == "same":
            segment = self.segment(arguments[0][1], scope, pair)
            cell = pair.frame.at(segment, pair.q)
            return cell is not None and cell is pair.frame.at(segment, pair.k)
        if name == "paths":
            segment = arguments[0][1][1]
            return self.on_path((scope.file.home(segment), segment), pair)
        if name in NUMBER_FUNCTIONS:
            values = [self.value(node, scope, pair) for _, node in arguments]
            found = NUMBER_FUNCTIONS[name](*values) if all_known(*values) else None
            is_place = found is not None and any(isinstance(value, KeyPlace) for value in values)
            return KeyPlace(found) if is_place else found
        if name in scope.names:
            (_, params, body), home = scope.names[name]
            given = {
                param: (node, scope) for param, (_, node) in zip(params, arguments, strict=True)
            }
            return self.value(body, Scope(home.file, home.names | given), pair)
        return self.mask(scope, pair, name, arguments)

    def mask(self, scope: Scope, pair: Pair, name: str, arguments: list[Any]) -> Any:
        home = scope.file.home(name)
        if name not in home.module.masks:
            home = FileKey(name, library(name))
        definition = home.module.masks[name]
        inner = Scope(home, {})
        names = [param for param, _, _ in definition.params]
        given = {
            name or param: (node, scope)
            for param, (name, node) in zip(names, arguments, strict=False)
        }
        for param, kind, default in definition.params:
            node, origin = given.get(param, (default, inner))
            if kind in ("tokens", "int"):  # they keep their value inside a `per`
                node = ("number", self.value(node, origin, pair))
            inner.names[param] = (node, origin)
        inner.names.update({each: (node, inner) for each, node in definition.where.items()})
        return self.value(definition.body, inner, pair)

    def _rules(self, scope: Scope, pair: Pair, rules: list[Any]) -> bool:
        return any(
            self.allows(scope, pair, subject, target)
            for subject, targets in rules
            if self._in(scope, pair, ("name", "q"), ("name", subject))
            for target in targets
        )

    def allows(self, scope: Scope, pair: Pair, subject: str, target: Any) -> bool:
        name, causally, within = target
        if causally and pair.k > pair.q:
            return False
        if within and abs(pair.q - pair.k) >= self.value(within, scope, pair):
            return False
        if name == "self":
            return bool(self._call(scope, pair, "same", [(None, ("name", subject))]))
        return name == "all" or self._in(scope, pair, ("name", "k"), ("name", name))


def dense(
    text: str, columns: dict[str, Any], n: int, imported: str = "", mask: str = "a"
) -> np.ndarray:
    """Return which query sees which key in a mask: `[n, n]` of bool, `[n, keys]` with `@keys`.

    Raises:
        Refused: if the columns do not fill the sample.
    """
    other = FileKey("lib.dcpm", Parser(imported).module())
    file = FileKey("", Parser(text).module(), {"lib.dcpm": other})
    frame, evaluator, call = Frame(columns, 0, n), Evaluator(), ("name", mask)
    size, keys = n, file.module.masks[mask].keys
    pair_at: Callable[[int, int], Pair | None] = partial(Pair, frame)
    if keys:
        size = Layout(file.module.segments[keys[0]][1], keys[0], columns, None).at
        pair_at = cross_pairs(columns, (n, size), keys)
    pairs = [
        (pair := pair_at(q, k)) is not None and bool(evaluator.value(call, Scope(file, {}), pair))
        for q in range(n)
        for k in range(size)
    ]
    return np.array(pairs, bool).reshape(n, size)


def cross_pairs(
    columns: dict[str, Any], shape: tuple[int, int], keys: list[str]
) -> Callable[[int, int], Pair | None]:
    """Return what makes pairs of a query and of a key of another sequence; None: sees nothing."""
    (queries, size), (name, *corner) = shape, keys
    own, other = Frame(columns, 0, queries), Frame(columns, 0, size)
    if not corner:
        return lambda q, k: Pair(own, q, KeyPlace(k), (other, name))
    if corner == ["top_left"] and queries > size:
        raise Refused("a query behind all keys")
    shift = size - queries if corner == ["bottom_right"] else 0
    return lambda q, k: Pair(other, q + shift, k) if q + shift >= 0 else None
