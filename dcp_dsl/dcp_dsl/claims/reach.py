"""Decide whether a mask stays within the window, or within the chunks, that a model's layer has.

A model counts tokens in a sequence of its own. In a packed sample such a sequence is a document, or
a path of a layout with branches, so the limits hold if they do in the row, or counted there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dcp_dsl.claims.alone import alone
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import has_branches
from dcp_dsl.forms.algebra import first_pair
from dcp_dsl.proof.proving import never
from dcp_dsl.syntax import ast


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """A mask beside a window and a chunk that it is to stay within.

    Attributes:
        outside: the pairs beyond the limits, for each way of counting: in the row first, then in
            its documents, or along its paths. The mask stays within if one of them has no pair.
        is_proved: whether one of them has no pair in any sample.
        is_causal: whether it is proved that no token sees a later one in any sample.
        advice: an expression over the names of the mask's text that stays within.

    >>> from dcp_dsl import Spec
    >>> near = Spec.from_text("mask near = causal and q - k < 4").mask("near")
    >>> Reach.of(near, window=4).is_proved
    True
    >>> reach = Reach.of(near, window=3)
    >>> reach.find_outside(Sample(length=9)), reach.advice
    ((3, 0), 'near and q - k < 3')
    """

    outside: tuple[Mask, ...]
    is_proved: bool
    is_causal: bool
    advice: str

    @classmethod
    def of(cls, mask: Mask, window: int | None = None, chunk: int | None = None) -> "Reach":
        """Try to prove for every sample that a mask stays within limits; some milliseconds.

        Args:
            mask: any mask of one sequence.
            window: a query may see its own token and so many less one before it.
            chunk: tokens of the tiles from the first token on, of which a query may see its own.
        """
        row = _limits(window, chunk)
        ways, place = {"": row}, ("", "")
        for node in nodes.walk(mask.core):
            for kind, name, way in _ways(node, row):
                ways.setdefault(f"{kind} {name}", way)
                if place[0] != "path":  # on paths, distances in the row count other branches
                    place = kind, name
        outside = [replace(mask, core=nodes.And((mask.core, nodes.Not(w)))) for w in ways.values()]
        return cls(
            tuple(outside),
            is_proved=any(never(each.core) for each in outside),
            is_causal=never(mask.core, ("before",)),
            advice=f"{_grouped(mask)} and {_text(window, chunk, *place)}",
        )

    def find_outside(self, sample: Sample) -> tuple[int, int] | None:
        """Return a query of a sample and a key that it sees beyond the limits; None without any.

        Compiles the mask unless the limits are proved.

        Raises:
            DatasetError: if the sample does not fit the mask.
        """
        found = None
        for mask in () if self.is_proved else self.outside:
            found = first_pair(mask.compile(sample))
            if found is None:
                break
        return found


def _limits(window: int | None, chunk: int | None) -> nodes.Mask:
    """Return the pairs within the limits, counted in the row."""
    q, k = nodes.Pos("q"), nodes.Pos("k")
    limits: list[nodes.Mask] = []
    if window is not None:
        limits.append(nodes.Compare("<", nodes.Arithmetic("-", q, k), nodes.Const(window)))
    if chunk is not None:
        tiles = (nodes.Arithmetic("//", at, nodes.Const(chunk)) for at in (q, k))
        limits.append(nodes.Compare("==", *tiles))
    return nodes.And(tuple(limits))


def _ways(node: nodes.Node, row: nodes.Mask) -> Iterator[tuple[str, str, nodes.Mask]]:
    """Return the limits as the sequences have them that a node of a mask speaks of.

    Yields how they count, the name of the segment, and the pairs within the limits.
    """
    match node:
        case nodes.Per(nodes.Laid(_, name) as segment) | nodes.Same(nodes.Laid(_, name) as segment):
            yield "per", name, nodes.Per(segment, row)
        case nodes.Laid(ast.Segment(name, ast.Layout() as layout)) if has_branches(layout):
            whole = nodes.Laid(node.statement, name.text)
            if (own := alone(row, whole, is_tree=True)) is not None:
                yield "path", name.text, nodes.And((nodes.Along(whole), own))


def _text(window: int | None, chunk: int | None, kind: str, name: str) -> str:
    q, k = (f"{side}.{name}.path" if kind == "path" else side for side in ("q", "k"))
    limits = [] if window is None else [f"{q} - {k} < {window}"]
    limits += [] if chunk is None else [f"{q} // {chunk} == {k} // {chunk}"]
    text = " and ".join(limits)
    return f"({text}) per {name}" if kind == "per" and chunk is not None else text


def _grouped(mask: Mask) -> str:
    is_plain = isinstance(mask.expression, ast.Name | ast.Call)
    return mask.call if is_plain else f"({mask.call})"
