"""Verification: compares a run, and eager attention beside it, with dense float64 attention.

A run is verified if, for each of out, dq, dk and dv, by norm and at the worst element, its error
against float64 is at most twice that of eager attention in the run's own dtype, plus one rounding
unit of that dtype, plus the inevitable error of cutting attention in pieces: `RowErrors`, the
expected error of a computation that keeps lse and delta of a row between its pieces, times
`NORM_DEVIATIONS` and `PEAK_DEVIATIONS`. `RowErrors` is no slack for faults: it is a few units of
the tensor itself, except where terms cancel exactly in eager attention, as in a row that sees one
key, and only there and by as much as delta's rounding leaves.

In float64 eager attention has the precision of the reference, so both carry rounding of the same
size. Rounding units count sixteen times there.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dcp_dsl import DCPError, Mask, Sample, Spec, dense_mask
from dcp_planner import Plan, Provenance
from dcp_runtime.errors import RunError
from dcp_runtime.kernels.kernel import accumulator_dtype
from dcp_runtime.verify.dense_attention import HeadResults, HeadTensors, Rounding, eager, exact

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
"""Names of element types, as commands and configurations write them."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tensors of some blocks of one layer."""

    q: Tensor
    kv: Tensor
    dout: Tensor

    def to(self, device: torch.device) -> "Inputs":
        """Return the same tensors on another device."""
        return Inputs(*(tensor.to(device) for tensor in (self.q, self.kv, self.dout)))


def random_inputs(
    plan: Plan, blocks: list[int], layer: int, seed: int, dtype: torch.dtype
) -> Inputs:
    """Draw the tensors of some blocks; a block's values depend on the arguments alone."""
    shape = plan.shape
    per_token = {
        "q": (shape.q_heads, shape.head_dim),
        "kv": (2, shape.kv_heads, shape.head_dim),
        "dout": (shape.q_heads, shape.head_dim),
    }
    # An empty part first: a rank may own no block.
    parts: dict[str, list[Tensor]] = {
        name: [torch.empty(0, *size, dtype=dtype, device="cpu")] for name, size in per_token.items()
    }
    for block in blocks:
        # A generator per block: a rank draws its own blocks, the verification all, alike.
        rng = np.random.default_rng([seed, layer, block])
        tokens = int(plan.blocks.num_tokens[block])
        for name, size in per_token.items():
            drawn = torch.from_numpy(rng.standard_normal((tokens, *size)))
            parts[name].append(drawn.to(dtype))
    return Inputs(**{name: torch.cat(tensors) for name, tensors in parts.items()})


MaskSource: TypeAlias = Literal["provenance", "slabs"]
"""Of the spec's text, through the dense oracle; or of a plan that names no spec, to be trusted."""
TENSORS = ("out", "dq", "dk", "dv")
NORM_DEVIATIONS = 2.0
"""Multiple of `RowErrors` that the norm may reach: over one row it is as uncertain as a number."""
PEAK_DEVIATIONS = 3.0  # multiple of `RowErrors` that the worst of many elements may reach


@dataclass(frozen=True, slots=True)
class TensorError:
    """Error of one tensor of a run against float64, beside eager attention of the same dtype.

    Attributes:
        tensor: ``"out"``, ``"dq"``, ``"dk"`` or ``"dv"``.
        relative, eager: norm of the error by norm of the exact tensor.
        relative_max, eager_max: largest error by largest exact element.
        ok: whether both errors are within the bound that the module states.
    """

    tensor: str
    relative: float
    eager: float
    relative_max: float
    eager_max: float
    ok: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """The errors of a run against dense attention, and whether they are small enough."""

    errors: tuple[TensorError, ...]  # one per tensor
    mask_source: MaskSource

    @property
    def is_ok(self) -> bool:
        """Return whether every tensor is within the bound."""
        return all(error.ok for error in self.errors)


def _rounding_of(dtype: torch.dtype) -> Rounding:
    units = 16 if dtype == torch.float64 else 1
    sums = accumulator_dtype(dtype)
    return Rounding(units * torch.finfo(dtype).eps, units * torch.finfo(sums).eps)


class _Tally:
    """Squares and largest elements, over sequences and heads, behind one `TensorError`."""

    def __init__(self) -> None:
        # Of the error, of that of eager attention, of the exact tensor, and of its `RowErrors`.
        self.squares, self.largest = [0.0] * 4, [0.0] * 4

    def add(self, got: Tensor, same: Tensor, want: Tensor, spread: Tensor) -> None:
        """Add one tensor of the run, of eager attention, of the reference; its `RowErrors`."""
        for n, each in enumerate((got.double() - want, same.double() - want, want, spread)):
            if each.numel():
                self.squares[n] += float(each.square().sum())
                self.largest[n] = max(self.largest[n], float(each.abs().max()))

    def finish(self, tensor: str, rounding: Rounding) -> TensorError:
        """Turn the sums into relative errors."""
        error, same, exact, spread = map(math.sqrt, self.squares)
        error_max, same_max, exact_max, spread_max = self.largest
        # Tensors of zeros, as without visible pairs, have no relative error: it is absolute then.
        norm, peak, unit = exact or 1.0, exact_max or 1.0, rounding.tensor
        is_ok = error <= 2 * same + unit * norm + NORM_DEVIATIONS * spread
        is_ok &= error_max <= 2 * same_max + unit * peak + PEAK_DEVIATIONS * spread_max
        return TensorError(
            tensor, error / norm, same / norm, error_max / peak, same_max / peak, ok=is_ok
        )


def verify(
    plan: Plan, layers: Sequence[tuple[Inputs, Mapping[str, Tensor]]], dtype: torch.dtype
) -> Verification:
    """Compare layers of a run with dense attention, sequence by sequence and head by head.

    Its time grows with the pairs of a dense mask at worst, with the visible pairs at best. Its
    memory is the mask of one sequence and about six matrices of 128 MiB. The results of a layer, in
    packed order, are ``out``, ``dq`` ``[T, Hq, D]`` and ``dkv`` ``[T, 2, Hkv, D]``.
    """
    tallies = {tensor: _Tally() for tensor in TENSORS}
    rounding = _rounding_of(dtype)
    for start, end, mask in _masks(plan):
        span = slice(start, end)
        for inputs, results in layers:
            for kv_head in range(plan.shape.kv_heads):
                head, got = _head(inputs, results, span, kv_head)
                want, spread = exact(head, mask, rounding)
                of_all = got, eager(head, mask), want, spread
                for tensor, tally in tallies.items():
                    tally.add(*(getattr(each, tensor) for each in of_all))
    return Verification(
        tuple(tally.finish(tensor, rounding) for tensor, tally in tallies.items()),
        "slabs" if plan.provenance is None else "provenance",
    )


def _head(
    inputs: Inputs, results: Mapping[str, Tensor], span: slice, kv_head: int
) -> tuple[HeadTensors, HeadResults]:
    # Grouped-query attention: neighbouring query heads share a kv head.
    groups = inputs.q.shape[1] // inputs.kv.shape[2]
    q_heads = slice(kv_head * groups, (kv_head + 1) * groups)

    def of_q(tensor: Tensor) -> Tensor:
        return tensor[span, q_heads].transpose(0, 1)

    k, v = inputs.kv[span, 0, kv_head], inputs.kv[span, 1, kv_head]
    head = HeadTensors(of_q(inputs.q), k, v, of_q(inputs.dout))
    dkv = results["dkv"][span, :, kv_head]
    return head, HeadResults(of_q(results["out"]), of_q(results["dq"]), dkv[:, 0], dkv[:, 1])


def _masks(plan: Plan) -> Iterator[tuple[int, int, Tensor]]:
    """Yield start, end and dense mask of each sequence."""
    cu = plan.cu_seqlens.tolist()
    spans = list(pairwise(cu))
    if plan.provenance is None:
        for start, end in spans:
            yield start, end, torch.from_numpy(_densify(plan, start, end))
        return
    mask, samples = _rebuild(plan.provenance)
    lengths = [end - start for start, end in spans]
    if [sample.length for sample in samples] != lengths:
        raise RunError(
            f"the plan's provenance has samples of {[s.length for s in samples][:8]} tokens, its "
            f"sequences have {lengths[:8]}; build the plan again"
        )
    for (start, end), sample in zip(spans, samples, strict=True):
        yield start, end, torch.tensor(dense_mask(mask, sample), device="cpu")


def _rebuild(provenance: Provenance) -> tuple[Mask, list[Sample]]:
    try:
        spec = Spec.from_text(provenance.spec, "<plan>", dict(provenance.files))
        mask = spec.mask(provenance.mask)
        return mask, [Sample.from_json(text) for text in provenance.samples]
    except DCPError as error:  # for example a plan of another version of the language
        raise RunError(
            f"the mask {provenance.mask!r} cannot be rebuilt from the spec inside the plan; build "
            f"the plan again with this version\n{error}"
        ) from error


def _densify(plan: Plan, start: int, end: int) -> "np.ndarray[tuple[int, int], np.dtype[np.bool_]]":
    """Return the plan's own mask of a sequence, bool ``[n, n]``."""
    dense = np.zeros((end - start, end - start), bool)
    for placed in plan.forms:
        dense |= placed.tile(start, end, start, end)
    # Row by row, as slabs are defined: code shared with the planner would prove nothing.
    for q0, q1, k0, k1, a, b in plan.slabs.table().tolist():
        for q in range(max(q0, start), min(q1, end)):
            lo, hi = k0 + a * (q - q0), k1 + b * (q - q0)
            dense[q - start, max(lo, start) - start : max(hi, start) - start] = True
    return dense
