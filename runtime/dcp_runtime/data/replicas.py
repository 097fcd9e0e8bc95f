"""The replicas that share a global batch: their ranks, their devices, and which of them is ours."""

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dcp_planner import Cluster, ModelShape
from dcp_planner.step import StepModel
from dcp_runtime.data.choices import Packing, Planning
from dcp_runtime.data.dealing import Dealing
from dcp_runtime.errors import RunError
from dcp_runtime.transport.group_store import process_group

CONTEXT_DIM, REPLICA_DIMS = "cp", "dp"
"""Name of a mesh's dim with the ranks of a replica, and how names of dims with replicas begin."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """Ranks by replica. Device ``r * context_ranks + c`` is rank c of replica r.

    Attributes:
        count: replicas.
        device: this rank, counted over all replicas.
        group: the ranks of this replica; ``None``: all ranks, or nobody said which.
    """

    count: int
    context_ranks: int
    device: int
    cluster: Cluster
    group: dist.ProcessGroup | None

    @property
    def replica(self) -> int:
        """This rank's replica."""
        return self.device // self.context_ranks


def find_replicas(packing: Packing, planning: Planning) -> Replicas:
    """Find the replicas that a user's choices name."""
    mesh = planning.group
    if isinstance(mesh, DeviceMesh) and mesh.ndim > 1:
        count, context_ranks, device = _of_mesh(mesh, packing.replicas)
        ranks, group = count * context_ranks, process_group(mesh[CONTEXT_DIM])
    else:
        count, group = packing.replicas or 1, process_group(mesh)
        ranks, device = _of_ranks(planning, group)
        if group is not None and count > 1:
            raise RunError(
                f"Packing.replicas: {count} replicas, but Planning.group holds the ranks of one; "
                "give the DeviceMesh of all of them, with dims named dp and cp"
            )
        if ranks % count:
            fits = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
            raise RunError(
                f"Packing.replicas: expected a divisor of the {ranks} ranks, got {count}; "
                f"{ranks} ranks are {fits} replicas"
            )
        context_ranks = ranks // count
    if planning.rates is not None and count > 1:
        raise RunError(
            f"Planning.rates: expected one replica, whose ranks compare what they measured, got "
            f"{count} replicas; leave rates out"
        )
    cluster = planning.cluster or Cluster(devices_per_node=ranks)
    if cluster.num_devices != ranks:
        raise RunError(
            f"Planning.cluster: expected the {ranks} devices of {count} replicas of "
            f"{context_ranks} ranks, got {cluster.num_devices}"
        )
    device = device if planning.rank is None else planning.rank
    if not 0 <= device < ranks:
        raise RunError(
            f"expected a rank from 0 to {ranks - 1}, the devices of the cluster, got {device}; "
            "give Planning the cluster of all ranks that share the batches, and the rank among "
            "these"
        )
    return Replicas(count, context_ranks, device, cluster, group)


def _of_ranks(planning: Planning, group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Return how many ranks there are, and which of them this process is."""
    is_alone = not dist.is_initialized()
    rank = 0 if is_alone else dist.get_rank(group)
    if planning.cluster is not None:
        return planning.cluster.num_devices, rank
    return (1 if is_alone else dist.get_world_size(group)), rank


def _of_mesh(mesh: DeviceMesh, replicas: int | None) -> tuple[int, int, int]:
    """Return replicas, ranks of each and the device of this rank."""
    names = mesh.mesh_dim_names
    if names is None:
        raise RunError(
            f"Planning.group: expected a DeviceMesh with named dims, got {mesh.ndim} dims without "
            f"names; init_device_mesh(..., mesh_dim_names=('dp', 'cp')): {CONTEXT_DIM} are the "
            f"ranks of a replica, {REPLICA_DIMS}... the replicas"
        )
    if CONTEXT_DIM not in names:
        raise RunError(
            f"Planning.group: expected a DeviceMesh with a dim {CONTEXT_DIM!r}, whose ranks share "
            f"the attention, got the dims {', '.join(names)}; pass that dim alone if it has "
            "another name, or name it so"
        )
    world = dist.get_world_size()
    if mesh.size() != world:
        raise RunError(
            f"Planning.group: expected a mesh of all {world} ranks, got one of "
            f"{' x '.join(map(str, mesh.shape))} = {mesh.size()}; start {mesh.size()} ranks, or "
            f"give sizes whose product is {world}"
        )
    count, own = 1, 0
    for name, size in zip(names, mesh.shape, strict=True):
        if name.startswith(REPLICA_DIMS):
            count, own = count * size, own * size + mesh.get_local_rank(name)
    if replicas not in (None, count):
        raise RunError(
            f"Packing.replicas: expected {count}, as the dims {', '.join(names)} of the mesh say, "
            f"got {replicas}; leave it out"
        )
    context_ranks = mesh.size(names.index(CONTEXT_DIM))
    return count, context_ranks, own * context_ranks + mesh.get_local_rank(CONTEXT_DIM)


def dealing_of(packing: Packing, planning: Planning, replicas: Replicas) -> Dealing:
    """Return how one global batch is dealt."""
    own, devices = replicas.context_ranks, replicas.count * replicas.context_ranks
    widths = {"replica": {own}, "all": {devices}, "best": {own, devices}}[
        packing.group or "replica"
    ]
    is_spread = packing.width == "per_document" and devices > 1
    return Dealing(
        replicas=replicas.count,
        context_ranks=own,
        micro_batches=packing.micro_batches,
        window=1,
        token_budget=packing.token_budget,
        widths=() if is_spread else tuple(sorted(widths)),
        balance=packing.balance,
        model=planning.model or _like_attention(planning.shape, replicas.cluster),
    )


def _like_attention(shape: ModelShape, cluster: Cluster) -> StepModel:
    """Return the layers of a transformer as wide as its query heads.

    Four matrices of width x width around attention and a feed-forward part of eight, 2 FLOPs a
    parameter in forward and 4 in backward, at the rate that attention reaches.
    """
    parameters = 12 * (shape.q_heads * shape.head_dim) ** 2
    return StepModel(shape, 1, 6.0 * parameters, 2.0 * parameters, cluster.flops_per_s)
