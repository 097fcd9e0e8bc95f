"""Choose how the documents of a step are dealt to devices: the level with the least predicted time.

A *level* is a rule for the sizes of groups of devices. Long documents get many devices, short ones
few. Groups are nested: a micro-batch first runs the documents that all or many devices share, then
those of smaller groups inside. So only documents that need several nodes pay for plans that span
several nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcp_dsl import pack
from dcp_dsl.arrays import Floats, Ints
from dcp_planner.errors import PlanError
from dcp_planner.step.dealing import deal
from dcp_planner.step.iteration import StepTime, group_seconds, predict_step
from dcp_planner.step.policies import Policy, StepProblem, StepSetting, alike_packs
from dcp_planner.step.setting import Assignment, Documents, StepMesh
from dcp_planner.tables.plan import Drawn


def nested(narrowest: int, share: float, tolerance: float | None) -> Policy:
    """Deal documents to nested groups of ``narrowest * 2**k`` devices, and of all.

    A document gets the fewest devices on which it takes at most `share` of the mean time of a
    micro-batch, and at most `share` of the tokens that a device may hold. `tolerance`: how far over
    the mean a device's tokens may be; ``None``: as far as the token budget allows.
    """

    def policy(problem: StepProblem) -> Assignment:
        mesh, tokens = problem.setting.mesh, problem.documents.tokens
        units = mesh.devices // narrowest
        cap = _cap(problem, tolerance)
        sizes = _sizes(units)
        work = np.stack([problem.seconds_on(size * narrowest) for size in sizes])
        width = np.array(sizes, np.float64)[:, None] * narrowest
        # bool [sizes, N]. A share above 1 allows longer documents, but no more tokens than the cap.
        fits = work / width <= share * problem.mean_seconds
        fits &= tokens / width <= min(share, 1.0) * cap
        # A document that is too long for every size gets all devices.
        fits[-1] = True
        level = np.argmax(fits, axis=0)  # the first True: the fewest devices
        chosen = np.array(sizes, np.int64)[level]
        return _dealt(problem, work[level, np.arange(len(tokens))], chosen, narrowest, cap)

    return policy


def even(width: int, tolerance: float | None) -> Policy:
    """Deal documents to groups of `width` devices each, as `nested` does with one size."""

    def policy(problem: StepProblem) -> Assignment:
        cap = _cap(problem, tolerance)
        if tolerance is not None:
            # A long document may exceed the even share by itself; then its tokens are the cap.
            cap = max(cap, float(problem.documents.tokens.max()) / width)
        one = np.ones(len(problem.documents), np.int64)
        return _dealt(problem, problem.seconds_on(width), one, width, cap)

    return policy


def _cap(problem: StepProblem, tolerance: float | None) -> float:
    if tolerance is None:
        return problem.room
    return min(problem.room, (1 + tolerance) * problem.mean_tokens)


def _dealt(
    problem: StepProblem, work: Floats, size: Ints, narrowest: int, cap: float
) -> Assignment:
    """Deal documents to runs of `size` groups of the narrowest width."""
    # Units of dealing are groups of the narrowest width: work and caps are those of a unit.
    mesh = problem.setting.mesh
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


EVEN_TOKENS = 0.02
"""Tokens of devices count as even if none is more than this share above the mean."""
SHARES = (2.0, 1.0, 0.7, 0.5)
"""Shares of a micro-batch's mean time that a document may take in nested groups."""
PACKS = "packs in order"
"""Name of the level of finished packs, as today's recipes deal them."""
MOST_PLACES = 10_000_000
"""Most places that a deal may look at: number of documents times groups of all micro-batches."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan(Drawn):
    """Assignment of a step's documents, with its predicted time."""

    policy: str  # name of the level that was chosen
    assignment: Assignment  # micro-batch and devices of every document
    time: StepTime  # predicted
    considered: dict[str, StepTime]  # predicted time of every level
    # linear part and attention of each of the assignment's groups, in order
    group_seconds: tuple[tuple[float, float], ...]

    def batches(self, first: int, width: int) -> tuple[tuple[int, ...], ...]:
        """Return the packs of a group's data loader: rows of its documents for each micro-batch."""
        found = {
            micro_batch: tuple(rows.tolist())
            for micro_batch, start, size, rows in self.assignment.groups()
            if (start, size) == (first, width)
        }
        missing = [m for m in range(self.assignment.mesh.micro_batches) if m not in found]
        if missing:
            raise PlanError(
                f"devices {first} to {first + width - 1} have no documents of their own in "
                f"micro-batch {missing[0]}: the plan was made with {self.policy}; give plan_step "
                f"widths=({width},) for groups of {width} devices"
            )
        return tuple(found[m] for m in sorted(found))


def levels(
    mesh: StepMesh,
    documents: int,
    widths: Sequence[int] | None = None,
) -> dict[str, tuple[Policy, ...]]:
    """Return the levels for a mesh by name, each with its variants.

    There are groups of one width, from one device to all, and nested groups from each width on. A
    device holds as many tokens as the budget allows; in levels with even tokens at most
    `EVEN_TOKENS` above the mean. With `widths`, only groups of these numbers of devices.
    """
    found: dict[str, tuple[Policy, ...]] = {}
    for width in _widths(mesh, documents) if widths is None else widths:
        if width < 1 or mesh.devices % width:
            raise PlanError(f"widths: expected divisors of {mesh.devices} devices, got {width}")
        for cap, suffix in ((None, ""), (EVEN_TOKENS, ", even tokens")):
            if width == mesh.devices and suffix:
                continue  # one group of all devices spreads its tokens evenly anyway
            found[f"groups of {width}{suffix}"] = (even(width, cap),)
            if widths is None and width < mesh.devices:
                nests = tuple(nested(width, share, cap) for share in SHARES)
                found[f"groups from {width} on{suffix}"] = nests
    return found


def _widths(mesh: StepMesh, documents: int) -> list[int]:
    """Return the powers of two that divide the devices, and all devices.

    Widths so narrow that documents times groups exceed `MOST_PLACES` are left out.
    """
    widths = [1 << power for power in range(mesh.devices.bit_length())]
    widths = [width for width in widths if mesh.devices % width == 0]
    places = documents * mesh.micro_batches * mesh.devices
    widths = [width for width in widths if places // width <= MOST_PLACES]
    return [*widths, *([] if mesh.devices in widths else [mesh.devices])]


def plan_step(documents: Documents, setting: StepSetting) -> StepPlan:
    """Assign the documents of one global batch to micro-batches and devices.

    Documents move only inside the global batch, so that the sum of its gradients stays as it is.

    >>> from dcp_planner import Cluster
    >>> from dcp_planner.step.setting import step_model
    >>> documents = Documents.causal([8000, 1000, 7000, 2000])
    >>> mesh, model = StepMesh(replicas=2, context_ranks=1), step_model("llama-8b")
    >>> setting = StepSetting(mesh, model, Cluster(1, 2), token_budget=10_000, widths=(1,))
    >>> plan = plan_step(documents, setting)
    >>> plan.batches(first=0, width=1), plan.batches(first=1, width=1)
    (((0, 1),), ((2, 3),))
    """
    check_step(documents, setting)
    model, cluster, widths = setting.model, setting.cluster, setting.widths
    problem = StepProblem.of(documents, setting)
    most = problem.most_tokens
    considered: dict[str, StepTime] = {}
    assignments: dict[str, Assignment] = {}
    packs = _finished_packs(problem) if widths is None else {}
    for name, variants in (levels(setting.mesh, len(documents), widths) | packs).items():
        for assign in variants:
            assignment = assign(problem)
            time = predict_step(
                documents, assignment, model, cluster, synchronisation=setting.synchronisation
            )
            # Of the variants of a level the best one stands for it.
            if name not in considered or _rank(time, most) < _rank(considered[name], most):
                considered[name], assignments[name] = time, assignment
    chosen = choose_level(considered, most, setting.even_price)
    return StepPlan(
        chosen,
        assignments[chosen],
        considered[chosen],
        considered,
        group_seconds(documents, assignments[chosen], model, cluster),
    )


def _rank(time: StepTime, most: float) -> tuple[bool, float]:
    """Order plans: those within the token budget, `most` times the mean, come first; then time."""
    return time.max_tokens > most, time.seconds


def choose_level(considered: dict[str, StepTime], most: float, even_price: float) -> str:
    """Choose the fastest level, or a slower one with even tokens if these cost little enough.

    A level with even tokens is never chosen if it takes longer than the packs of today's recipes.
    """
    fastest = min(considered, key=lambda name: _rank(considered[name], most))
    limit = (1 + even_price) * considered[fastest].seconds
    if PACKS in considered:
        limit = min(limit, considered[PACKS].seconds)
    even = {
        name: time.seconds
        for name, time in considered.items()
        if time.max_tokens <= min(1 + EVEN_TOKENS + 1e-9, most) and time.seconds <= limit
    }
    return min(even, key=lambda name: even[name], default=fastest)


def _finished_packs(problem: StepProblem) -> dict[str, tuple[Policy, ...]]:
    """Return the packs of today's recipes as a level, if they fit the step."""
    if problem.documents.tokens.max() > problem.setting.token_budget:
        return {}
    packs = pack(problem.documents.tokens.tolist(), problem.setting.token_budget)
    return {PACKS: (alike_packs,)} if len(packs) <= problem.num_packs else {}


def check_step(documents: Documents, setting: StepSetting) -> None:
    """Refuse a step that cannot run."""
    mesh, token_budget = setting.mesh, setting.token_budget
    if setting.cluster.num_devices != mesh.devices:
        raise PlanError(
            f"expected a mesh of the cluster's {setting.cluster.num_devices} devices, got "
            f"{mesh.replicas} replicas of {mesh.context_ranks} context ranks = {mesh.devices}"
        )
    if len(documents) < mesh.micro_batches:
        raise PlanError(
            f"expected at least one document per micro-batch, got {len(documents)} documents for "
            f"{mesh.micro_batches} micro-batches; use at most {max(1, len(documents))}"
        )
    longest, room = int(documents.tokens.max()), token_budget * mesh.replicas
    if longest > room:
        raise PlanError(
            f"document {int(documents.tokens.argmax())} has {longest} tokens; all {mesh.devices} "
            f"devices together hold {room} in one micro-batch; raise the token budget of a replica "
            f"to {-(-longest // mesh.replicas)} or leave the document out"
        )
