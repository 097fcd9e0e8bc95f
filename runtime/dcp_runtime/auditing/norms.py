"""Are gradients clipped by their norm over all ranks, after they were added up?"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dcp_runtime.auditing.findings import AuditFinding
from dcp_runtime.auditing.record import Run, Tensors
from dcp_runtime.auditing.right_gradients import Right, is_close, norm_of, tolerance_of

SAME = 1e-2
_BEFORE = "clip after the gradients of the ranks are added up"
_LOCAL = (
    "take the norm of the gradients of all ranks, after they are added up: "
    "torch.nn.utils.clip_grad_norm_ does, also for shards of FSDP2"
)


def check_norms(ranks: Run, step: int, wanted: Right) -> Iterator[AuditFinding]:
    """Compare norms and factors of clipping with the norm of the right gradients."""
    for rank in range(ranks.ranks):
        clip = ranks.steps[rank][step].info.get("clip")
        found = (
            _check_by_hand(ranks, step, wanted, rank)
            if clip is None
            else _check_call(ranks, step, wanted, rank, clip)
        )
        if found is not None:
            yield found
            return


def _is_like(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * abs(b)


def _check_call(
    ranks: Run, step: int, wanted: Right, rank: int, clip: dict[str, Any]
) -> AuditFinding | None:
    """Check a call of `clip_grad_norm_`, which saw the gradients as they were then."""
    seen = ranks.tensors(step, "unclipped", rank)
    seen = {n: seen[n] for n in clip["names"] if n in seen} or seen
    own = {n: a for n, a in ranks.tensors(step, "local", rank).items() if n in seen}
    taken = ranks.tensors(step, "grad", rank)
    where, what = clip["line"], f"step {step + 1}, rank {rank}"
    whole, mine = norm_of(seen), norm_of(own)
    right = norm_of({n: wanted.raw[n] for n in seen if n in wanted.raw})
    changes = [
        n for n in seen if not is_close(clip["scale"] * seen[n], taken.get(n, seen[n]), SAME)
    ]
    is_acting = clip["scale"] < 1 - SAME or math.isfinite(clip["most"])
    is_wrong = any(
        not is_close(taken[n], wanted.taken[n], SAME) for n in changes if n in wanted.raw
    )
    factor = norm_of(taken) / norm_of(seen) if whole else 1.0
    is_scaled = all(is_close(taken.get(n, a), factor * a, SAME) for n, a in seen.items())
    is_own = not ranks.shards(step) and _is_like(whole, mine)
    if changes and is_wrong and is_acting and (is_own or is_scaled):
        return AuditFinding(
            "norm", "clipped before the sum", f"{what}: gradients are clipped by the norm "
            f"{whole:.4g}, and change afterwards; that of the gradients of all ranks is "
            f"{right:.4g}", f"{where}: {_BEFORE}", ratio=whole / right if right else None,
        )  # fmt: skip
    if clip["kind"] != 2.0 or not whole:
        return None
    norm = clip["norm"]
    if norm is None:  # of shards: only the factor tells
        if clip["scale"] > 1 - SAME and clip["most"] > whole * (1 - SAME):
            return None
        norm = clip["most"] / clip["scale"]
    if _is_like(norm, whole):
        return None
    part = norm_of(ranks.steps[rank][step].of("unclipped"))
    return _by(norm, whole, f"{where}: ", what, is_local=_is_like(norm, mine) or norm == part)


def _by(norm: float, whole: float, where: str, what: str, *, is_local: bool) -> AuditFinding:
    return AuditFinding(
        "norm", "norm of local gradients only" if is_local else "another norm",
        f"{what}: gradients are clipped by the norm {norm:.4g}"
        f"{', of what this rank holds' if is_local else ''}; that of all of them is {whole:.4g}",
        where + _LOCAL, ratio=norm / whole,
    )  # fmt: skip


def _check_by_hand(ranks: Run, step: int, wanted: Right, rank: int) -> AuditFinding | None:
    """Tell from the gradients of a step how a script that clips by itself has clipped."""
    taken, most, tolerance = (
        ranks.tensors(step, "grad", rank), wanted.most, tolerance_of(ranks, step),
    )  # fmt: skip
    local = [ranks.tensors(step, "local", r) for r in range(ranks.ranks)]
    names = [n for n in taken if n in wanted.raw and all(n in own for own in local)]
    if most is None or not names or ranks.ranks < 2:
        return None
    got, want = _flat(taken, names), _flat(wanted.raw, names)
    parts = np.stack([_flat(own, names) for own in local], 1)
    what = f"step {step + 1}, rank {rank}"
    norms, whole = np.linalg.norm(parts, axis=0), float(np.linalg.norm(want))
    length = norm_of(taken)
    if is_close(got, min(1.0, most / whole) * want, tolerance):
        return None
    part = norm_of(ranks.steps[rank][step].of("grad"))
    if ranks.shards(step) and _is_like(part, most) and not _is_like(length, most):
        return _by(part / length * whole, whole, "", what, is_local=True)
    if is_close(got, length / whole * want, tolerance):
        norm = float(most / length * whole)
        is_local = any(_is_like(norm, each) for each in (norms[rank], norms[rank] / len(norms)))
        return _by(norm, whole, "", what, is_local=is_local)
    weights, *_ = np.linalg.lstsq(parts, got, rcond=None)
    cut = [
        _is_like(size, size_max) for size in weights * norms if (size_max := max(weights * norms))
    ]
    if is_close(parts @ weights, got, tolerance) and weights.min() > SAME and all(cut):
        return AuditFinding(
            "norm", "clipped before the sum", f"{what}: the parts of the ranks enter with weights "
            f"{', '.join(f'{w:.3g}' for w in weights)}, each clipped by its own norm", _BEFORE,
        )  # fmt: skip
    return None


def _flat(tensors: Tensors, names: list[str]) -> Any:  # Any: numpy's array of floats
    return np.concatenate([tensors[name].ravel() for name in names])
