"""KaHyPar in a worker process.

KaHyPar is GPL, prints from C++ and ends the process on bad input; in a process of its own none of
that reaches the planner. A request holds ``seed`` and ``sizes``, the lengths of the columns; its
bytes are the columns, int64. The answer is the part of every vertex, int32. This module does
without numpy, so that the process starts sooner.
"""

import importlib
from array import array
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeAlias

from dcp_dsl import DCPError

_Problem: TypeAlias = dict[str, list[int]]
"""One problem: ``pin_ptr``, ``pins``, ``vertex_weight``, ``edge_weight`` and ``target``."""
_Partition: TypeAlias = Callable[[_Problem, int], list[int]]
_COLUMNS = ("pin_ptr", "pins", "vertex_weight", "edge_weight", "target")


def start(ini: str) -> Callable[..., tuple[dict[str, Any], bytes]]:
    """Return the handler of requests; `ini` is the file with KaHyPar's configuration."""
    return partial(_answer, ini)


def _answer(
    ini: str,
    message: dict[str, Any],  # Any: JSON values
    blob: bytes,
    _: object,
) -> tuple[dict[str, Any], bytes]:
    numbers, problem, at = array("q", blob), {}, 0
    for name, size in zip(_COLUMNS, message["sizes"], strict=True):
        problem[name] = numbers[at : at + size].tolist()
        at += size
    return {}, array("i", _load(ini)(problem, message["seed"])).tobytes()


@cache
def _load(ini: str) -> _Partition:
    try:
        library = importlib.import_module("kahypar")
    except ImportError as error:
        raise DCPError(str(error)) from error
    return _kahypar(library, ini)


# Any, below: the package ships no types.
def _kahypar(kahypar: Any, ini: str) -> _Partition:
    def solve(problem: _Problem, seed: int) -> list[int]:
        pointers, pins, vertices, edges, targets = (problem[name] for name in _COLUMNS)
        hypergraph = kahypar.Hypergraph(
            len(vertices), len(edges), pointers, pins, len(targets), edges, vertices
        )
        context = kahypar.Context()
        context.loadINIconfiguration(ini)
        context.setK(len(targets))
        context.setCustomTargetBlockWeights(targets)
        context.setEpsilon(0.0)  # the targets are caps already
        context.setSeed(seed)
        context.suppressOutput(True)
        kahypar.partition(hypergraph, context)
        return [hypergraph.blockID(vertex) for vertex in range(len(vertices))]

    return solve
