"""Choose how the documents of a step are dealt to devices: the level that predicts least time."""

from dataclasses import dataclass

from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster
from dcp_planner.step.assignment import Assignment, StepMesh
from dcp_planner.step.documents import Documents
from dcp_planner.step.iteration import StepTime, Synchronisation, predict_step
from dcp_planner.step.model import StepModel
from dcp_planner.step.policies import NamedPolicy, Problem, by_work, width_by_work


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


def levels(mesh: StepMesh) -> tuple[NamedPolicy, ...]:
    """Return the levels for a mesh: groups of one replica up to all devices, and by document."""
    found, width = [], mesh.context_ranks
    while mesh.devices % width == 0:
        found.append(NamedPolicy(f"groups of {width}", by_work(width)))
        width *= 2
    if found[-1].name != f"groups of {mesh.devices}":
        found.append(NamedPolicy(f"groups of {mesh.devices}", by_work(mesh.devices)))
    return (*found, NamedPolicy("by document", width_by_work))


def plan_step(
    documents: Documents,
    mesh: StepMesh,
    model: StepModel,
    cluster: Cluster,
    *,
    token_budget: int,
    synchronisation: Synchronisation = "micro_batch",
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

    Raises:
        PlanError: if the cluster has another number of devices than the mesh, a document is longer
            than all devices may hold, or there are fewer documents than micro-batches.
    """
    check_step(documents, mesh, cluster, token_budget)
    problem = Problem.of(documents, mesh, token_budget, model, cluster)
    considered: dict[str, StepTime] = {}
    assignments: dict[str, Assignment] = {}
    for level in levels(mesh):
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
