"""Hand problems to KaHyPar's worker processes and take the parts back, within a time limit."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_planner.errors import PlanError
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.hypergraph import Hypergraph

WEIGHT_LIMIT = 10**9  # of a sum, about; KaHyPar adds tolerances on top and computes in int32

_MOST_PROCESSES = 8
_MESSAGE_BYTES = 4096  # of a message: what a process says last


@dataclass(frozen=True, slots=True)
class Solver:
    """An external partitioner that runs in processes of its own.

    Attributes:
        package: what is imported, and the extra that installs it.
        title: how people write it.
    """

    package: str
    title: str

    @property
    def install(self) -> str:
        """How to get it, or to do without."""
        return (
            f"install it with `pip install 'dcp-dsl[{self.package}]'`, or choose "
            "partitioner='native'"
        )


KAHYPAR = Solver("kahypar", "KaHyPar")
MT_KAHYPAR = Solver("mtkahypar", "Mt-KaHyPar")


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One call of KaHyPar.

    Attributes:
        hypergraph: pins and edge weights; its vertex weights are not used.
        vertex_weight: int64 ``[V]``, the one weight that KaHyPar knows.
        target: int64 ``[k]``, largest weight of each part.
    """

    hypergraph: Hypergraph
    vertex_weight: NDArray[np.int64]
    target: NDArray[np.int64]


def solve_problems(
    problems: Sequence[Problem], config: PlanConfig, deadline: float, solver: Solver = KAHYPAR
) -> list[NDArray[np.int32]]:
    """Partition every hypergraph; as many processes at once as there are cores.

    Args:
        problems: in any order.
        config: its seed and time limit.
        deadline: when to give up, on the clock of ``time.monotonic``.
        solver: who partitions.

    Returns:
        Part of every vertex, per problem.

    Raises:
        PlanError: if a process fails, the deadline passes or the temporary folder cannot take the
            problems; all processes are ended then.
    """
    try:
        return _solve(problems, config, deadline, solver)
    except OSError as error:
        raise PlanError(
            f"cannot hand a problem to {solver.title} by way of the folder "
            f"{tempfile.gettempdir()}: {error.strerror or error}; make room there, or "
            "point TMPDIR at another folder"
        ) from error


def _solve(
    problems: Sequence[Problem], config: PlanConfig, deadline: float, solver: Solver
) -> list[NDArray[np.int32]]:
    count = min(len(problems), len(os.sched_getaffinity(0)), _MOST_PROCESSES)
    # Large and small problems are dealt out in turn.
    order = sorted(range(len(problems)), key=lambda i: -len(problems[i].hypergraph.pins))
    shares = [order[first::count] for first in range(count)]
    parts: dict[int, NDArray[np.int32]] = {}
    with tempfile.TemporaryDirectory(prefix="dcp-kahypar-") as folder:
        started: list[subprocess.Popen[bytes]] = []
        try:
            for number, share in enumerate(shares):
                paths = [Path(folder, f"{number}-{name}.npz") for name in ("in", "out")]
                _write([problems[i] for i in share], config.seed, paths[0])
                started.append(_start(paths[0], paths[1], solver, config))
            for number, (process, share) in enumerate(zip(started, shares, strict=True)):
                _await(process, config, deadline, solver)
                found = _read(Path(folder, f"{number}-out.npz"), len(share), solver)
                parts |= dict(zip(share, found, strict=True))
        finally:
            for process in started:
                process.kill()
                process.communicate()
    return [parts[index] for index in range(len(problems))]


def _write(problems: Sequence[Problem], seed: int, path: Path) -> None:
    # Any: numpy's savez has a keyword of another type
    arrays: dict[str, Any] = {"count": np.array(len(problems)), "seed": np.array(seed)}
    for index, problem in enumerate(problems):
        arrays[f"{index}_pin_ptr"] = problem.hypergraph.pin_ptr
        arrays[f"{index}_pins"] = problem.hypergraph.pins
        arrays[f"{index}_vertex_weight"] = problem.vertex_weight
        arrays[f"{index}_edge_weight"] = _to_int32(problem.hypergraph.edge_weight)
        arrays[f"{index}_target"] = problem.target
    np.savez(path, **arrays)


def _to_int32(edge_weight: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divide by what all weights share, then scale until the sum fits."""
    weight = edge_weight // max(1, int(np.gcd.reduce(edge_weight, initial=0)))
    excess = float(weight.sum()) / WEIGHT_LIMIT
    return np.maximum(1, np.rint(weight / excess)).astype(np.int64) if excess > 1 else weight


def _start(
    source: Path, target: Path, solver: Solver, config: PlanConfig
) -> "subprocess.Popen[bytes]":
    module = f"dcp_planner.search.{solver.package}_worker"
    arguments = [str(source), str(target), str(os.getpid())]
    if solver is KAHYPAR and config.kahypar_ini is not None:
        arguments.append(config.kahypar_ini)
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def _await(
    process: "subprocess.Popen[bytes]", config: PlanConfig, deadline: float, solver: Solver
) -> None:
    try:
        _, said = process.communicate(timeout=max(0.001, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise PlanError(
            f"{solver.title} took longer than the time limit of {config.time_limit_s:g} s; use "
            "larger blocks, a larger time_limit_s, or partitioner='native'"
        ) from None
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        raise PlanError(
            f"{solver.title}'s process was ended by {name}, as happens when memory runs out; use "
            "larger blocks, or partitioner='native'"
        )
    if process.returncode:
        lines = said[-_MESSAGE_BYTES:].decode(errors="replace").strip().splitlines()
        raise PlanError(
            f"{solver.title}'s process ended with status {process.returncode}: "
            f"{lines[-1] if lines else 'no message'}; {solver.install}"
        )


def _read(path: Path, count: int, solver: Solver) -> list[NDArray[np.int32]]:
    try:
        with np.load(path, allow_pickle=False) as found:
            return [found[f"{index}_part"] for index in range(count)]
    except (OSError, ValueError, KeyError) as error:
        raise PlanError(
            f"{solver.title}'s process left no result: {error}; {solver.install}"
        ) from error
