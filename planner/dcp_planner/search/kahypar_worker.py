"""Run KaHyPar: ``python -m dcp_planner.search.kahypar_worker IN OUT PARENT [INI]``.

KaHyPar is GPL, prints from C++ and ends the process on bad input; here none of that reaches the
planner. `IN` holds ``count``, ``seed`` and, for each problem i, ``i_pin_ptr``, ``i_pins``,
``i_vertex_weight``, ``i_edge_weight`` and ``i_target`` (largest weight of each part), all int64.
`OUT` gets ``i_part``, int32, for each. `PARENT` is the process that waits; when it dies, so does
this one. Exit status 3: KaHyPar is not installed.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

NOT_INSTALLED = 3
_ORPHANED = 4
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_INI = Path(__file__).with_name("kahypar.ini")


def main(source: str, target: str, parent: str, ini: str = str(_INI)) -> int:
    """Solve all problems of a file; gives the exit status."""
    status = become_worker(parent)
    if status:
        return status
    try:
        import kahypar
    except ImportError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    silence_stdout()
    parts: dict[str, Any] = {}  # Any: numpy has a keyword of another type in savez
    with np.load(source, allow_pickle=False) as problems:
        for index in range(int(problems["count"])):
            pointers, pins, vertices, edges, targets = (
                problems[f"{index}_{name}"].tolist()
                for name in ("pin_ptr", "pins", "vertex_weight", "edge_weight", "target")
            )
            hypergraph = kahypar.Hypergraph(
                len(vertices), len(edges), pointers, pins, len(targets), edges, vertices
            )
            context = kahypar.Context()
            context.loadINIconfiguration(ini)
            context.setK(len(targets))
            context.setCustomTargetBlockWeights(targets)
            context.setEpsilon(0.0)  # the targets are caps already
            context.setSeed(int(problems["seed"]))
            context.suppressOutput(True)
            kahypar.partition(hypergraph, context)
            found = [hypergraph.blockID(vertex) for vertex in range(len(vertices))]
            parts[f"{index}_part"] = np.array(found, np.int32)
    with open(target, "wb") as file:
        np.savez(file, **parts)
    return 0


def become_worker(parent: str) -> int:
    """Tie this process to its parent; gives an exit status if that is gone already."""
    _end_with_parent()
    return 0 if os.getppid() == int(parent) else _ORPHANED  # it died before the kernel was told


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    A thread that watches a pipe would not do: KaHyPar holds Python's lock while it searches.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def silence_stdout() -> None:
    """Send what C++ prints nowhere; Python's own stdout is unused here."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
