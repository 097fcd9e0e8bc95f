"""Are the tokens, targets and rows of all ranks those of one process, and who divides by what?"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_runtime.auditing.findings import Finding, note, right
from dcp_runtime.auditing.record import MicroBatch, Run

Bag: TypeAlias = NDArray[np.int64]
Relation: TypeAlias = Literal["same", "copies", "union", "other", "unseen"]
SAME = 2e-3
"""Relative difference up to which two divisors are the same."""


def relate(alone: Run, ranks: Run, step: int) -> Relation:
    """Say what the ranks saw in a step: the data of one process, several of its steps, other data.

    Ranks of data parallelism read as many batches in a step as there are ranks, one process reads
    them one by one.
    """
    for kind in ("pairs", "targets", "tokens"):
        own, seen = _bag(alone, [step], kind), _bag(ranks, [step], kind)
        if own is None or seen is None:
            continue
        if np.array_equal(own, seen):
            return "same"
        if np.array_equal(np.repeat(own, max(1, len(seen) // max(1, len(own)))), seen):
            return "copies"
        union = _bag(alone, range(step * ranks.ranks, (step + 1) * ranks.ranks), kind)
        return "union" if union is not None and np.array_equal(union, seen) else "other"
    return "unseen"


def check_data(alone: Run, ranks: Run, step: int, relation: Relation) -> Iterable[Finding]:
    """Compare the data of a step with those of one process."""
    if relation == "unseen":
        yield note(
            "data", "unseen", "the model embeds no token ids and has no cross entropy that the "
            "audit sees, so it cannot tell whether all ranks and one process saw the same data",
        )  # fmt: skip
    if relation == "copies":
        yield Finding(
            "data", "seen by every rank", f"step {step + 1}: every rank trains on the same tokens, "
            f"which one process sees once: rows count {ranks.ranks} times",
            "give each rank its own rows (DistributedSampler, or rows[rank::ranks]), or its own "
            "tokens of shared ones (DCPDataloader); nothing is wrong under tensor parallelism",
            is_fault=not ranks.shards(step) or _has_all_local(ranks, step),
        )  # fmt: skip
    if relation == "other":
        yield _other_data(alone, ranks, step)


def _has_all_local(ranks: Run, step: int) -> bool:
    """Whether gradients of whole parameters were seen: no tensor parallelism divides them."""
    return ranks.shards(step) <= set(ranks.steps[0][step].of("local"))


def _other_data(alone: Run, ranks: Run, step: int) -> Finding:
    tokens, seen = _bag(alone, [step], "tokens"), _bag(ranks, [step], "tokens")
    if tokens is not None and seen is not None and np.array_equal(tokens, seen):
        kind = "pairs"
        own, got = _bag(alone, [step], kind), _bag(ranks, [step], kind)
        if own is None or got is None:
            own, got = _bag(alone, [step], "targets"), _bag(ranks, [step], "targets")
        assert own is not None
        assert got is not None
        lost, more = _differences(own, got)
        return Finding(
            "labels", "shifted", f"step {step + 1}: all ranks together see the tokens of one process, "
            f"but other targets behind them: {lost} of {len(own)} are missing, {more} are new",
            "the next token of a rank's token may lie on another rank: take labels from "
            "LocalData, or shift whole sequences before they are cut",
        )  # fmt: skip
    own, got = (
        (tokens, seen) if tokens is not None and seen is not None
        else (_bag(alone, [step], "targets"), _bag(ranks, [step], "targets"))
    )  # fmt: skip
    assert own is not None
    assert got is not None
    lost, more = _differences(own, got)
    if lost > len(own) / 2:
        return note(
            "data", "other data", f"step {step + 1}: {lost} of the {len(own)} tokens of one process "
            "are seen by no rank, so its gradients say nothing about those of the ranks; these "
            "are judged by what each rank contributes alone",
            "let the batch be a function of the step, not of the rank and its random numbers; or "
            "--alone 'ARGS' gives one process the data of all ranks",
        )  # fmt: skip
    return Finding(
        "data", "never seen" if lost else "seen twice",
        f"step {step + 1}: of {len(own)} tokens that one process sees, {lost} are seen by no rank"
        f"{f', and {more} once more' if more else ''}",
        "let the ranks divide whole batches among them: the last ones, and what does not divide by "
        "the number of ranks, count too",
    )  # fmt: skip


def _differences(own: Bag, got: Bag) -> tuple[int, int]:
    """Return how many of the own ids are missing among the others, and how many are too many."""
    a, b = Counter(own.tolist()), Counter(got.tolist())
    return (a - b).total(), (b - a).total()


def _bag(run: Run, steps: Iterable[int], kind: str) -> Bag | None:
    """Return what ranks saw in some steps, sorted; `None` where that cannot be told."""
    found = []
    for step in steps:
        for _, _, each in run.micro_batches(step):
            own = _ids_of(each, kind)
            if own is None:
                return None
            found.append(own)
    return np.sort(np.concatenate(found)) if found and sum(map(len, found)) else None


def _ids_of(batch: MicroBatch, kind: str) -> Bag | None:
    counted = batch.targets != -100
    if kind == "targets":
        return batch.targets[counted]
    if kind == "tokens":
        return batch.ids if batch.tokens is None else batch.tokens
    if batch.tokens is None:
        return None
    return (batch.tokens[counted] << 32) | batch.targets[counted]


def check_borders(alone: Run, step: int) -> Iterable[Finding]:
    """Look for targets that are the first token of the next document."""
    crossing, borders, firsts = 0, 0, set()
    for _, _, each in alone.micro_batches(step):
        if each.tokens is None:
            continue
        at = each.borders[each.borders < len(each.tokens)]
        has_target = each.targets[at - 1] != -100
        borders += int(has_target.sum())
        crossing += int((each.targets[at - 1] == each.tokens[at])[has_target].sum())
        firsts |= set(each.tokens[at].tolist())
    if not crossing or crossing < borders / 2:
        return
    if len(firsts) == 1 and crossing > 1:
        yield note(
            "labels", "same first token", f"step {step + 1}: {crossing} documents end with a target "
            f"that is the first token of the next one, {firsts.pop()}, as all documents begin with "
            "it: right if it also ends documents",
        )  # fmt: skip
        return
    yield Finding(
        "labels",
        "across documents",
        f"step {step + 1}: the last token of {crossing} of {borders} "
        "documents has the first token of the next document as its target",
        "set the label of every document's last token to -100; labels of DCPDataloader are so",
    )


def check_loss(run: Run, step: int, who: str, *, are_copies: bool) -> Iterable[Finding]:
    """Say by which count the losses of a step are divided."""
    found = [
        (rank, n, each.divisor, each.count, each.line)
        for rank, n, each in run.micro_batches(step)
        if each.count and not (are_copies and rank)
    ]
    if not found or any(divisor is None for _, _, divisor, *_ in found):
        yield note(
            "loss", "unseen", f"{who}: the loss is no cross entropy of token ids that the audit "
            "sees, so it cannot say by which count it is divided",
        )  # fmt: skip
        return
    divisors = np.array([divisor for _, _, divisor, *_ in found])
    counts = np.array([count for *_, count, _ in found], float)
    of_rank, of_batch = np.array([rank for rank, *_ in found]), np.array([n for _, n, *_ in found])
    whole, line = counts.sum(), found[0][-1]
    shares = {
        "its own targets of a micro-batch": counts,
        "its own targets of the step": _sums(counts, of_rank),
        "the targets of all ranks in a micro-batch": _sums(counts, of_batch),
    }
    for what, share in shares.items():
        if _are_alike(divisors / share) and not _are_alike(share):
            kind = "accumulation" if len(set(of_rank)) == 1 or "all ranks" in what else "local"
            yield Finding(
                "loss",
                "divided by the targets of each micro-batch" if kind == "accumulation"
                else "divided by local targets",
                f"{who}, step {step + 1}: the loss is divided by {what}, {_few(share)}, so targets "
                f"count differently; all of them are {whole:g}",
                f"{line}: sum the losses of the targets and divide by their number on all ranks "
                "and micro-batches: next_token_loss(logits, local_data), or all_reduce the count",
            )  # fmt: skip
            return
    if not _are_alike(divisors):
        yield note(
            "loss", "unlike", f"{who}, step {step + 1}: the loss is divided by {_few(divisors)}"
        )
        return
    by = next(
        (f"{what}, equally many here" for what, share in shares.items()
         if _are_alike(share) and _is_like(divisors[0], share[0]) and share[0] != whole),
        "all targets of the step" if _is_like(divisors[0], whole) else "a number that is no count "
        "of targets",
    )  # fmt: skip
    yield right("loss", f"{who}, step {step + 1}: divided by {divisors[0]:.4g}, {by}")


def _sums(counts: NDArray[Any], of: NDArray[Any]) -> NDArray[Any]:
    return np.array([counts[of == each].sum() for each in of])


def _are_alike(values: NDArray[Any]) -> bool:
    return bool(np.ptp(values) <= SAME * np.abs(values).max())


def _is_like(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * abs(b)


def _few(values: NDArray[Any]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:4])
    return shown + (", ..." if len(values) > 4 else "")


def check_rows(run: Run, who: str) -> Iterable[Finding]:
    """Count the rows that loaders gave in a whole epoch, and batches that were not trained on."""
    by_rank = [log["loaders"] for log in run.logs]
    for loaders in zip(*by_rank, strict=False):
        yield from _check_loader(run, loaders, who)
    untaken = [steps[-1] for steps in run.steps if not steps[-1].is_taken]
    if run.has_ended and untaken:
        count = len(untaken[0].micro_batches)
        yield Finding(
            "data", "no step", f"{who}: the script ends with {count} backward passes behind the "
            "last step of the optimizer: their rows change no parameter",
            "take a step at the end of an epoch with the micro-batches that are left",
        )  # fmt: skip


def _check_loader(run: Run, loaders: Sequence[dict[str, Any]], who: str) -> Iterable[Finding]:
    first = loaders[0]
    parts = {tuple(loader["rows"]) for loader in loaders}
    counts = Counter(row for part in parts for row in part)
    place = f"{who}, the loader of {first['line']}"
    known = first["of"]
    if all(loader["exhausted"] for loader in loaders) and known and counts:
        never, again = known - len(counts), sum(counts.values()) - len(counts)
        if never:
            yield Finding(
                "data", "never seen", f"{place}: {never} of {known} rows are in no batch of a "
                f"whole epoch{', because it drops the last batch' if first['drop_last'] else ''}",
                "drop_last=False, or a sampler that gives every row",
            )  # fmt: skip
        if again:
            yield Finding(
                "data", "seen twice", f"{place}: {again} rows are given again in the same epoch",
                "give all ranks the same seed of the sampler, and each its part of the rows",
                is_fault=again >= len(loaders),  # a sampler may fill the last batch up
            )  # fmt: skip
    given = [len(loader["given"]) for loader in loaders]
    if not run.has_ended:
        return
    is_whole = [
        loader["exhausted"] or n == loader["batches"]
        for n, loader in zip(given, loaders, strict=True)
    ]
    if not all(is_whole):
        if first["batches"]:
            yield note(
                "data",
                "not a whole epoch",
                f"{place}: the loop leaves it after {max(given)} of {first['batches']} batches",
            )
        return
    for log, loader in zip(run.logs, loaders, strict=True):
        seen = set(log["seen"])
        trained = [bool(seen & set(batch)) for batch in loader["given"]]
        if any(trained) and not all(trained):
            yield Finding(
                "data", "loaded, not trained", f"{place}: {trained.count(False)} of "
                f"{len(trained)} batches never go into the model",
                "train on every batch that the loader gives, the last one too",
            )  # fmt: skip
            return
