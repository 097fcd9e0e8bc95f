"""Compares a run with dense attention in float64, and its error with that of eager attention.

A run is verified if, for each of out, dq, dk and dv, its relative error against float64, by norm
and at the worst element, is at most twice that of eager attention in the run's own dtype plus one
rounding unit of that dtype (sixteen for float64, where eager attention is the reference itself and
both carry rounding).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import torch

from dcp_dsl import DCPError, Mask, Sample, Slabs, Spec, dense_mask
from dcp_planner import Plan, Provenance
from dcp_runtime.dense_attention import HeadResults, HeadTensors, eager, exact
from dcp_runtime.errors import RunError
from dcp_runtime.inputs import Inputs

MaskSource: TypeAlias = Literal["provenance", "slabs"]
TENSORS = ("out", "dq", "dk", "dv")


@dataclass(frozen=True, slots=True)
class TensorError:
    """How far one tensor of a run is from float64, beside eager attention of the same dtype.

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
    """The verdict on a run.

    Attributes:
        errors: one per tensor.
        mask_source: ``"provenance"`` if the mask came from the spec's text through the dense
            oracle, ``"slabs"`` if the plan names no spec and its own slabs had to be trusted.
    """

    errors: tuple[TensorError, ...]
    mask_source: MaskSource

    @property
    def is_ok(self) -> bool:
        """Whether every tensor is within the bound."""
        return all(error.ok for error in self.errors)


@dataclass(slots=True)
class _Tally:
    """Sums over sequences and heads behind one `TensorError`."""

    square: float = 0.0
    eager_square: float = 0.0
    exact_square: float = 0.0
    bound_square: float = 0.0
    largest: float = 0.0
    eager_largest: float = 0.0
    exact_largest: float = 0.0
    bound_largest: float = 0.0

    def add(self, got: torch.Tensor, same: torch.Tensor, want: torch.Tensor, bound: float) -> None:
        """Count one tensor; `bound` is the largest length that a row of it could have."""
        error, eager_error = got.double() - want, same.double() - want
        self.square += float(error.square().sum())
        self.eager_square += float(eager_error.square().sum())
        self.exact_square += float(want.square().sum())
        self.bound_square += bound**2 * (want.numel() // want.shape[-1])
        self.largest = max(self.largest, _largest(error))
        self.eager_largest = max(self.eager_largest, _largest(eager_error))
        self.exact_largest = max(self.exact_largest, _largest(want))
        self.bound_largest = max(self.bound_largest, bound)

    def finish(self, tensor: str, rounding: float) -> TensorError:
        """Turn the sums into relative errors."""
        norm, peak = self.exact_square**0.5, self.exact_largest
        # Terms that cancel exactly (one visible key: dq = dk = 0) leave nothing to relate an error
        # to; the size of the terms is then the measure.
        if norm <= 1e-9 * self.bound_square**0.5:
            norm, peak = self.bound_square**0.5 or 1.0, self.bound_largest or 1.0
        relative, eager_relative = self.square**0.5 / norm, self.eager_square**0.5 / norm
        relative_max, eager_max = self.largest / peak, self.eager_largest / peak
        ok = relative <= 2 * eager_relative + rounding and relative_max <= 2 * eager_max + rounding
        return TensorError(tensor, relative, eager_relative, relative_max, eager_max, ok)


def verify(
    plan: Plan, layers: Sequence[tuple[Inputs, Mapping[str, torch.Tensor]]], dtype: torch.dtype
) -> Verification:
    """Compare layers of a run with dense attention, sequence by sequence and head by head.

    O(visible pairs) time at best, as much memory as about six matrices of 128 MiB.

    Args:
        plan: the plan that was run.
        layers: inputs and results of each layer in packed order; results are ``out``, ``dq``
            ``[T, Hq, D]`` and ``dkv`` ``[T, 2, Hkv, D]``.
        dtype: of the run.

    Raises:
        RunError: if the plan's provenance does not fit its sequences.
    """
    tallies = {tensor: _Tally() for tensor in TENSORS}
    for start, end, mask in _masks(plan):
        span = slice(start, end)
        for inputs, results in layers:
            for kv_head in range(plan.shape.kv_heads):
                head, got = _head(inputs, results, span, kv_head)
                _count(tallies, head, got, mask)
    rounding = torch.finfo(dtype).eps * (16 if dtype == torch.float64 else 1)
    return Verification(
        tuple(tally.finish(tensor, rounding) for tensor, tally in tallies.items()),
        "slabs" if plan.provenance is None else "provenance",
    )


def _count(
    tallies: Mapping[str, _Tally], head: HeadTensors, got: HeadResults, mask: torch.Tensor
) -> None:
    want, same = exact(head, mask), eager(head, mask)
    scale = head.q.shape[-1] ** -0.5
    q, k, v, dout = (float(t.double().norm(dim=-1).max()) for t in _all(head))
    bounds = {"out": v, "dq": scale * dout * v * k, "dk": scale * dout * v * q, "dv": dout}
    for tensor, tally in tallies.items():
        parts = [getattr(results, tensor) for results in (got, same, want)]
        tally.add(parts[0], parts[1], parts[2], bounds[tensor])


def _all(head: HeadTensors) -> tuple[torch.Tensor, ...]:
    return head.q, head.k, head.v, head.dout


def _head(
    inputs: Inputs, results: Mapping[str, torch.Tensor], span: slice, kv_head: int
) -> tuple[HeadTensors, HeadResults]:
    groups = inputs.q.shape[1] // inputs.kv.shape[2]
    q_heads = slice(kv_head * groups, (kv_head + 1) * groups)

    def of_q(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[span, q_heads].transpose(0, 1)

    k, v = inputs.kv[span, 0, kv_head], inputs.kv[span, 1, kv_head]
    head = HeadTensors(of_q(inputs.q), k, v, of_q(inputs.dout))
    dkv = results["dkv"][span, :, kv_head]
    return head, HeadResults(of_q(results["out"]), of_q(results["dq"]), dkv[:, 0], dkv[:, 1])


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _masks(plan: Plan) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Give start, end and dense mask of each sequence."""
    cu = plan.cu_seqlens.tolist()
    spans = list(pairwise(cu))
    if plan.provenance is None:
        for start, end in spans:
            yield start, end, torch.from_numpy(_densify(plan.slabs, start, end))
        return
    mask, samples = _rebuild(plan.provenance)
    lengths = [end - start for start, end in spans]
    if [sample.length for sample in samples] != lengths:
        raise RunError(
            f"the plan's provenance has samples of {[s.length for s in samples][:8]} tokens, its "
            f"sequences have {lengths[:8]}; build the plan again"
        )
    for (start, end), sample in zip(spans, samples, strict=True):
        yield start, end, torch.tensor(dense_mask(mask, sample))


def _rebuild(provenance: Provenance) -> tuple[Mask, list[Sample]]:
    try:
        mask = Spec.from_text(provenance.spec, name="<plan>").mask(provenance.mask)
        return mask, [Sample.from_json(text) for text in provenance.samples]
    except DCPError as error:
        raise RunError(
            f"the mask {provenance.mask!r} cannot be rebuilt from the spec inside the plan; build "
            f"the plan again with this version\n{error}"
        ) from error


def _densify(
    slabs: Slabs, start: int, end: int
) -> "np.ndarray[tuple[int, int], np.dtype[np.bool_]]":
    dense = np.zeros((end - start, end - start), bool)
    for q0, q1, k0, k1, a, b in slabs.table().tolist():
        for q in range(max(q0, start), min(q1, end)):
            lo, hi = k0 + a * (q - q0), k1 + b * (q - q0)
            dense[q - start, max(lo, start) - start : max(hi, start) - start] = True
    return dense
