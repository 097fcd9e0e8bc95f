"""KaHyPar or Mt-KaHyPar in a worker process.

KaHyPar is GPL, prints from C++ and ends the process on bad input; in a process of its own none of
that reaches the planner. A request holds ``seed`` and ``sizes``, the lengths of the columns; its
bytes are the columns, int64. The answer is the part of every vertex, int32. This module does
without numpy, so that the process starts sooner.
"""

import importlib
from array import array
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

from dcp_dsl import DCPError

_Problem: TypeAlias = dict[str, list[int]]
"""One problem: ``pin_ptr``, ``pins``, ``vertex_weight``, ``edge_weight`` and ``target``."""
_Partition: TypeAlias = Callable[[_Problem, int], list[int]]
_COLUMNS = ("pin_ptr", "pins", "vertex_weight", "edge_weight", "target")


def start(package: str, ini: str) -> Callable[..., tuple[dict[str, Any], bytes]]:
    """Return the handler of requests; `ini` is the file with KaHyPar's configuration."""
    return partial(_answer, package, ini)


def _answer(
    package: str,
    ini: str,
    message: dict[str, Any],  # Any: JSON values
    blob: bytes,
    _: object,
) -> tuple[dict[str, Any], bytes]:
    numbers, problem, at = array("q", blob), {}, 0
    for name, size in zip(_COLUMNS, message["sizes"], strict=True):
        problem[name] = numbers[at : at + size].tolist()
        at += size
    return {}, array("i", _load(package, ini)(problem, message["seed"])).tobytes()


@cache
def _load(package: str, ini: str) -> _Partition:
    try:
        library = importlib.import_module(package)
    except ImportError as error:
        raise DCPError(str(error)) from error
    return _kahypar(library, ini) if package == "kahypar" else _mtkahypar(library)


# Any, below: neither package ships types.
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


def _mtkahypar(mtkahypar: Any) -> _Partition:
    library = mtkahypar.initialize(1)  # one thread: the same problem has the same answer

    def solve(problem: _Problem, seed: int) -> list[int]:
        pointers, pins, vertices, edges, targets = (problem[name] for name in _COLUMNS)
        mtkahypar.set_seed(seed)
        context = library.context_from_preset(mtkahypar.PresetType.QUALITY)
        context.set_partitioning_parameters(len(targets), 0.0, mtkahypar.Objective.KM1)
        context.set_individual_target_block_weights(targets)
        context.logging = False
        hypergraph = library.create_hypergraph(  # by name: the order changed in 1.7
            context=context,
            num_hypernodes=len(vertices),
            num_hyperedges=len(edges),
            hyperedges=[pins[a:b] for a, b in pairwise(pointers)],
            node_weights=vertices,
            hyperedge_weights=edges,
        )
        found = hypergraph.partition(context)
        return [found.block_id(vertex) for vertex in range(len(vertices))]

    return solve
