"""Run Mt-KaHyPar: ``python -m dcp_planner.search.mtkahypar_worker IN OUT PARENT``.

Files, exit status and the tie to the parent are those of `kahypar_worker`. One thread and one seed:
the same problem has the same answer. Arguments go by name, because their order changed in 1.7.
"""

import sys
from itertools import pairwise
from typing import Any

import numpy as np

from dcp_planner.search.kahypar_worker import NOT_INSTALLED, become_worker, silence_stdout


def main(source: str, target: str, parent: str) -> int:
    """Solve all problems of a file; gives the exit status."""
    status = become_worker(parent)
    if status:
        return status
    try:
        import mtkahypar
    except ImportError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    silence_stdout()
    library = mtkahypar.initialize(1)
    parts: dict[str, Any] = {}  # Any: numpy has a keyword of another type in savez
    with np.load(source, allow_pickle=False) as problems:
        for index in range(int(problems["count"])):
            pointers, pins, vertices, edges, targets = (
                problems[f"{index}_{name}"].tolist()
                for name in ("pin_ptr", "pins", "vertex_weight", "edge_weight", "target")
            )
            mtkahypar.set_seed(int(problems["seed"]))
            context = library.context_from_preset(mtkahypar.PresetType.QUALITY)
            context.set_partitioning_parameters(len(targets), 0.0, mtkahypar.Objective.KM1)
            context.set_individual_target_block_weights(targets)
            context.logging = False
            hypergraph = library.create_hypergraph(
                context=context,
                num_hypernodes=len(vertices),
                num_hyperedges=len(edges),
                hyperedges=[pins[a:b] for a, b in pairwise(pointers)],
                node_weights=vertices,
                hyperedge_weights=edges,
            )
            found = hypergraph.partition(context)
            blocks = [found.block_id(vertex) for vertex in range(len(vertices))]
            parts[f"{index}_part"] = np.array(blocks, np.int32)
    with open(target, "wb") as file:
        np.savez(file, **parts)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
