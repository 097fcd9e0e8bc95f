"""`judge`: compares a run on ranks with a run on one process, and says what is right and wrong.

The gradients that are right come from what each backward added on one process. Where the data of
both runs differ, they come from what the ranks added, each weighed by the targets it divided by.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dcp_runtime.auditing.data_checks import (
    Relation,
    check_borders,
    check_data,
    check_loss,
    check_rows,
    relate,
)
from dcp_runtime.auditing.findings import Finding, Part, note, right
from dcp_runtime.auditing.norms import check_norms
from dcp_runtime.auditing.record import Run, Tensors

PRECISE, COARSE = 5e-3, 0.1
"""Relative differences that count as rounding, in float32 and in 16 bits."""
NOISE = 1e-6
"""Gradients so much smaller than the largest are rounding, such as those of biases of keys."""
NOISE_COARSE = 1e-2


def judge(alone: Run | None, ranks: Run, steps: int) -> list[Finding]:
    """Return what is found, faults first.

    Args:
        alone: the run on one process; `None` if there is none.
        ranks: the run on ranks.
        steps: how many were recorded with gradients.
    """
    found: list[Finding] = []
    kinds: dict[str, list[tuple[str, float]]] = defaultdict(list)
    first = _check_first(alone, ranks)
    found += first
    for step in range(min(steps, ranks.length)):
        if not all(own[step].is_taken for own in ranks.steps):
            break
        relation: Relation = "other" if alone is None else relate(alone, ranks, step)
        if alone is not None:
            found += check_data(alone, ranks, step, relation)
            found += check_borders(alone, step)
            found += check_loss(alone, step, "one process", are_copies=False)
        are_copies = relation == "copies"
        found += check_loss(ranks, step, f"{ranks.ranks} ranks", are_copies=are_copies)
        reference = None
        if alone is not None and relation != "other" and not first:
            reference = reference_of(alone, step, ranks.ranks if relation == "union" else 1)
        if reference is None:
            reference = reference_of_ranks(ranks, step)
        if reference is None:
            found.append(note("parameters", "not judged", f"step {step + 1}: nothing says which "
                              "gradients are right"))  # fmt: skip
            continue
        earlier = reference_of(alone, step - 1, 1) if alone is not None and step else None
        for name, each in classify(ranks, step, reference, earlier or {}):
            kinds[name].append(each)
        found += check_norms(ranks, step, reference, tolerance_of(ranks, step))
        found += _check_ranks(ranks, step)
    found += _group(kinds, ranks)
    whole = range(min(alone.length, ranks.length)) if alone is not None else ()
    if alone is not None and not any(f.part == "data" and f.is_fault for f in found):
        later = (
            each for step in whole[steps:]
            if relate(alone, ranks, step) == "other"
            for each in check_data(alone, ranks, step, "other")
        )  # fmt: skip
        found += [each for each in later if each.is_fault][:1]
    found += check_rows(ranks, f"{ranks.ranks} ranks")
    # Causes before what follows from them.
    parts = get_args(Part)
    return sorted(_once(found), key=lambda each: (not each.is_fault, parts.index(each.part)))


def _once(found: Iterable[Finding]) -> Iterator[Finding]:
    """Leave out what was said of an earlier step, or of another rank."""
    seen = set()
    for finding in found:
        who = finding.says.partition(",")[0] if finding.part in {"loss", "data"} else ""
        key = (finding.part, finding.kind, who.partition("step")[0])
        if key not in seen:
            seen.add(key)
            yield finding


def tolerance_of(run: Run, step: int) -> float:
    """Return which relative difference is rounding."""
    is_coarse = any(own[step].info.get("is_coarse") for own in run.steps)
    return COARSE if is_coarse else PRECISE


def unclipped(run: Run, step: int, rank: int) -> tuple[Tensors, bool]:
    """Return a rank's gradients of a step as they were before clipping.

    The second value says whether something other than clipping changed them after that.
    """
    taken = run.tensors(step, "grad", rank)
    clip = run.steps[rank][step].info.get("clip")
    before = run.tensors(step, "unclipped", rank)
    if clip is None or not before:
        return taken, False
    scales = [
        run.steps[r][step].info.get("clip", clip)["scale"] for r in range(run.ranks)
    ]  # fmt: skip
    is_last = all(
        any(is_close(taken[name], scale * before[name], PRECISE) for scale in scales)
        for name in before
        if name in taken
    )
    return (taken | before, False) if is_last and taken.keys() <= before.keys() else (taken, True)


def is_close(a: NDArray[Any], b: NDArray[Any], tolerance: float) -> bool:
    """Whether two tensors are equal up to rounding."""
    return bool(np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b))


def ratio_of(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the factor by which b comes closest to a."""
    square = float(np.vdot(b, b))
    return float(np.vdot(a, b)) / square if square else 0.0


def reference_of(alone: Run, step: int, batches: int) -> Tensors | None:
    """Return the right gradients of a step from those of one process.

    Args:
        alone: the run on one process.
        step: of the ranks.
        batches: of one process that make a batch of the ranks.
    """
    steps = range(step * batches, (step + 1) * batches)
    if steps[-1] >= alone.length or not all(alone.steps[0][s].is_taken for s in steps):
        return None
    weights = np.array([
        next((b.divisor or 1.0 for _, _, b in alone.micro_batches(s) if b.count), 1.0)
        for s in steps
    ])  # fmt: skip
    weights /= weights.sum()
    whole: Tensors = {}
    for s, weight in zip(steps, weights, strict=True):
        own, _ = unclipped(alone, s, 0)
        local = alone.tensors(s, "local", 0)
        ratios = [ratio_of(own[name], local[name]) for name in local if name in own]
        scale = float(np.median(ratios)) if ratios else 1.0
        for name in own | local:
            value = scale * local[name] if name in local else own[name]
            whole[name] = whole.get(name, 0) + weight * value
    return whole


def reference_of_ranks(ranks: Run, step: int) -> Tensors | None:
    """Return the mean over all targets of a step, from what the ranks added to their gradients."""
    batches = list(ranks.micro_batches(step))
    total = sum(each.count for _, _, each in batches)
    whole: Tensors = {}
    for rank in range(ranks.ranks):
        divisors = [each.divisor for r, _, each in batches if r == rank and each.count]
        known = [divisor for divisor in divisors if divisor]
        if len(known) < len(divisors) or (known and max(known) > 1.002 * min(known)):
            return None
        for name, value in ranks.tensors(step, "local", rank).items():
            whole[name] = whole.get(name, 0) + value * (known[0] / total if known else 0.0)
    return whole or None


def classify(
    ranks: Run, step: int, reference: Tensors, earlier: Tensors
) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield for every parameter what its gradient is, and its ratio to the right one."""
    is_coarse = tolerance_of(ranks, step) == COARSE
    sizes = {name: _size(value) for name, value in reference.items()}
    floor = max(sizes.values(), default=0.0) * (NOISE_COARSE if is_coarse else NOISE)
    local = [ranks.tensors(step, "local", rank) for rank in range(ranks.ranks)]
    found = [unclipped(ranks, step, rank)[0] for rank in range(ranks.ranks)]
    for name in sorted(reference.keys() | {name for own in found for name in own}):
        right_one = reference.get(name)
        seen = [own.get(name) for own in found]
        if right_one is None or sizes[name] <= floor:
            # Nothing enters it, on one process: what stands there is from before.
            if right_one is not None and any(
                s is not None and _size(s) > 1e3 * floor for s in seen
            ):
                yield name, ("stale", 0.0)
            continue
        verdicts = []
        for rank, own in enumerate(seen):
            if own is not None and own.shape != right_one.shape:
                verdicts.append(("of another shape", 0.0))
                continue
            parts = [each[name] for each in local if name in each]
            mine = local[rank].get(name)
            verdicts.append(_verdict(
                own, right_one, mine, parts, earlier.get(name), floor,
                tolerance_of(ranks, step),
            ))  # fmt: skip
        wrong = [verdict for verdict in verdicts if verdict[0] != "right"]
        yield name, Counter(wrong).most_common(1)[0][0] if wrong else verdicts[0]


def _verdict(  # noqa: PLR0913 - what a verdict rests on
    own: NDArray[Any] | None,
    right_one: NDArray[Any],
    mine: NDArray[Any] | None,
    parts: list[NDArray[Any]],
    earlier: NDArray[Any] | None,
    floor: float,
    tolerance: float,
) -> tuple[str, float]:
    if own is None or _size(own) <= floor / 10:
        return "missing", 0.0
    ratio, count = ratio_of(own, right_one), max(2, len(parts))
    if is_close(own, right_one, tolerance):
        return "right", ratio
    is_own = mine is not None and is_close(own, mine, tolerance)
    if is_own and len(parts) > 1 and not is_close(ratio * right_one, own, tolerance):
        return "partial", ratio
    if is_close(own, ratio * right_one, tolerance):
        for name, factor in (("averaged", 1 / count), ("doubled", 2.0), ("doubled", float(count))):
            if abs(ratio - factor) <= tolerance * factor:
                return name, ratio
        return "partial" if is_own and len(parts) > 1 else "scaled", ratio
    if earlier is not None and earlier.shape == own.shape:
        rest = own - right_one
        if is_close(rest, ratio_of(rest, earlier) * earlier, tolerance) or is_close(
            own, earlier, tolerance
        ):
            return "stale", ratio
    return "wrong", ratio


def _size(value: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0


WAYS_OUT = {
    "averaged": "the losses of the ranks are shares of one mean, so their gradients are added, not "
    "averaged: dcp_runtime.sum_gradients(model) {before}, in place of the mean",
    "partial": "every rank steps with its own part: dcp_runtime.sum_gradients(model) {before}",
    "doubled": "something adds these gradients up once more, or every rank's loss is the whole "
    "one; add up once a step{sums}",
    "missing": "no rank gives it a gradient that one process gives it: where is it left out?",
    "stale": "gradients of an earlier step are in it: optimizer.zero_grad() after {step}",
    "scaled": "all of it is off by one factor: by what are the losses divided, what is added up?",
    "wrong": "no factor makes it right: look at the faults above, then at attention and labels",
    "of another shape": "the optimizer trains other tensors than on one process; give both runs "
    "the same parallelism, or compare with --alone",
    "not updated": "the optimizer does not hold it: make the optimizer after fully_shard or .to()",
}


def _group(kinds: dict[str, list[tuple[str, float]]], ranks: Run) -> Iterator[Finding]:
    """Yield a finding for each kind of gradient."""
    by_kind: dict[str, dict[str, float]] = defaultdict(dict)
    for name, seen in kinds.items():
        kind, ratio = next((each for each in seen if each[0] != "right"), seen[0])
        by_kind[kind][name] = ratio
    step = ranks.steps[0][0].info.get("line", "?")
    sums = ", ".join(f"{line} ({n} times)" for line, n in ranks.logs[0]["sums"].items())
    for kind, ratios in by_kind.items():
        middle = float(np.median(list(ratios.values())))
        if kind == "right":
            yield right("parameters", f"{len(ratios)} have the gradients of one process")
            continue
        way_out = WAYS_OUT[kind].format(
            before=f"between loss.backward() and {step}", step=step,
            sums=f"; all_reduce is called in {sums}" if sums else "",
        )  # fmt: skip
        ties = [name for name in ratios if name in ranks.logs[0]["ties"]]
        tied = "".join(f"; {n} is also {ranks.logs[0]['ties'][n][0]}" for n in ties[:2])
        yield Finding(
            "parameters", kind, f"{len(ratios)} of {len(kinds)} {kind}, ratio {middle:.3f}: "
            f"{', '.join(list(ratios)[:4])}{', ...' if len(ratios) > 4 else ''}{tied}",
            way_out, names=tuple(ratios), ratio=middle,
        )  # fmt: skip


def _check_first(alone: Run | None, ranks: Run) -> list[Finding]:
    """Compare the parameters before the first step."""
    first = [ranks.tensors(0, "first", rank) for rank in range(ranks.ranks)]
    for rank, own in enumerate(first):
        odd = [n for n in first[0] if n in own and not np.array_equal(own[n], first[0][n])]
        if odd and not set(odd) <= ranks.shards(0):
            return [Finding(
                "ranks", "other weights", f"{len(odd)} parameters of rank {rank} are not those of "
                f"rank 0 before the first step: {', '.join(odd[:4])}",
                "torch.manual_seed(seed) with the same seed on all ranks before the model is made, "
                "or broadcast it", names=tuple(odd),
            )]  # fmt: skip
    if alone is None:
        return []
    own = alone.tensors(0, "first", 0)
    both = own.keys() & first[0].keys()
    odd = [n for n in sorted(both) if own[n].shape != first[0][n].shape
           or not np.allclose(own[n], first[0][n], rtol=1e-5, atol=1e-7)]  # fmt: skip
    if odd or not both:
        what = f"{len(odd)} differ: {', '.join(odd[:4])}" if both else "no name is in both"
        return [note(
            "parameters", "other weights", f"the parameters of one process are not those of the "
            f"ranks before the first step ({what}), so gradients are judged by what each rank "
            "contributes", "torch.manual_seed(seed) before the model is made, the same on all ranks",
        )]  # fmt: skip
    return []


def _check_ranks(ranks: Run, step: int) -> Iterator[Finding]:
    """Compare the parameters of the ranks after a step, and look for those that stay."""
    after = [ranks.tensors(step, "after", rank) for rank in range(ranks.ranks)]
    first, taken = ranks.tensors(0, "first", 0), ranks.tensors(step, "grad", 0)
    moved = {n: np.linalg.norm(after[0][n] - first[n]) for n in after[0] if n in first}
    for rank, own in enumerate(after):
        odd = [
            n for n in moved
            if n in own and np.linalg.norm(own[n] - after[0][n]) > 1e-3 * moved[n]
            and np.linalg.norm(own[n] - after[0][n]) > 1e-7 * np.linalg.norm(first[n])
        ]  # fmt: skip
        if odd:
            yield Finding(
                "ranks", "drifted apart", f"after step {step + 1} {len(odd)} parameters of rank {rank} "
                f"are not those of rank 0: {', '.join(odd[:4])}",
                "ranks must step with the same gradients and the same clipping", names=tuple(odd),
            )  # fmt: skip
            return
    still = [n for n in moved if n in taken and not moved[n] and _size(taken[n])]
    if still and len(still) < len(moved):
        yield note("parameters", "unchanged", f"step {step + 1} leaves {len(still)} parameters with a "
                   f"gradient as they are: {', '.join(still[:4])}")  # fmt: skip
    else:
        yield right("ranks", f"the same parameters after step {step + 1}")
