"""The gradients that a step should have, and what a rank's gradient is instead.

They come from what each backward added on one process, whatever the script did with it afterwards.
Where the data of both runs differ, they come from what the ranks added, each weighed by the targets
that it divided by.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_runtime.auditing.record import Run, Tensors

PRECISE, COARSE = 5e-3, 0.1
"""Relative differences that count as rounding, in float32 and in 16 bits."""
NOISE = {PRECISE: 1e-6, COARSE: 1e-2}
"""Gradients so much smaller than the largest are rounding, such as those of biases of keys."""


@dataclass(frozen=True)
class Right:
    """The right gradients of a step before clipping, and the norm to which the script clips."""

    raw: Tensors
    most: float | None = None  # None: no clipping, or torch's function, which is seen

    @property
    def taken(self) -> Tensors:
        """The gradients with which a step is taken."""
        norm = norm_of(self.raw)
        if self.most is None or norm <= self.most:
            return self.raw
        return {name: self.most / norm * value for name, value in self.raw.items()}


def norm_of(tensors: Tensors) -> float:
    """Return the norm of all tensors together."""
    return float(np.sqrt(sum(float(np.vdot(each, each)) for each in tensors.values())))


def size_of(value: NDArray[Any]) -> float:
    """Return the root of the mean of the squares."""
    return float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0


def is_close(a: NDArray[Any], b: NDArray[Any], tolerance: float) -> bool:
    """Return whether two tensors are equal up to rounding."""
    return bool(np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b))


def ratio_of(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the factor by which b comes closest to a."""
    square = float(np.vdot(b, b))
    return float(np.vdot(a, b)) / square if square else 0.0


def tolerance_of(run: Run, step: int) -> float:
    """Return which relative difference is rounding."""
    return COARSE if any(own[step].info.get("is_coarse") for own in run.steps) else PRECISE


def unclipped(run: Run, step: int, rank: int) -> Tensors:
    """Return a rank's gradients of a step, before clipping if that was the last change of them."""
    taken, before = run.tensors(step, "grad", rank), run.tensors(step, "unclipped", rank)
    if any(own[step].info.get("is_cut") for own in run.steps):
        return taken | before  # value by value, by no factor
    clips = [own[step].info.get("clip") for own in run.steps]
    for name, value in before.items():
        factors = [clip["scale"] for clip in clips if clip]
        if name in taken and not any(is_close(taken[name], f * value, PRECISE) for f in factors):
            return taken
    return taken | before


def own_factor(alone: Run, step: int) -> float | None:
    """Return by what a script multiplies what backward adds; `None` if not all by the same."""
    own, local = unclipped(alone, step, 0), alone.tensors(step, "local", 0)
    factors = [
        factor for name in local if name in own
        if is_close((factor := ratio_of(own[name], local[name])) * local[name], own[name], PRECISE)
    ]  # fmt: skip
    return float(np.median(factors)) if 2 * len(factors) > len(local) else None


def _clips_to(alone: Run) -> float | None:
    """Return the norm to which a script clips by itself: gradients that differ end with it."""
    seen = []
    for step, record in enumerate(alone.steps[0]):
        if record.is_taken and record.of("local") and "clip" not in record.info:
            factor = own_factor(alone, step)
            seen.append((factor or 1.0, norm_of(alone.tensors(step, "grad", 0))))
    alike = [
        a[1] for a, b in pairwise(seen)
        if abs(a[1] - b[1]) < 1e-3 * a[1] and abs(a[0] - b[0]) > 1e-4 * a[0]
    ]  # fmt: skip
    return alike[0] if alike else None


def right_of_one(alone: Run, step: int, batches: int) -> Right | None:
    """Return the right gradients of the ranks, whose batch is so many of one process."""
    steps = range(step * batches, (step + 1) * batches)
    if steps[-1] >= alone.length or not all(alone.steps[0][s].is_taken for s in steps):
        return None
    if not alone.steps[0][steps[-1]].of("grad"):
        return None
    divisors = [
        next((b.divisor or 1.0 for _, _, b in alone.micro_batches(s) if b.count), 1.0)
        for s in steps
    ]  # fmt: skip
    whole: Tensors = {}
    most = _clips_to(alone)
    for s, divisor in zip(steps, divisors, strict=True):
        own, local = unclipped(alone, s, 0), alone.tensors(s, "local", 0)
        factor = 1.0 if most is not None else own_factor(alone, s) or 1.0
        for name in own | local:
            value = factor * local[name] if name in local else own[name]
            whole[name] = whole.get(name, 0) + divisor / sum(divisors) * value
    return Right(whole, most)


def right_of_ranks(ranks: Run, step: int) -> Right | None:
    """Return the mean over all targets of a step, from what the ranks added to their gradients."""
    batches = list(ranks.micro_batches(step))
    total = sum(each.count for _, _, each in batches)
    whole: Tensors = {}
    for rank in range(ranks.ranks if total else 0):
        divisors = [each.divisor for r, _, each in batches if r == rank and each.count]
        known = [divisor for divisor in divisors if divisor]
        if len(known) < len(divisors) or (known and max(known) > 1.002 * min(known)):
            return None
        for name, value in ranks.tensors(step, "local", rank).items():
            whole[name] = whole.get(name, 0) + value * (known[0] / total if known else 0.0)
    return Right(whole) if whole else None


def verdict(
    own: NDArray[Any] | None,
    right: NDArray[Any],
    parts: list[NDArray[Any] | None],
    rank: int,
    earlier: NDArray[Any] | None,
    tolerance: float,
) -> tuple[str, float]:
    """Return what a rank's gradient is, and its ratio to the right one.

    `parts` are what each rank added to its own, `earlier` is the right one of the step before, and
    relative differences up to `tolerance` are rounding.
    """
    if own is None or not np.any(own):
        return "missing", 0.0
    if own.shape != right.shape:
        return "of another shape", 0.0
    ratio = ratio_of(own, right)
    if is_close(own, right, tolerance):
        return "right", ratio
    known = [part for part in parts if part is not None]
    is_scaled = is_close(own, ratio * right, tolerance)
    if is_scaled and (name := _factor_of(ratio, own, parts, tolerance)):
        return name, ratio
    users = _users(own, parts, rank, tolerance)
    if 0 < len(users) < len(known):
        is_mean = is_close(right, np.mean(known, axis=0), tolerance)
        return "partial of a mean" if is_mean else "partial", ratio
    if is_scaled:
        return "scaled", ratio
    if earlier is not None and earlier.shape == own.shape:
        rest = own - right
        if is_close(rest, ratio_of(rest, earlier) * earlier, tolerance):
            return "stale", ratio
    return "wrong", ratio


def _users(
    own: NDArray[Any], parts: list[NDArray[Any] | None], rank: int, tolerance: float
) -> list[int]:
    """Return the ranks whose parts make the gradient of a rank, its own among them; else none."""
    known = {n: p for n, p in enumerate(parts) if p is not None and p.shape == own.shape}
    if rank not in known:
        return []
    columns = np.stack([part.ravel() for part in known.values()], 1)
    weights, *_ = np.linalg.lstsq(columns, own.ravel(), rcond=None)
    users = [n for n, w in zip(known, weights, strict=True) if abs(w) > 0.1 * abs(weights).max()]
    whole = np.sum([known[n] for n in users], axis=0)
    is_sum = rank in users and is_close(own, ratio_of(own, whole) * whole, tolerance)
    return users if is_sum else []


def _factor_of(
    ratio: float, own: NDArray[Any], parts: list[NDArray[Any] | None], tolerance: float
) -> str | None:
    """Name the factor between a gradient and the right one."""
    known = [part for part in parts if part is not None]
    if len(known) > 1 and abs(ratio - len(known)) <= tolerance * ratio:
        return "a sum of means" if is_close(own, np.sum(known, axis=0), tolerance) else "doubled"
    names = {"averaged": 1 / len(parts), "doubled": 2.0}
    return next((n for n, f in names.items() if abs(ratio - f) <= tolerance * f), None)
