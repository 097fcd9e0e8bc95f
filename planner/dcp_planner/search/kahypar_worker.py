"""Run KaHyPar or Mt-KaHyPar in a process of its own.

    python -m dcp_planner.search.kahypar_worker PACKAGE IN OUT PARENT [INI]

KaHyPar is GPL, prints from C++ and ends the process on bad input; here none of that reaches the
planner. `PACKAGE` is ``kahypar`` or ``mtkahypar``. `IN` holds ``count``, ``seed`` and, for each
problem i, ``i_pin_ptr``, ``i_pins``, ``i_vertex_weight``, ``i_edge_weight`` and ``i_target``
(largest weight of each part), all int64. `OUT` gets ``i_part``, int32, for each. `PARENT` is the
process that waits; when it dies, so does this one. Exit status 3: the package is not installed.
"""

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

NOT_INSTALLED = 3
_ORPHANED = 4
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_INI = Path(__file__).with_name("kahypar.ini")

_Problem: TypeAlias = dict[str, list[int]]
"""One problem: ``pin_ptr``, ``pins``, ``vertex_weight``, ``edge_weight`` and ``target``."""
_COLUMNS = ("pin_ptr", "pins", "vertex_weight", "edge_weight", "target")


def main(package: str, source: str, target: str, parent: str, ini: str = str(_INI)) -> int:
    """Solve all problems of a file and return the exit status."""
    _end_with_parent()
    if os.getppid() != int(parent):
        return _ORPHANED  # the parent died before the kernel was told
    try:
        library = importlib.import_module(package)
    except ImportError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    _silence_stdout()
    solve = _kahypar(library, ini) if package == "kahypar" else _mtkahypar(library)
    parts: dict[str, Any] = {}  # Any: numpy has a keyword of another type in savez
    with np.load(source, allow_pickle=False) as problems:
        seed = int(problems["seed"])
        for index in range(int(problems["count"])):
            problem = {name: problems[f"{index}_{name}"].tolist() for name in _COLUMNS}
            parts[f"{index}_part"] = np.array(solve(problem, seed), np.int32)
    with open(target, "wb") as file:
        np.savez(file, **parts)
    return 0


# Any, below: neither package ships types.
def _kahypar(kahypar: Any, ini: str) -> Callable[[_Problem, int], list[int]]:
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


def _mtkahypar(mtkahypar: Any) -> Callable[[_Problem, int], list[int]]:
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


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    A thread that watches a pipe would not do: KaHyPar holds Python's lock while it searches.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _silence_stdout() -> None:
    """Discard what C++ prints; Python's own stdout is unused here."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
