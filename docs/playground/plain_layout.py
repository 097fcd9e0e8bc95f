"""Lay a sample out: where the instances of its segments begin and end, also inside `per`.

Written from the language's pages alone, without numpy. The second oracle of the tests reads it as
well: it judges the product's layouts, so neither may take anything from `dcp_dsl`.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Node: TypeAlias = tuple[Any, ...]  # of a syntax tree: its kind, then what belongs to it
ARITHMETIC = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


class Refused(Exception):
    """The sample does not fit the layout."""


def border(tokens: list[int]) -> tuple[int, int]:
    """Return the first token and the one past the last."""
    return min(tokens), max(tokens) + 1


@dataclass(eq=False)
class Instance:
    """Tokens [start, end), numbered within the parent; `within` holds the parts around it."""

    start: int
    end: int
    parent: "Instance | None" = None
    within: tuple["Instance", ...] = ()
    layout: "Layout | None" = None
    tokens: frozenset[int] | None = None  # those of an id that comes back after others
    whole: "Instance | None" = None  # what this one is a cut of
    number: int = 0
    count: int = 0

    def cut(self, start: int, end: int) -> "Instance":
        """Return the part of it within the tokens [start, end)."""
        low, high = max(self.start, start), min(self.end, end)
        if self.tokens:
            low, high = border([token for token in self.tokens if low <= token < high])
        return replace(self, start=low, end=max(low, high), whole=self.whole or self)

    def covers(self, token: int) -> bool:
        """Decide whether a token is one of its own."""
        inside = self.start <= token < self.end
        return inside and (self.tokens is None or token in self.tokens)

    def lies_in(self, cell: "Instance", start: int, end: int) -> bool:
        """Decide it for a cell that is cut out of the tokens [start, end)."""
        if self.tokens:
            return any(cell.start <= token < cell.end for token in self.tokens)
        if self.start < self.end:
            return self.start < cell.end and cell.start < self.end
        home, outer = self.whole or self, cell.whole or cell
        if cell.layout is not None and cell.layout is self.layout:
            return outer is home or outer in home.within
        if cell.layout is None and cell.parent:  # a tile lies inside what it is cut from
            if not self.lies_in(cell.parent, start, end):
                return False
            start, end = cell.parent.start, cell.parent.end
        token = min(max(self.start, start), end - 1)
        return cell.start <= token < cell.end


class Layout:
    """Lay the parts of a layout out one behind the other; `found` has the instances by name."""

    is_draft = False  # the rest has no tokens yet, so that tokens are not those of the sample

    def __init__(
        self, parts: list[Node], name: str, columns: dict[str, Any], n: int | None
    ) -> None:
        self.columns, self.n, self.top, self.parts = columns, n, name, parts
        self.is_draft = n is not None and has_rest(parts)
        self.lay_out(rest=0)
        self.is_draft = False
        if n is None:  # its columns alone say how long it is
            return
        if has_rest(parts):
            self.lay_out(rest=n - self.at)
        if self.at != n:
            raise Refused(f"the layout has {self.at} tokens, the sample {n}")

    def lay_out(self, rest: int) -> None:
        """Place all parts; `rest` is the length of the part that takes what is left."""
        self.at, self.rest = 0, rest
        self.placed: list[Instance] = []  # in the order in which the layout writes them
        self.paths: list[list[int]] = []  # of each token those before it on its path, and itself
        self.places: list[int] = []  # of each token how many stand before it on its longest path
        self.place_on_path: list[int] = []  # the tokens of the path so far
        names = [self.top, *part_names(self.parts)]
        self.found: dict[str, list[Instance]] = {name: [] for name in names}
        self.walk(self.parts, (), (), None)

    def walk(self, parts: list[Node], path: tuple[int, ...], within: Any, parent: Any) -> None:
        """Place parts and their repetitions, at `path` among those of the groups around them."""
        begin, base = self.at, self.place_on_path
        for part in parts:
            if part[7]:
                self.place_on_path = [*base, *range(begin, self.at)]
            paths = [(*path, i) for i in range(self.repeats(part, path))] if part[3] else [path]
            forks = self.element(part[5], path) if part[5] else [-1] * len(paths)
            if len(forks) != len(paths):
                raise Refused("as many parents as branches")
            here, ends = self.place_on_path, []
            for inner, fork in zip(paths, forks, strict=True):
                if part[6]:
                    self.place_on_path = here if fork == -1 else self.path_to(fork, begin)
                elif part[4]:
                    if not -1 <= fork < len(ends):
                        raise Refused("a parent comes before its branches")
                    self.place_on_path = here if fork == -1 else ends[fork]
                self.place(part, inner, within, parent)
                ends.append(self.place_on_path)
            if part[4]:
                self.place_on_path = here

    def path_to(self, token: int, begin: int) -> list[int]:
        """Return the path of an earlier token of the same repetition of the group."""
        if self.is_draft:
            return []
        if not begin <= token < self.at:
            raise Refused("a branch goes on from an earlier token")
        return self.paths[token]

    def place(self, part: Node, path: tuple[int, ...], within: Any, parent: Any) -> None:
        """Place one part: its instance, then what is inside."""
        kind, name, content, *_ = part
        instance = Instance(self.at, self.at, parent, within, self)
        self.placed.append(instance)
        for each in {name, None if within else self.top} - {None}:
            self.found[each].append(instance)
        if kind == "group":
            self.walk(content, path, (*within, instance), instance if name else parent)
        else:
            length = self.rest if content is None else self.length(content, path)
            if length < 0:
                raise Refused("a length is negative")
            for token in range(self.at, self.at + length):
                before = self.place_on_path
                self.places.append(max((self.places[each] + 1 for each in before), default=0))
                self.place_on_path = [*before, token]
                self.paths.append(self.place_on_path)
            self.at += length
        instance.end = self.at

    def repeats(self, part: Node, path: tuple[int, ...]) -> int:
        """Count the repetitions of a part by its columns."""
        counts = {len(self.element(name, path)) for name in columns_of([part])}
        if len(counts) != 1:
            raise Refused("the columns of a group differ in length")
        return counts.pop()

    def element(self, name: str, path: tuple[int, ...]) -> Any:
        """Return the element of a column that belongs to a repetition."""
        value = self.columns[name]
        for i in path:
            value = value[i]
        return value

    def length(self, node: Node, path: tuple[int, ...]) -> int:
        """Evaluate the length of a part."""
        match node:
            case ("number", value):
                return int(value)
            case ("name", "len"):
                assert self.n is not None, "keys are laid out by columns"
                return self.n
            case ("name", name):
                return int(self.element(name, path))
            case ("arithmetic", sign, left, right):
                return ARITHMETIC[sign](self.length(left, path), self.length(right, path))
        raise AssertionError(node)


def part_names(parts: list[Node]) -> list[str]:
    """Return the names of the parts of a layout, those of groups before what is inside."""
    return [
        name
        for kind, own, inside, *_ in parts
        for name in [own, *(part_names(inside) if kind == "group" else [])]
        if name
    ]


def has_rest(parts: list[Node]) -> bool:
    """Decide whether a part takes what the others leave."""
    return any(kind == "leaf" and content is None for kind, _, content, *_ in parts)


def columns_of(node: Any) -> set[str]:
    """Return the columns that the lengths below a part of a layout read."""
    if isinstance(node, list):
        parents = {part[5] for part in node if part[5]}
        return parents.union(*(columns_of(part[2]) for part in node))
    if node is None or node[0] == "number":
        return set()
    if node[0] == "name":
        return {node[1]} - {"len"}
    return columns_of(node[2]) | columns_of(node[3])


def runs(values: list[Any]) -> list[tuple[Any, int, int]]:
    """Split into runs of equal values: `(value, start, end)`."""
    borders = [i for i in range(len(values)) if i == 0 or values[i] != values[i - 1]]
    return [(values[a], a, b) for a, b in zip(borders, [*borders[1:], len(values)], strict=True)]


def spelled_out(source: Node, name: str, column: list[Any]) -> dict[str, list[Instance]]:
    """Return the instances of a column's segments by name."""
    kind, _, parts = source
    match kind:
        case "spans":
            return {name: [Instance(start, end) for start, end in sorted(column)]}
        case "flags":
            return {name: [Instance(start, end) for value, start, end in runs(column) if value]}
        case "positions":
            jumps = [value - i for i, value in enumerate(column)]
            return {name: [Instance(start, end) for _, start, end in runs(jumps)]}
    tokens = {id_: [i for i, v in enumerate(column) if v == id_] for id_ in set(column) - {-1}}
    found = {name: [Instance(*border(t), tokens=frozenset(t)) for t in tokens.values()]}
    for number, part in enumerate(parts):
        found[part] = [Instance(a, b) for value, a, b in runs(column) if value == number]
    return found


def numbered(instances: list[Instance]) -> list[Instance]:
    """Number the instances from 0 within each parent."""
    counts: dict[int, int] = {}
    homes = [id(each.parent and (each.parent.whole or each.parent)) for each in instances]
    numbers = []
    for home in homes:
        numbers.append(counts.get(home, 0))
        counts[home] = numbers[-1] + 1
    return [
        replace(each, number=number, count=counts[home], whole=each.whole or each)
        for each, home, number in zip(instances, homes, numbers, strict=True)
    ]


class Frame:
    """The sample, or inside `per` one instance of it: positions begin at its start."""

    def __init__(self, columns: dict[str, Any], start: int, end: int) -> None:
        self.columns, self.start, self.end = columns, start, end
        self.outer: Frame | None = None
        self.cell: Instance | None = None
        self.known: dict[Any, list[Instance]] = {}
        self.statements: dict[Any, dict[str, list[Instance]]] = {}
        self.layouts: dict[Any, Layout] = {}
        self.inner: dict[tuple[int, int], Frame] = {}
        self.picked_before: dict[Any, frozenset[int]] = {}

    def inside(self, cell: Instance) -> "Frame":
        """Return the frame within an instance."""
        key = (id(cell.whole), cell.start)
        if key not in self.inner:
            frame = Frame(self.columns, cell.start, cell.end)
            frame.outer, frame.cell = self, cell
            self.inner[key] = frame
        return self.inner[key]

    def instances(self, segment: Node) -> list[Instance]:
        """Return the numbered instances of a segment; each segment is found once."""
        if segment not in self.known:
            self.known[segment] = self.find(segment)
        return self.known[segment]

    def find(self, segment: Node) -> list[Instance]:
        """Find the numbered instances of a segment."""
        match segment:
            case ("first", base, count):
                return numbered([e for e in self.instances(base) if e.number < count])
            case ("last", base, count):
                return numbered([e for e in self.instances(base) if e.number >= e.count - count])
            case ("every", size, base):
                return numbered(self.tiles(size, base))
            case ("picked", base, chosen):
                return self.cut_from_outside(segment, lambda: self.picked(base, chosen))
            case ("union", *bases):
                return self.cut_from_outside(segment, lambda: self.union(bases))
            case ("file", module, name):
                return numbered(self.written(module, name))
        raise AssertionError(segment)

    def tiles(self, size: int, base: Node | None) -> list[Instance]:
        """Cut the frame, or each instance of a segment, into tiles."""
        cells = self.instances(base) if base else [Instance(self.start, self.end)]
        return [
            Instance(start, min(start + size, cell.end), cell if base else None)
            for cell in cells
            for start in range(cell.start, cell.end, size)
        ]

    def cut_from_outside(self, segment: Node, find: Callable[[], list[Instance]]) -> list[Instance]:
        """Return instances that are found in the whole sample; inside `per` what is left."""
        return numbered(self.left_of(segment) if self.outer else find())

    def picked(self, base: Node, chosen: frozenset[int]) -> list[Instance]:
        """Return some instances of a segment, by their places among all of them."""
        return [e for i, e in enumerate(self.instances(base)) if i in chosen]

    def union(self, bases: list[Node]) -> list[Instance]:
        """Return the instances of several segments in the order of their tokens."""
        found = [each for base in bases for each in self.instances(base)]
        tokens = [token for each in found for token in range(each.start, each.end)]
        if len(set(tokens)) < len(tokens):
            raise Refused("segments with common tokens")
        layouts = {id(each.layout) for each in found}
        if len(layouts) == 1 and found[0].layout is not None:
            steps = {id(e): i for i, e in enumerate(found[0].layout.placed)}
            found.sort(key=lambda each: steps[id(each.whole)])
        else:
            found.sort(key=lambda each: (each.start, each.end))
        return [replace(each, parent=None) for each in found]

    def left_of(self, segment: Node) -> list[Instance]:
        """Return what is left in the frame of the instances of the frame around."""
        assert self.outer, "inside `per`"
        assert self.cell, "inside `per`"
        outer, cell = self.outer, self.cell
        found = [e for e in outer.instances(segment) if e.lies_in(cell, outer.start, outer.end)]
        return [each.cut(self.start, self.end) for each in found]

    def written(self, file: Any, name: str) -> list[Instance]:
        """Return the instances of a name of a file, within the frame."""
        if self.outer:
            return self.left_of(("file", file, name))
        statement = file.module.names[name]
        if (file, statement) not in self.statements:
            source = file.module.segments[statement]
            if source[0] == "layout":
                laid = Layout(source[1], statement, self.columns, self.end)
                self.layouts[file, statement] = laid
                self.statements[file, statement] = laid.found
            else:
                column = self.columns[source[1]]
                self.statements[file, statement] = spelled_out(source, statement, column)
        return self.statements[file, statement][name]

    def path(self, file: Any, name: str, token: int) -> list[int]:
        """Return the tokens from the root of a layout to a token, all of the whole sample."""
        if self.outer:
            return self.outer.path(file, name, token)
        self.written(file, name)
        return self.layouts[file, file.module.names[name]].paths[token]

    def place_on_path(self, file: Any, name: str, place: int) -> int:
        """Return how many tokens stand before a place on its path, from the frame's start on."""
        root = self
        while root.outer:
            root = root.outer
        root.written(file, name)
        places = root.layouts[file, file.module.names[name]].places
        return places[self.start + place] - places[self.start]

    def index_of(self, segment: Node, position: int | None) -> int | None:
        """Return which of all instances of the sample a position lies in."""
        if position is None or not 0 <= position < self.end - self.start:
            return None
        root = self
        while root.outer:
            root = root.outer
        found = enumerate(root.instances(segment))
        return next((i for i, each in found if each.covers(self.start + position)), None)

    def at(self, segment: Node, position: int | None) -> Instance | None:
        """Return the instance that a position lies in."""
        if position is None or not 0 <= position < self.end - self.start:
            return None
        token = self.start + position
        return next((e for e in self.instances(segment) if e.covers(token)), None)
