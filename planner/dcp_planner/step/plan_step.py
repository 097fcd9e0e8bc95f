"""Choose how the documents of a step are dealt to devices: the level that predicts least time."""

from collections.abc import Sequence
from dataclasses import dataclass

from dcp_dsl import pack
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster
from dcp_planner.step.assignment import Assignment, StepMesh
from dcp_planner.step.documents import Documents
from dcp_planner.step.iteration import StepTime, Synchronisation, predict_step
from dcp_planner.step.model import StepModel
from dcp_planner.step.policies import (
    NamedPolicy,
    StepProblem,
    alike_packs,
    by_work,
    width_by_work,
)


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """Assignment of a step's documents, and what it is predicted to take.

    Attributes:
        policy: name of the level that was chosen.
        assignment: micro-batch and devices of every document.
        time: predicted.
        considered: predicted time of every level.
    """

    policy: str
    assignment: Assignment
    time: StepTime
    considered: dict[str, StepTime]

    def batches(self, first: int, width: int) -> tuple[tuple[int, ...], ...]:
        """Return the documents of the group of devices ``first`` to ``first + width - 1``.

        Returns:
            Rows of the documents for each micro-batch: what a loader of that group packs.

        Raises:
            PlanError: if the devices are no group of this plan in some micro-batch.
        """
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


def levels(mesh: StepMesh, widths: Sequence[int] | None = None) -> tuple[NamedPolicy, ...]:
    """Return the levels for a mesh: groups of one replica up to all devices, and by document.

    With `widths`, only groups of these many devices.

    Raises:
        PlanError: if the devices of the mesh do not divide into groups of some width.
    """
    found = []
    for width in _widths(mesh) if widths is None else widths:
        if width < 1 or mesh.devices % width:
            raise PlanError(f"widths: expected divisors of {mesh.devices} devices, got {width}")
        found.append(NamedPolicy(f"groups of {width}", by_work(width)))
        if width < mesh.devices:
            uneven = by_work(width, token_tolerance=None)
            found.append(NamedPolicy(f"groups of {width}, uneven tokens", uneven))
    return tuple(found) if widths else (*found, NamedPolicy("by document", width_by_work))


def _widths(mesh: StepMesh) -> list[int]:
    """Return the devices of a replica, doubled while that divides the mesh, and all devices."""
    widths = [mesh.context_ranks]
    while mesh.devices % (2 * widths[-1]) == 0:
        widths.append(2 * widths[-1])
    return widths if widths[-1] == mesh.devices else [*widths, mesh.devices]


def plan_step(
    documents: Documents,
    mesh: StepMesh,
    model: StepModel,
    cluster: Cluster,
    *,
    token_budget: int,
    synchronisation: Synchronisation = "micro_batch",
    widths: Sequence[int] | None = None,
) -> StepPlan:
    """Assign the documents of one global batch to micro-batches and devices.

    Documents move only inside the global batch, so that the sum of its gradients stays as it is.

    Args:
        documents: of the global batch, with the pairs of their own masks.
        mesh: replicas, context ranks, micro-batches, pipeline stages.
        model: the linear part and the attention shape.
        cluster: of all devices of a stage, node after node.
        token_budget: most tokens of a replica in one micro-batch.
        synchronisation: when devices exchange parameters.
        widths: devices of a group to choose from; ``None``: those of a replica, doubled up to all,
            and a width for each document.

    Raises:
        PlanError: if the cluster has another number of devices than the mesh, a document is longer
            than all devices may hold, or there are fewer documents than micro-batches.

    >>> from dcp_planner import Cluster
    >>> from dcp_planner.step.model import step_model
    >>> documents = Documents.causal([8000, 1000, 7000, 2000])
    >>> plan = plan_step(
    ...     documents,
    ...     StepMesh(2, 1),
    ...     step_model("llama-8b"),
    ...     Cluster(1, 2),
    ...     token_budget=10_000,
    ...     widths=(1,),
    ... )
    >>> plan.batches(first=0, width=1), plan.batches(first=1, width=1)
    (((0, 1),), ((2, 3),))
    """
    check_step(documents, mesh, cluster, token_budget)
    problem = StepProblem.of(documents, mesh, token_budget, model, cluster)
    considered: dict[str, StepTime] = {}
    assignments: dict[str, Assignment] = {}
    packs = _finished_packs(problem) if widths is None else ()
    for level in (*levels(mesh, widths), *packs):
        assignments[level.name] = level.assign(problem)
        considered[level.name] = predict_step(
            documents,
            assignments[level.name],
            model,
            cluster,
            synchronisation=synchronisation,
            sharding=level.sharding,
        )
    chosen = min(considered, key=lambda name: considered[name].seconds)
    return StepPlan(chosen, assignments[chosen], considered[chosen], considered)


def _finished_packs(problem: StepProblem) -> tuple[NamedPolicy, ...]:
    """Return the packs of today's recipes as a level, if they fit the step."""
    packs = pack(problem.documents.tokens.tolist(), problem.token_budget)
    fits = len(packs) <= problem.mesh.replicas * problem.mesh.micro_batches
    return (NamedPolicy("packs in order", alike_packs),) if fits else ()


def check_step(documents: Documents, mesh: StepMesh, cluster: Cluster, token_budget: int) -> None:
    """Refuse a step that cannot be run.

    Raises:
        PlanError: as `plan_step` says.
    """
    if cluster.num_devices != mesh.devices:
        raise PlanError(
            f"expected a mesh of the cluster's {cluster.num_devices} devices, got "
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
