"""The choice of a kernel, with the reason why each other kernel cannot compute."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from dcp_runtime.errors import RunError
from dcp_runtime.kernels.cost import Cost, predict
from dcp_runtime.kernels.cpu import CpuKernel
from dcp_runtime.kernels.flash import Flash4Kernel, FlashKernel, flash4_refusal, flash_refusal
from dcp_runtime.kernels.kernel import Kernel, ReferenceKernel, TensorKind
from dcp_runtime.plans.device_plan import DevicePlan

KERNELS = ("triton", "flash4", "flash", "cpu", "reference")  # in order of preference
COMPARED = ("triton", "flash4")  # kernels whose predicted times decide between them

_CPU_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# As `Kernel.segment_rows` of the classes; that of Triton loads only where it is installed.
_SEGMENT_ROWS = {"triton": 128, "reference": 512}
_MEMORY = "memory grows with tokens squared; ask for it by kernel='reference'"
_ANY_ORDERED = ("flash4", "flash")
_ANY_ORDER = "adds gradients in any order, and torch.use_deterministic_algorithms is on"
ITS_OWN_ORDER = "adds in an order of its own, and the plan is reproducible"
_UNCAPPED = {
    "flash4": "is called without a soft cap",
    "flash": "torch's operator caps no scores",
    "cpu": "torch's operator caps no scores",
}
_INTERPRETER = ", or set TRITON_INTERPRET=1 to interpret this one, thousands of times slower"


def known_kernel(name: str) -> str:
    """Return the name of a known kernel, whether or not it can run here."""
    if name not in KERNELS:
        raise RunError(f"expected a kernel out of {', '.join(KERNELS)}, got {name!r}")
    return name


def segment_rows(wanted: str | None) -> int:
    """Return the query rows per segment of a table made before the tensors are known."""
    # Every kernel takes segments of any size; this size suits the kernel that is likely chosen.
    return _SEGMENT_ROWS.get(wanted or "", Kernel.segment_rows)


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernel that was chosen, and (name, reason) of every other kernel."""

    kernel: Kernel
    refused: tuple[tuple[str, str], ...]
    is_kept: bool = False  # chosen and predicted for an earlier plan

    def explain(self) -> str:
        """Return the choice as lines of text: the kernel, and the reason against each other kernel.

        >>> print(choose_kernel(torch.float32, wanted="cpu").explain().splitlines()[0])
        kernel 'cpu'
        """
        reasons = (f"  not {name!r}: {reason}" for name, reason in self.refused)
        kept = ", chosen and predicted for an earlier plan" if self.is_kept else ""
        return "\n".join([f"kernel {self.kernel.name!r}{kept}", *reasons])


def choose_kernel(
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    wanted: str | None = None,
    head_dim: int | None = None,
    softcap: float | None = None,
    part: DevicePlan | None = None,
) -> KernelChoice:
    """Choose the first kernel in order of preference that can compute, or the wanted one.

    Where both `triton` and `flash4` can, the choice is the kernel that is predicted to be faster on
    `part`. Under ``torch.use_deterministic_algorithms`` only kernels are chosen that give the same
    bits in every run. The reference is never chosen on CUDA unless asked for: it stores all scores
    of a piece. Where no kernel can compute, the error lists the reasons.

    >>> choose_kernel(torch.float32).kernel.name
    'cpu'
    >>> choose_kernel(torch.float32, wanted="reference").refused[3]
    ('cpu', "'reference' was asked for")
    """
    asked = None if wanted is None else known_kernel(wanted)
    place = torch.device(device)
    reasons = _reasons(dtype, place, asked, head_dim, softcap)
    if part is not None and part.plan.is_reproducible:
        reasons |= {name: reasons[name] or ITS_OWN_ORDER for name in _ANY_ORDERED}
    able = [name for name in KERNELS if reasons[name] is None]
    # On the CPU, Triton kernels are interpreted, for tests: any compiled kernel is faster.
    able.sort(key=lambda name: name == "triton" and place.type == "cpu")
    if not able:
        why = ", ".join(f"{name} ({reason})" for name, reason in reasons.items() if reason)
        raise RunError(f"no kernel computes {dtype} on {device}: {why}")
    if asked and asked not in able:
        way_out = f"use kernel {able[0]!r}"
        if asked == "triton" and place.type == "cpu" and find_spec("triton") is not None:
            way_out += _INTERPRETER
        raise RunError(
            f"cannot use kernel {asked!r} for {dtype} on {device}: {reasons[asked]}; {way_out}"
        )
    if asked is None and part is not None and set(COMPARED) <= set(able):
        shape = part.plan.shape
        # No soft cap: `flash4`, which applies none, would not be able.
        kind = TensorKind(dtype, place, shape.head_dim, group=shape.q_heads // shape.kv_heads)
        return _choose_by_cost(kind, part, reasons)
    chosen = asked or able[0]
    better = f"{chosen!r} was asked for" if asked else f"{chosen!r} is preferred"
    return KernelChoice(_make(chosen, softcap), _refused(chosen, reasons, better))


def _choose_by_cost(
    kind: TensorKind, part: DevicePlan, reasons: dict[str, str | None]
) -> KernelChoice:
    made: dict[str, Kernel] = {}
    costs: dict[str, Cost] = {}
    for name in COMPARED:
        try:
            made[name] = _make(name, None)
            costs[name] = predict(made[name], part, kind)
        except (ImportError, RunError) as error:  # its package is broken; too many rows
            reasons[name] = str(error)
    chosen = min(costs, key=lambda name: costs[name].seconds)
    for name, cost in costs.items():
        reasons[name] = f"predicted: {cost}; {chosen!r}: {costs[chosen]}"
    return KernelChoice(made[chosen], _refused(chosen, reasons, f"{chosen!r} is preferred"))


def _refused(
    chosen: str, reasons: Mapping[str, str | None], better: str
) -> tuple[tuple[str, str], ...]:
    # A kernel without a reason could compute, but is less preferred than the chosen one.
    return tuple((name, reasons[name] or better) for name in KERNELS if name != chosen)


def _reasons(
    dtype: torch.dtype,
    place: torch.device,
    asked: str | None,
    head_dim: int | None,
    softcap: float | None,
) -> dict[str, str | None]:
    """Return by name why a kernel cannot be chosen, ``None`` if it can."""
    reasons = {name: _refusal(name, dtype, place, head_dim) for name in KERNELS}
    if softcap is not None:
        reasons = {name: reason or _UNCAPPED.get(name) for name, reason in reasons.items()}
    if place.type == "cuda" and asked != "reference" and reasons["reference"] is None:
        reasons["reference"] = _MEMORY
    # A kernel that was asked for by name is the user's own decision.
    if asked is None and torch.are_deterministic_algorithms_enabled():
        reasons |= {name: reasons[name] or _ANY_ORDER for name in _ANY_ORDERED}
    return reasons


def _make(name: str, softcap: float | None) -> Kernel:
    if name == "reference":
        return ReferenceKernel(softcap)
    if name == "triton":
        from dcp_runtime.kernels.triton_kernel import TritonKernel  # triton is an extra

        return TritonKernel(softcap)
    kernels: dict[str, type[Kernel]] = {
        "flash4": Flash4Kernel, "flash": FlashKernel, "cpu": CpuKernel
    }  # fmt: skip
    return kernels[name]()


def _refusal(
    name: str, dtype: torch.dtype, device: torch.device, head_dim: int | None
) -> str | None:
    if not dtype.is_floating_point:
        return f"needs floating-point tensors, got {dtype}"
    if name == "triton":
        return _triton_refusal(dtype, device, head_dim)
    if name == "flash4":
        return flash4_refusal(dtype, device, head_dim)
    if name == "flash":
        lacks = not hasattr(torch.ops.aten, "_flash_attention_forward")
        missing = f"torch {torch.__version__} lacks the flash attention operator" if lacks else None
        return flash_refusal(dtype, device, head_dim) or missing
    if name == "reference":
        return None
    if device.type != "cpu":
        return f"needs tensors on the CPU, got {device}"
    if dtype not in _CPU_DTYPES:
        return f"needs one of {', '.join(map(str, _CPU_DTYPES))}"
    if not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return f"torch {torch.__version__} lacks the CPU flash attention operator"
    return None


def _triton_refusal(dtype: torch.dtype, device: torch.device, head_dim: int | None) -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed; pip install 'dcp-dsl[triton]'"
    if device.type != "cuda" and not (device.type == "cpu" and _is_interpreted()):
        return f"needs tensors on a CUDA device, got {device}"
    from dcp_runtime.kernels.triton_kernel import DTYPES, HEAD_DIMS

    if dtype not in DTYPES:
        return f"needs one of {', '.join(map(str, DTYPES))}, got {dtype}"
    if head_dim is not None and head_dim not in HEAD_DIMS:
        return f"needs head_dim out of {', '.join(map(str, HEAD_DIMS))}, got {head_dim}"
    if device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    if major >= 8:  # tensor cores compute bfloat16
        return None
    name = torch.cuda.get_device_name(device)
    return f"needs a GPU of compute capability 8.0 or newer, got {name} of {major}.{minor}"


def _is_interpreted() -> bool:
    """Return whether Triton runs its kernels on the CPU, which the process decides as it starts."""
    from triton import knobs

    return bool(knobs.runtime.interpret)
