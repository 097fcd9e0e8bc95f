"""Choose how many devices each document gets: long ones many, short ones few.

Groups are nested: a micro-batch first runs the documents that all or many devices share, then those
of smaller groups inside. Only documents that need several nodes then pay for plans that span them.
"""

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.step.assignment import Assignment
from dcp_planner.step.dealing import deal
from dcp_planner.step.problem import Policy, StepProblem


def nested(narrowest: int, share: float, tolerance: float | None) -> Policy:
    """Deal documents to nested groups of ``narrowest * 2**k`` devices, and of all.

    A document gets the fewest devices on which it takes at most `share` of the mean time of a
    micro-batch, and at most `share` of the tokens that a device may hold.

    Args:
        narrowest: devices of the smallest groups; divides the devices of the mesh.
        share: as above; infinite: no document gets more than the smallest group.
        tolerance: how far above the mean a device's tokens may be, as a share; ``None``: as far as
            the token budget allows.
    """

    def policy(problem: StepProblem) -> Assignment:
        mesh, tokens = problem.mesh, problem.documents.tokens
        units = mesh.devices // narrowest
        cap = _cap(problem, tolerance)
        sizes = _sizes(units)
        work = np.stack([problem.seconds_on(size * narrowest) for size in sizes])
        width = np.array(sizes, np.float64)[:, None] * narrowest
        mean = problem.seconds.sum() / (mesh.devices * mesh.micro_batches)
        fits = (work / width <= share * mean) & (tokens / width <= min(share, 1.0) * cap)
        fits[-1] = True
        level = np.argmax(fits, axis=0)
        chosen = np.array(sizes, np.int64)[level]
        return _dealt(problem, work[level, np.arange(len(tokens))], chosen, narrowest, cap)

    return policy


def even(width: int, tolerance: float | None) -> Policy:
    """Deal documents to groups of `width` devices each, as `nested` does with one size."""

    def policy(problem: StepProblem) -> Assignment:
        cap = _cap(problem, tolerance)
        if tolerance is not None:
            cap = max(cap, float(problem.documents.tokens.max()) / width)
        one = np.ones(len(problem.documents), np.int64)
        return _dealt(problem, problem.seconds_on(width), one, width, cap)

    return policy


def _cap(problem: StepProblem, tolerance: float | None) -> float:
    """Return the most tokens of a device."""
    if tolerance is None:
        return problem.room
    return min(problem.room, (1 + tolerance) * problem.mean_tokens)


def _dealt(
    problem: StepProblem, work: Floats, size: Ints, narrowest: int, cap: float
) -> Assignment:
    """Deal documents to runs of `size` groups of the narrowest width."""
    mesh = problem.mesh
    shape = (mesh.micro_batches, mesh.devices // narrowest)
    tokens = problem.documents.tokens
    dealt = deal(work / narrowest, tokens, size, shape, cap * narrowest)
    return Assignment(
        mesh,
        dealt.micro_batch.astype(np.int32),
        (dealt.first * narrowest).astype(np.int32),
        (size * narrowest).astype(np.int32),
    )


def _sizes(units: int) -> list[int]:
    """Return the sizes of runs: powers of two, and all units.

    >>> _sizes(6)
    [1, 2, 4, 6]
    """
    sizes = [1 << power for power in range(units.bit_length())]
    return sizes if sizes[-1] == units else [*sizes, units]
