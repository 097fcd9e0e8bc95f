"""The transports of process groups by name, and the choice by a group's backend; loads none."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import torch.distributed as dist

    from dcp_runtime.transport.group_transport import GroupTransport

GroupTransportName: TypeAlias = Literal["gloo", "nccl"]
GROUP_TRANSPORTS: dict[GroupTransportName, str] = {
    "gloo": "gloo_transport:GlooTransport",
    "nccl": "nccl_transport:NcclTransport",
}


def make_transport(
    group: "dist.ProcessGroup | None", timeout_s: float, name: GroupTransportName | None = None
) -> "GroupTransport":
    """Make the transport of that name, or NCCL where that moves a group's CUDA tensors, or gloo."""
    import torch
    import torch.distributed as dist

    from dcp_runtime.transport.group_transport import member_ranks

    # A group may have a backend per device: "cpu:gloo,cuda:nccl".
    member_ranks(group)  # refuses a group without this rank; get_backend_config would name no group
    backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    has_nccl = backends.get("cuda") == "nccl" and torch.cuda.is_available()
    place = GROUP_TRANSPORTS[name or ("nccl" if has_nccl else "gloo")]
    made: GroupTransport = resolve_name(f"{__package__}.{place}")(group, timeout_s)
    return made
