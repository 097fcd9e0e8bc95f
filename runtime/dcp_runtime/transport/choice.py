"""Choose the transport of a process group."""

from typing import Literal, TypeAlias

import torch
import torch.distributed as dist

from dcp_runtime.errors import RunError
from dcp_runtime.transport.gloo_transport import GlooTransport
from dcp_runtime.transport.group_transport import member_ranks
from dcp_runtime.transport.nccl_transport import NcclTransport
from dcp_runtime.transport.transport import Transport

TransportName: TypeAlias = Literal["symmetric"]


def make_transport(
    group: dist.ProcessGroup | None, timeout_s: float, name: TransportName | None = None
) -> Transport:
    """Make the transport of a group: NCCL where that moves its CUDA tensors, else gloo.

    A group may have a backend per device: ``"cpu:gloo,cuda:nccl"``. Where `name` asks for it,
    blocks inside a node travel through symmetric memory.
    """
    member_ranks(group)  # get_backend_config would not say which group it is
    if name == "symmetric":
        # It needs parts of torch that are not public: no other transport must miss them.
        from dcp_runtime.transport.symmetric_transport import SymmetricTransport

        return SymmetricTransport(group, timeout_s)
    if name is not None:
        raise RunError(f"expected transport 'symmetric', a Transport or None, got {name!r}")
    backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    if backends.get("cuda") == "nccl" and torch.cuda.is_available():
        return NcclTransport(group, timeout_s)
    return GlooTransport(group, timeout_s)
