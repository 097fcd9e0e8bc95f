"""Are gradients clipped by their norm over all ranks, after they were added up?"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dcp_runtime.auditing.findings import Finding
from dcp_runtime.auditing.record import Run, Tensors

SAME = 1e-2


def check_norms(ranks: Run, step: int, reference: Tensors, tolerance: float) -> Iterator[Finding]:
    """Compare norms and factors of clipping with the norm of the right gradients."""
    local = [ranks.tensors(step, "local", rank) for rank in range(ranks.ranks)]
    for rank in range(ranks.ranks):
        clip = ranks.steps[rank][step].info.get("clip")
        found = (
            _check_by_hand(ranks, step, reference, local, rank, tolerance)
            if clip is None
            else _check_call(ranks, step, reference, local, rank, clip)
        )
        if found is not None:
            yield found
            return


def _norm(tensors: Tensors) -> float:
    return float(np.sqrt(sum(float(np.vdot(each, each)) for each in tensors.values())))


def _is_like(a: float, b: float, tolerance: float = SAME) -> bool:
    return abs(a - b) <= tolerance * abs(b)


def _check_call(
    ranks: Run, step: int, reference: Tensors, local: list[Tensors], rank: int, clip: dict[str, Any]
) -> Finding | None:
    """Check a call of `clip_grad_norm_`, which saw the gradients as they were then."""
    seen = ranks.tensors(step, "unclipped", rank)
    names = [n for n in clip["names"] if n in seen] or list(seen)
    seen = {name: seen[name] for name in names}
    taken = ranks.tensors(step, "grad", rank)
    own = {n: a for n, a in local[rank].items() if n in seen}
    where, what = clip["line"], f"step {step + 1}, rank {rank}"
    whole, mine = _norm(seen), _norm(own)
    is_changed = any(
        n in taken and np.linalg.norm(taken[n] - clip["scale"] * seen[n])
        > SAME * np.linalg.norm(taken[n]) for n in seen
    )  # fmt: skip
    right = _norm({n: reference[n] for n in seen if n in reference})
    if is_changed and ranks.ranks > 1 and not ranks.shards(step) and _is_like(whole, mine):
        return Finding(
            "norm", "clipped before the sum", f"{what}: the norm is {whole:.4g}, of this rank's "
            f"part; of the gradients of all ranks it is {right:.4g}. They are added up afterwards",
            f"{where}: clip after the gradients of the ranks are added up",
            ratio=whole / right if right else None,
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
    part = _norm(ranks.steps[rank][step].of("unclipped"))
    is_local = any(_is_like(norm, each) for each in (mine, part))
    return Finding(
        "norm", "norm of local gradients only" if is_local else "another norm",
        f"{what}: gradients are clipped by the norm {norm:.4g}"
        f"{', of what this rank holds' if is_local else ''}; that of all of them is {whole:.4g}",
        f"{where}: take the norm of the gradients of all ranks, after they are added up: "
        "torch.nn.utils.clip_grad_norm_ does, also for shards of FSDP2", ratio=norm / whole,
    )  # fmt: skip


def _check_by_hand(  # noqa: PLR0913
    ranks: Run, step: int, reference: Tensors, local: list[Tensors], rank: int, tolerance: float
) -> Finding | None:
    """Tell from the gradients of a step how a script that clips by itself has clipped."""
    taken = ranks.tensors(step, "grad", rank)
    names = [n for n in taken if n in reference and all(n in own for own in local)]
    if len(local) < 2 or not names:
        return None
    got = np.concatenate([taken[n].ravel() for n in names])
    parts = np.stack([np.concatenate([own[n].ravel() for n in names]) for own in local], 1)
    want = np.concatenate([reference[n].ravel() for n in names])
    if np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want):
        return None
    weights, *_ = np.linalg.lstsq(parts, got, rcond=None)
    if np.linalg.norm(parts @ weights - got) > tolerance * np.linalg.norm(got):
        return None
    norms = np.linalg.norm(parts, axis=0)
    what = f"step {step + 1}, rank {rank}"
    sizes = weights * norms
    if np.ptp(weights) > tolerance * weights.max() and weights.min() > tolerance * weights.max():
        # Clipped to the same norm each, or as they were where that is smaller.
        most = sizes.max()
        is_cut = np.abs(sizes - most) <= SAME * most
        free = np.abs(weights - weights.max()) <= SAME * weights.max()
        if np.all(is_cut | free) and is_cut.any():
            return Finding(
                "norm", "clipped before the sum", f"{what}: the parts of the ranks enter with "
                f"weights {', '.join(f'{w:.3g}' for w in weights)}, which clip each to a norm of "
                f"{most:.3g}", "clip after the gradients of the ranks are added up",
            )  # fmt: skip
        return None
    ratio = float(np.vdot(got, want) / np.vdot(want, want))
    whole = float(np.linalg.norm(parts.sum(1)))
    if (
        np.ptp(weights) <= tolerance * weights.max()
        and _is_like(ratio * norms[rank], whole, tolerance)
        and not _is_like(norms[rank], whole)
    ):
        return Finding(
            "norm", "norm of local gradients only", f"{what}: all gradients are {ratio:.3f} times "
            f"those of one process, as if clipped by {norms[rank]:.4g}, the norm of this rank's "
            f"part; that of all of them is {whole:.4g}",
            "take the norm of the gradients after they are added up", ratio=ratio,
        )  # fmt: skip
    return None
