"""Choose the transport of a process group by its backend."""

import torch
import torch.distributed as dist

from dcp_runtime.transport.gloo_transport import GlooTransport
from dcp_runtime.transport.group_transport import member_ranks
from dcp_runtime.transport.nccl_transport import NcclTransport
from dcp_runtime.transport.transport import Transport


def make_transport(group: dist.ProcessGroup | None, timeout_s: float) -> Transport:
    """Make the transport of a group: NCCL where that moves its CUDA tensors, else gloo."""
    # A group may have a backend per device: "cpu:gloo,cuda:nccl".
    member_ranks(group)  # refuses a group without this rank; get_backend_config would name no group
    backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    if backends.get("cuda") == "nccl" and torch.cuda.is_available():
        return NcclTransport(group, timeout_s)
    return GlooTransport(group, timeout_s)
