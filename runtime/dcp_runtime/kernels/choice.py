"""Which kernel computes, and why the others do not."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch

from dcp_runtime.errors import RunError
from dcp_runtime.kernels.cpu import CpuKernel
from dcp_runtime.kernels.kernel import Kernel
from dcp_runtime.kernels.reference import ReferenceKernel

KernelName: TypeAlias = Literal["cpu", "reference"]
KERNELS: tuple[KernelName, ...] = get_args(KernelName)
"""In order of preference."""

_CPU_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernel that was chosen and the reason against each other one.

    Attributes:
        kernel: what computes.
        refused: (name, reason) of every other kernel.
    """

    kernel: Kernel
    refused: tuple[tuple[str, str], ...]


def choose_kernel(
    dtype: torch.dtype, device: torch.device | str = "cpu", wanted: str | None = None
) -> KernelChoice:
    """Choose the fastest kernel that can compute, or the wanted one.

    Args:
        dtype: type of q, k and v.
        device: where the tensors live.
        wanted: a name of `KERNELS`, or ``None`` for the fastest.

    Raises:
        RunError: if the wanted kernel, or every kernel, cannot compute this; lists the reasons.

    >>> choose_kernel(torch.float32).kernel.name
    'cpu'
    >>> choose_kernel(torch.float32, wanted="reference").refused
    (('cpu', "'reference' was asked for"),)
    """
    if wanted is not None and wanted not in KERNELS:
        raise RunError(f"expected a kernel out of {', '.join(KERNELS)}, got {wanted!r}")
    reasons = {name: _refusal(name, dtype, torch.device(device)) for name in KERNELS}
    able = [name for name in KERNELS if reasons[name] is None and wanted in (None, name)]
    if not able:
        asked = f"kernel {wanted!r}" if wanted else "any kernel"
        why = ", ".join(f"{name} ({reason})" for name, reason in reasons.items() if reason)
        raise RunError(f"cannot use {asked} for {dtype} on {device}: {why}")
    chosen = able[0]
    better = f"{chosen!r} was asked for" if wanted else f"{chosen!r} is faster"
    refused = tuple((name, reasons[name] or better) for name in KERNELS if name != chosen)
    return KernelChoice(CpuKernel() if chosen == "cpu" else ReferenceKernel(), refused)


def _refusal(name: KernelName, dtype: torch.dtype, device: torch.device) -> str | None:
    if not dtype.is_floating_point:
        return f"needs floating-point tensors, got {dtype}"
    if name == "reference":
        return None
    if device.type != "cpu":
        return f"needs tensors on the CPU, got {device}"
    if dtype not in _CPU_DTYPES:
        return f"needs one of {', '.join(map(str, _CPU_DTYPES))}"
    if not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return f"torch {torch.__version__} lacks the CPU flash attention operator"
    return None
