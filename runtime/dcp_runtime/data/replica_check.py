"""Replicas of a mesh compare what they read, once for each loader and without waiting."""

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dcp_runtime.data.choices import Planning, Replicas
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import SAME_ROWS
from dcp_runtime.transport.group_store import SERVER, open_store

TIMEOUT_S = 60.0
"""How long the store may take to answer."""


def is_known(planning: Planning, replicas: Replicas) -> bool:
    """Return whether this process is a rank of several replicas, which all ranks make up."""
    if replicas.count == 1 or planning.rank is not None or not dist.is_initialized():
        return False
    ranks = replicas.count * replicas.context_ranks
    is_mesh = isinstance(planning.group, DeviceMesh) and planning.group.ndim > 1
    return is_mesh or dist.get_world_size() == ranks


def compare_replicas(device: int, note: str) -> None:
    """Compare a note with that of the rank that came first, n-th call with n-th call.

    No rank waits for another one: the first leaves its note, and ranks that come later raise before
    they train, so that no step mixes different data.
    """
    store = open_store(None, "dcp-replicas", TIMEOUT_S)
    try:
        first = store.compare_set("note", "", f"{device} {note}").decode()
    except RuntimeError as error:
        raise RunError(f"{str(error).splitlines()[0]}; the cause is {SERVER}") from error
    other, _, expected = first.partition(" ")
    if expected != note:
        raise RunError(
            f"device {device} reads other data than device {other}: expected {expected}, got "
            f"{note}; {SAME_ROWS}. Every rank also needs the same packing and masks, and asks its "
            "loaders for their first batches in the same order"
        )
