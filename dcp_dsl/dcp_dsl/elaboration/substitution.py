"""Put values in the place of the free parameters of a core program: that is what a call means."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from dcp_dsl.elaboration import nodes

_NODE = TypeVar("_NODE", bound=nodes.Node)


def substitute(node: _NODE, given: Mapping[str, nodes.Node]) -> _NODE:
    """Return a program with values for its free parameters; what does not change is shared.

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
            case nodes.Free(name, kind):  # what has an error, `LOST`, stays
                value = self.given.get(name, node)
                return _outside(depth, value) if kind in ("tokens", "int") else value
            case nodes.Outside(levels, value):
                return _outside(levels, self.put(value, depth - levels))
        changed: dict[str, object] = {}
        for name in type(node).__slots__:
            old = getattr(node, name)
            if isinstance(old, nodes.Node):
                new = self.put(old, depth + (name == "body"))
                if new is not old:
                    changed[name] = new
            elif type(old) is tuple:
                items = tuple(self.put(item, depth) for item in old)
                if any(a is not b for a, b in zip(items, old, strict=True)):
                    changed[name] = items
        result = replace(node, **changed) if changed else node  # type: ignore[arg-type]  # nodes
        match result:
            case nodes.Arithmetic("*", nodes.Const(-1), nodes.Const() as number):
                return nodes.negated(number)
        return result


def _outside(levels: int, node: nodes.Node) -> nodes.Node:
    """Return a number of a frame so many levels further out."""
    if levels == 0 or isinstance(node, nodes.Const | nodes.RowColumn | nodes.Free):
        return node
    if isinstance(node, nodes.Outside):
        return nodes.Outside(levels + node.levels, node.value, place=node.place)
    return nodes.Outside(levels, cast("nodes.Number", node), place=node.place)
