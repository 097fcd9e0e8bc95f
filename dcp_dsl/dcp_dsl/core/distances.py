"""Read comparisons of functions of the distance `q - k`, such as `q - k == exp2(log2(q - k))`."""

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.core.frame import Frame
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.rising import RISING_FUNCTIONS
from dcp_dsl.symbolic.intervals import Interval
from dcp_dsl.symbolic.terms import NotSeparable

MAX_RUNS = 2**8  # of distances; each makes a band


def by_distance(node: nodes.Compare, frame: Frame) -> list[tuple[int, int]] | None:
    """Return the runs of distances ``[from, to)`` for which a comparison holds, in O(tokens).

    Only powers and logarithms need it; None without either, or if it depends on more than the
    distance.
    """
    inner = nodes.walk(node)
    if not any(isinstance(n, nodes.Rising) for n in inner):
        return None
    most = int((frame.cells.end - frame.cells.start).max())
    distances = np.arange(1 - most, most)
    left, right = (_bound(side, distances, frame) for side in (node.left, node.right))
    if left is None or right is None:
        return None
    holds = np.broadcast_to(left.compare(node.op, right)[0], (1, len(distances)))[0]
    edges = np.flatnonzero(np.diff(holds.astype(np.int8), prepend=0, append=0)) + 1 - most
    if len(edges) > 2 * MAX_RUNS:
        raise NotSeparable
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _bound(node: nodes.Number, distances: Ints, frame: Frame) -> Interval | None:
    """Return a number for each distance; None if it depends on anything else."""
    if nodes.is_fixed(node):
        return Interval.constant(frame.constant(node))
    match node:
        case nodes.Arithmetic("-", nodes.Pos(a), nodes.Pos(b)) if a != b:
            values = distances if a == "q" else -distances
            return Interval.exact(values[None], np.ones((1, 1), np.bool_))
        case nodes.Arithmetic(op, left, right):
            if op in ("//", "%") and nodes.is_fixed(right):
                frame.divisor(right)
            found = _bound(left, distances, frame), _bound(right, distances, frame)
            return None if found[0] is None or found[1] is None else found[0].combine(op, found[1])
        case nodes.Rising(name, inner):
            value = _bound(inner, distances, frame)
            return None if value is None else value.rise(RISING_FUNCTIONS[name])
    return None
