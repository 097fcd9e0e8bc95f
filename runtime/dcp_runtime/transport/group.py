"""The ranks that share the attention, as a person names them."""

from typing import TypeAlias

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dcp_runtime.errors import RunError

Group: TypeAlias = dist.ProcessGroup | DeviceMesh


def process_group(group: Group | None) -> dist.ProcessGroup | None:
    """Give the group of a mesh's ranks; a group, or ``None`` for all ranks, as it is.

    Raises:
        RunError: if the mesh has several dims.
    """
    if not isinstance(group, DeviceMesh):
        return group
    if group.ndim != 1:
        raise RunError(
            f"expected a DeviceMesh of one dim, got {group.ndim} dims {group.mesh_dim_names}; pass "
            "the one whose ranks share the attention, for example mesh['cp']"
        )
    return group.get_group()
