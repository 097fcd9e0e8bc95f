"""`judge`: compares a run on ranks with a run on one process, and says what is right and wrong."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import get_args

import numpy as np

from dcp_runtime.auditing.data_checks import (
    Relation,
    check_all_data,
    check_borders,
    check_data,
    check_rows,
    check_shift,
    relate,
)
from dcp_runtime.auditing.findings import AuditFinding, Part, note, right
from dcp_runtime.auditing.loss_checks import check_accumulation, check_loss
from dcp_runtime.auditing.norms import check_norms
from dcp_runtime.auditing.record import Run, Tensors
from dcp_runtime.auditing.right_gradients import (
    NOISE,
    PRECISE,
    Right,
    is_close,
    norm_of,
    own_factor,
    ratio_of,
    right_of_one,
    right_of_ranks,
    size_of,
    tolerance_of,
    unclipped,
    verdict,
)
from dcp_runtime.auditing.ways_out import second_sum, way_out


def judge(alone: Run | None, ranks: Run, steps: int) -> list[AuditFinding]:
    """Return what is found, faults first, and causes before what follows from them."""
    first = _check_first(alone, ranks)
    found: list[AuditFinding] = [*first]
    kinds: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for step in range(min(steps, ranks.length)):
        if not all(own[step].is_taken for own in ranks.steps):
            break
        relation: Relation = "other"
        if alone is not None:
            relation = relate(alone, ranks, step)
            found += check_data(alone, ranks, step, relation)
            found += check_borders(alone, step)
            found += check_shift(alone, step)
            found += check_accumulation(alone, step, own_factor(alone, step) or 1.0)
            relation = _guess(alone, ranks, step) if relation == "unseen" else relation
        is_known = alone is not None and relation != "other" and not first
        batches = ranks.ranks if relation == "union" else 1
        wanted = right_of_one(alone, step, batches) if is_known and alone is not None else None
        found.append(check_loss(ranks, step, are_copies=relation == "copies"))
        wanted = wanted or right_of_ranks(ranks, step)
        if wanted is None:
            what = f"step {step + 1}: nothing says which gradients are right"
            found.append(note("parameters", "not judged", what))
            if not any(ranks.tensors(step, "grad", rank) for rank in range(ranks.ranks)):
                kinds["all"].append(("missing", 0.0))
            continue
        earlier = None
        if step:
            earlier = right_of_one(alone, step - 1, batches) if is_known and alone else None
            earlier = earlier or right_of_ranks(ranks, step - 1)
        for name, each in _classify(ranks, step, wanted, earlier):
            kinds[name].append(each)
        found += check_norms(ranks, step, wanted)
        found += _check_ranks(ranks, step)
    found += _group(kinds, ranks)
    found += check_rows(ranks)
    if alone is not None and alone.has_ended and ranks.has_ended:
        found += check_all_data(alone, ranks)
    parts = get_args(Part)
    return sorted(_once(found), key=lambda each: (not each.is_fault, parts.index(each.part)))


def _guess(alone: Run, ranks: Run, step: int) -> Relation:
    """Tell from what all ranks add whose data they saw, where no data were seen."""
    total: Tensors = {}
    for rank in range(ranks.ranks):
        for name, value in ranks.tensors(step, "local", rank).items():
            total[name] = total.get(name, 0) + value
    relations: dict[int, Relation] = {1: "same", ranks.ranks: "union"}
    for batches, relation in relations.items():
        own = right_of_one(alone, step, batches)
        raw = own.raw if own is not None else {}
        known = [name for name in total if np.any(raw.get(name, 0))]
        if known:
            name = max(known, key=lambda name: raw[name].size)
            close = ratio_of(total[name], raw[name]) * raw[name]
            if is_close(total[name], close, tolerance_of(ranks, step)):
                return relation
    return "other"


def _once(found: Iterable[AuditFinding]) -> Iterator[AuditFinding]:
    """Leave out what was said of an earlier step, or of another rank."""
    seen = set()
    for finding in found:
        key = (finding.part, finding.kind)
        if key not in seen:
            seen.add(key)
            yield finding


def _classify(
    ranks: Run, step: int, wanted: Right, before: Right | None
) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield for every parameter what its gradient is, and its ratio to the right one."""
    tolerance, earlier = tolerance_of(ranks, step), before.taken if before else {}
    sizes = {name: size_of(value) for name, value in wanted.raw.items()}
    floor = max(sizes.values(), default=0.0) * NOISE[tolerance]
    local = [ranks.tensors(step, "local", rank) for rank in range(ranks.ranks)]
    found = [unclipped(ranks, step, rank) for rank in range(ranks.ranks)]
    if wanted.most is not None:
        found = [_before_clip(own, wanted) for own in found]
    for name, value in wanted.taken.items():
        seen = [own.get(name) for own in found]
        if sizes[name] <= floor:
            # Nothing enters it: what stands there is from before.
            if any(own is not None and size_of(own) > 1e3 * floor for own in seen):
                yield name, ("stale", 0.0)
            continue
        parts = [each.get(name) for each in local]
        verdicts = [
            verdict(own, value, parts, rank, earlier.get(name), tolerance)
            for rank, own in enumerate(seen)
        ]
        wrong = [each for each in verdicts if each[0] != "right"]
        yield name, Counter(wrong).most_common(1)[0][0] if wrong else verdicts[0]
    for name in {name for own in found for name in own} - wanted.raw.keys():
        if any(size_of(own[name]) > floor for own in found if name in own):
            yield name, ("stale", 0.0)


def _before_clip(own: Tensors, wanted: Right) -> Tensors:
    """Take out the factor that a script's own clipping adds to most parameters, if any is wrong."""
    assert wanted.most is not None
    ratios = [ratio_of(own[n], value) for n, value in wanted.taken.items() if n in own]
    common = float(np.median(ratios)) if ratios else 1.0
    if abs(norm_of(own) - wanted.most) > PRECISE * wanted.most or not common:
        return own
    return {name: value / common for name, value in own.items()}


def _group(kinds: dict[str, list[tuple[str, float]]], ranks: Run) -> Iterator[AuditFinding]:
    """Yield a finding for each kind of gradient."""
    by_kind: dict[str, dict[str, float]] = defaultdict(dict)
    for name, seen in kinds.items():
        kind, ratio = next((each for each in seen if each[0] != "right"), seen[0])
        by_kind[kind][name] = ratio
    # A loss that is divided wrongly changes all gradients: of some, a second sum is to blame.
    if "right" in by_kind and (means := by_kind.pop("a sum of means", None)):
        by_kind["doubled"] |= means
    if "wrong" in by_kind and ranks.logs[0]["batch_norm"]:
        by_kind["statistics of each rank"] = by_kind.pop("wrong")
    ties = ranks.logs[0]["ties"]
    for kind, ratios in by_kind.items():
        if kind == "right":
            yield right("parameters", f"{len(ratios)} have the right gradients")
            continue
        names, middle = tuple(ratios), float(np.median(list(ratios.values())))
        shown = {"a sum of means": "doubled", "partial of a mean": "partial"}.get(kind, kind)
        if kind == "a sum of means":
            cause, says, remedy = second_sum(ranks, middle)
            yield AuditFinding("loss", cause, says, remedy, ratio=middle)
        else:
            remedy = way_out(kind, names, ranks, are_others_right="right" in by_kind)
        tied = [f"; {name} is also {ties[name][0]}" for name in names if name in ties]
        yield AuditFinding(
            "parameters", shown, f"{len(names)} of {len(kinds)}, ratio {middle:.3f}: "
            f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}{''.join(tied[:1])}",
            remedy, names=names, ratio=middle,
        )  # fmt: skip


def _check_first(alone: Run | None, ranks: Run) -> list[AuditFinding]:
    """Compare the parameters before the first step."""
    first = [ranks.tensors(0, "first", rank) for rank in range(ranks.ranks)]
    for rank, own in enumerate(first):
        odd = [n for n in first[0] if n in own and not np.array_equal(own[n], first[0][n])]
        if odd:
            return [AuditFinding(
                "ranks", "other weights", f"{len(odd)} parameters of rank {rank} are not those of "
                f"rank 0 before the first step: {', '.join(odd[:3])}",
                "torch.manual_seed(seed) with the same seed on all ranks before the model is made, "
                "or broadcast it", names=tuple(odd),
            )]  # fmt: skip
    own = alone.tensors(0, "first", 0) if alone is not None else {}
    both = own.keys() & first[0].keys()
    odd = [
        n for n in sorted(both)
        if own[n].shape != first[0][n].shape
        or not np.allclose(own[n], first[0][n], rtol=1e-5, atol=1e-7)
    ]  # fmt: skip
    if alone is None or (both and not odd):
        return []
    what = f"{len(odd)} differ: {', '.join(odd[:3])}" if both else "no name is in both"
    return [note(
        "parameters", "other weights", "the parameters of one process are not those of the ranks "
        f"before the first step ({what}), so gradients are judged by what each rank contributes",
        "torch.manual_seed(seed) before the model is made, the same in all processes",
    )]  # fmt: skip


def _check_ranks(ranks: Run, step: int) -> Iterator[AuditFinding]:
    """Compare the parameters of the ranks after a step."""
    after = [ranks.tensors(step, "after", rank) for rank in range(ranks.ranks)]
    first = ranks.tensors(0, "first", 0)
    moved = {n: np.linalg.norm(after[0][n] - first[n]) for n in after[0] if n in first}
    for rank, own in enumerate(after):
        apart = {n: np.linalg.norm(own[n] - after[0][n]) for n in moved if n in own}
        odd = [
            n for n, far in apart.items()
            if far > max(1e-3 * moved[n], 1e-7 * np.linalg.norm(first[n]))
        ]  # fmt: skip
        if odd:
            yield AuditFinding(
                "ranks", "drifted apart", f"after step {step + 1} {len(odd)} parameters of rank "
                f"{rank} are not those of rank 0: {', '.join(odd[:3])}",
                "ranks must step with the same gradients and the same clipping", names=tuple(odd),
            )  # fmt: skip
            return
    yield right("ranks", f"the same parameters after step {step + 1}")
