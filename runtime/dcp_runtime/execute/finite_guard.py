"""No silent wrong numbers: what arrives and what results is finite, or the run ends.

Optional, because it reads every tensor once more: ``DCPExecutor(check_finite=True)``. With it,
receive buffers are filled with NaN before anything arrives, so that a row that is read too early,
or never written, is found as well.
"""

from collections.abc import Sequence

import torch

from dcp_planner import Direction
from dcp_runtime.errors import RunError
from dcp_runtime.transport.transport import Parcel


class NotFiniteError(RunError):
    """A tensor holds NaN or an infinite value; ``rank`` says whose."""


def poison(tensors: Sequence[torch.Tensor]) -> None:
    """Fill tensors with NaN."""
    for tensor in tensors:
        tensor.fill_(torch.nan)


def check_arrived(parcel: Parcel, direction: Direction) -> None:
    """Check what another rank sent; -inf is what the lse of a row without keys looks like.

    Raises:
        NotFiniteError: names the rank that sent it, and the division.
    """
    for tensor in parcel.tensors:
        if _is_bad(tensor):
            transfer = parcel.transfer
            raise NotFiniteError(
                f"rank {transfer.peer} sent {transfer.name} with NaN or infinite values in "
                f"division {parcel.division} of {direction}; look at the inputs of its attention",
                rank=transfer.peer,
                division=parcel.division,
            )


def check_result(rank: int, direction: Direction, **tensors: torch.Tensor) -> None:
    """Check what a layer gives.

    Raises:
        NotFiniteError: names this rank.
    """
    for name, tensor in tensors.items():
        finite = torch.isfinite(tensor)
        if not finite.all():
            count = int((~finite).sum())
            row = int((~finite).nonzero()[0, 0])
            raise NotFiniteError(
                f"rank {rank}: {name} has {count} values that are not finite after {direction}, "
                f"the first one at local token {row}; look at the inputs of this layer",
                rank=rank,
                division=0,
            )


def _is_bad(tensor: torch.Tensor) -> bool:
    return bool((torch.isnan(tensor) | (tensor == torch.inf)).any())
