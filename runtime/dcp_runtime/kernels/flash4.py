"""FlashAttention-4, the package flash-attn-4 (extra ``flash``), as operators of the flash backend.

Its plain variable-length kernels on gathered rows; masks are cut into calls as for `flash`.
Facts of version 4.0.0b36, read from the package: out and lse (``[Hq, rows]``, natural, float32)
come first in what forward returns; backward subtracts ``rowsum(out * dout) - dlse`` from dp, so
zeros for out and minus delta for dlse bring our delta in without rounding it to 16 bits; gradients
come in the dtype of q. Compiled with CuTe, for compute capability 9 and up, at the first call of a
shape.

This project has not run it on a GPU: tests replace the module by a stand-in with its signatures.
"""

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from dcp_runtime.kernels.flash import FlashCall, FlashKernel, flash_refusal
from dcp_runtime.kernels.kernel import QueryRows

HEAD_DIMS_TO = 128
"""More on some devices, but then without dlse on others."""
OLDEST = 36
"""Beta before which backward on compute capability 9 gives wrong gradients now and then."""


class Flash4Kernel(FlashKernel):
    """Attention through the kernels of flash-attn-4.

    Args:
        operators: module with ``_flash_attn_fwd`` and ``_flash_attn_bwd``; that of the package if
            ``None``.
    """

    name = "flash4"

    def __init__(self, operators: Any = None) -> None:  # Any: the package has no types
        super().__init__(operators or import_module("flash_attn.cute.interface"))

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, call: FlashCall, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse, *_ = self._operators._flash_attn_fwd(
            q, k, v, **_segments(call), softmax_scale=scale, return_lse=True
        )
        return out, lse

    def _gradients(
        self, rows: QueryRows, k: Tensor, v: Tensor, call: FlashCall, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = self._operators._flash_attn_bwd(
            rows.q, k, v, torch.zeros_like(rows.q), rows.dout, rows.lse,
            **_segments(call), softmax_scale=scale, dlse=-rows.delta,
        )  # fmt: skip
        return dq, dk, dv


def _segments(call: FlashCall) -> dict[str, Tensor | int | bool]:
    return {
        "cu_seqlens_q": call.cu_seqlens_q,
        "cu_seqlens_k": call.cu_seqlens_k,
        "max_seqlen_q": call.max_q,
        "max_seqlen_k": call.max_k,
        "causal": call.causal,
    }


def flash4_refusal(dtype: torch.dtype, device: torch.device, head_dim: int | None) -> str | None:
    """Return why flash-attn-4 cannot compute this here, ``None`` if it can."""
    if refused := flash_refusal(dtype, device, head_dim, HEAD_DIMS_TO):
        return refused
    try:
        found = version("flash-attn-4")
    except PackageNotFoundError:
        return "flash-attn-4 is not installed; pip install 'dcp-dsl[flash]'"
    beta = re.fullmatch(r"4\.0\.0b(\d+)", found)
    if found.startswith("0.") or (beta and int(beta[1]) < OLDEST):
        return f"flash-attn-4 {found} may give wrong gradients; install 4.0.0b{OLDEST} or newer"
    if torch.cuda.get_device_capability(device)[0] not in (9, 10, 11):
        return "needs a GPU of compute capability 9, 10 or 11"
    return None
