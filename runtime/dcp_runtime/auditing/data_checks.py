"""Are the tokens, targets and rows of all ranks those of one process?"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_runtime.auditing.findings import AuditFinding, note
from dcp_runtime.auditing.record import Run, SeenBatch

Bag: TypeAlias = NDArray[np.int64]
Relation: TypeAlias = Literal["same", "copies", "union", "other", "unseen"]
CLEAR = 0.75  # share of the targets that settles how far ahead they are; the ends of sequences miss
FEW = 8  # so many targets say nothing


def relate(alone: Run, ranks: Run, step: int) -> Relation:
    """Return what the ranks saw in a step: data of one process, of several steps, or others."""
    # Ranks of data parallelism read as many batches in a step as there are ranks, one process reads
    # them one by one.
    for kind in ("pairs", "targets", "tokens"):
        own, seen = _bag(alone, [step], kind), _bag(ranks, [step], kind)
        if own is None or seen is None:
            continue
        batches = sum(1 for _ in ranks.micro_batches(step))
        # On a rank without tokens a model runs on one that stands in, and counts nowhere.
        is_same = kind == "tokens" and 0 < len(seen) - len(own) < batches
        if np.array_equal(own, seen) or (is_same and not _differences(own, seen)):
            return "same"
        if np.array_equal(np.repeat(own, max(1, len(seen) // len(own))), seen):
            return "copies"
        union = _bag(alone, range(step * ranks.ranks, (step + 1) * ranks.ranks), kind)
        return "union" if union is not None and np.array_equal(union, seen) else "other"
    return "unseen"


def _bag(run: Run, steps: Iterable[int], kind: str) -> Bag | None:
    """Return what ranks saw in some steps, sorted; `None` where that cannot be told."""
    found = [_ids_of(each, kind) for s in steps for _, _, each in run.micro_batches(s)]
    known = [ids for ids in found if ids is not None]
    if len(known) < len(found) or not sum(map(len, known)):
        return None
    whole: Bag = np.sort(np.concatenate(known))
    return whole


def _ids_of(batch: SeenBatch, kind: str) -> Bag | None:
    if kind == "rows":
        return batch.rows if len(batch.rows) else None
    counted = batch.targets != -100
    found: Bag | None = batch.ids if batch.tokens is None else batch.tokens
    if kind == "targets":
        found = batch.targets[counted]
    elif kind == "pairs":
        known = batch.tokens
        found = None if known is None else (known << 32 | batch.targets)[counted]
    return found


def check_data(alone: Run, ranks: Run, step: int, relation: Relation) -> Iterable[AuditFinding]:
    """Compare the data of a step with those of one process."""
    if relation == "unseen":
        yield note(
            "data", "unseen", "the model embeds no token ids and has no cross entropy that is "
            "seen, so nothing tells whether the ranks and one process saw the same data",
        )  # fmt: skip
        return
    if relation in ("copies", "other") and (copies := _copies(ranks, step)):
        yield AuditFinding(
            "data", "seen by every rank", f"step {step + 1}: ranks {', '.join(map(str, copies))} "
            f"train on the same tokens, which count {len(copies)} times",
            "give each rank its own rows, with DistributedSampler, or its own tokens of shared "
            "rows, with DCPDataloader; nothing is wrong under tensor parallelism",
            is_fault=not _is_cut(alone, ranks),
        )  # fmt: skip
    elif relation == "other":
        yield _other_data(alone, ranks, step)


def _copies(ranks: Run, step: int) -> list[int]:
    """Return the most ranks that trained on the same data in a step; none if all data differ."""
    alike: dict[bytes, list[int]] = {}
    for rank, own in enumerate(ranks.steps):
        for kind in ("pairs", "tokens"):
            bag = _bag(Run([own], []), [step], kind)
            if bag is not None:
                alike.setdefault(bag.tobytes(), []).append(rank)
                break
    most = max(alike.values(), key=len, default=[])
    return most if len(most) > 1 else []


def _is_cut(alone: Run, ranks: Run) -> bool:
    """Return whether ranks hold parts of parameters for which they see the same tokens."""
    own, first = alone.steps[0][0].of("first"), ranks.steps[0][0]
    shards, seen = ranks.shards(0), first.of("first")
    has_parts = any(own[n].shape != seen[n].shape for n in (own.keys() & seen.keys()) - shards)
    return has_parts or not shards <= first.of("local").keys()


def _other_data(alone: Run, ranks: Run, step: int) -> AuditFinding:
    bags = {
        kind: (own, seen)
        for kind in ("tokens", "pairs", "targets")
        if (own := _bag(alone, [step], kind)) is not None
        and (seen := _bag(ranks, [step], kind)) is not None
    }
    are_same = "tokens" in bags and np.array_equal(*bags["tokens"])
    kind = next(iter(bags))
    if are_same:
        kind = "pairs" if "pairs" in bags else "targets"
    own, seen = bags[kind]
    lost, more = _differences(own, seen), _differences(seen, own)
    when, of = f"step {step + 1}", f"{lost} of {len(own)}"
    if are_same:
        return AuditFinding(
            "labels", "shifted", f"{when}: all ranks together see the tokens of one process, but "
            f"other targets behind them: {of} are missing, {more} are new",
            "the next token may lie on another rank: take labels from LocalData, or shift whole "
            "sequences before they are cut",
        )  # fmt: skip
    ever = _bag(ranks, range(ranks.length), kind)
    if lost > len(own) / 2 or ever is None or not _differences(own, ever):
        return note(
            "data", "other data", f"{when}: {of} tokens of one process are seen by no rank in this "
            "step, so ranks are judged by what each of them contributes",
            "let a batch be a function of the step, not of the rank and its random numbers; or "
            "--alone 'ARGS' gives one process the data of all ranks",
        )  # fmt: skip
    return AuditFinding(
        "data", "never seen", f"{when}: {of} tokens of one process are seen by no rank",
        "divide whole batches among the ranks: the last one, and what is left over, count too",
    )  # fmt: skip


def check_all_data(alone: Run, ranks: Run) -> Iterable[AuditFinding]:
    """Compare all data of two scripts that came to their ends."""
    for kind in ("rows", "tokens", "targets"):
        own, seen = _bag(alone, range(alone.length), kind), _bag(ranks, range(ranks.length), kind)
        if own is None or seen is None or (kind == "rows" and not np.isin(seen, own).all()):
            continue  # rows that were cut are other ones
        # A batch without tokens runs on one that stands in.
        batches = sum(len(step.micro_batches) for step in alone.steps[0])
        if (lost := _differences(own, seen)) > (0 if kind == "rows" else batches):
            yield AuditFinding(
                "data", "never seen", f"{lost} of the {len(own)} {kind} of one process are "
                "seen by no rank until the script ends",
                "let the ranks divide what is left over, too",
            )  # fmt: skip
        is_told = kind != "rows" or _is_filled_up(ranks) or _copies(ranks, 0)
        if not is_told and (again := _again(own, seen)):
            yield AuditFinding(
                "data", "seen twice", f"{again} of {len(own)} rows are trained on more often than "
                "others until the script ends", "give every row to one rank; nothing is wrong if "
                "rows fill the last batch up",
            )  # fmt: skip
        return


def _again(own: Bag, seen: Bag) -> int:
    """Return how many rows ranks saw more often than most, where one process saw all alike."""
    if len(set(Counter(own.tolist()).values())) > 1:
        return 0
    often = Counter(seen.tolist()).values()
    usual = Counter(often).most_common(1)[0][0]
    return sum(times > usual for times in often)


def _is_filled_up(run: Run) -> bool:
    """Return whether samplers gave rows again: their loaders are judged by themselves."""
    every = zip(*(log["loaders"] for log in run.logs), strict=False)
    return any(max(_times(loaders).values(), default=0) > 1 for loaders in every)


def _times(loaders: Sequence[dict[str, Any]]) -> Counter[int]:
    """Count how often the loaders of the ranks gave each row."""
    # Ranks that share batches are given the same rows.
    shared = {tuple(each["rows"]) for each in loaders}
    return Counter(row for part in shared for row in part)


def _differences(own: Bag, other: Bag) -> int:
    """Return how many of the own ids are missing among the others."""
    return (Counter(own.tolist()) - Counter(other.tolist())).total()


def check_shift(alone: Run, step: int) -> Iterable[AuditFinding]:
    """Look for targets that are not the next token, but another one at a fixed distance."""
    hits = dict.fromkeys((0, 1, 2), 0)
    count = 0
    for _, _, each in alone.micro_batches(step):
        if each.tokens is not None:
            count += int((each.targets != -100).sum())
            for ahead in hits:
                targets, tokens = each.targets[: len(each.targets) - ahead], each.tokens[ahead:]
                hits[ahead] += int((targets == tokens).sum())
    share = {ahead: equal / count for ahead, equal in hits.items()} if count > FEW else {1: 1.0}
    if share[1] > 1 / 2:
        return
    if share[2] > CLEAR:
        yield AuditFinding(
            "labels", "shifted twice", f"step {step + 1}: targets are not the next tokens, but "
            "those behind them", "shift labels once: where they are made, or before the loss",
        )  # fmt: skip
    if share[0] > CLEAR:
        yield AuditFinding(
            "labels", "not shifted", f"step {step + 1}: targets are the tokens themselves, which "
            "the model reads", "logits[:, :-1] belong to labels[:, 1:]; nothing is wrong if the "
            "model is to give back what it reads",
        )  # fmt: skip


def check_borders(alone: Run, step: int) -> Iterable[AuditFinding]:
    """Look for targets that are the first token of the next document."""
    crossing, borders, firsts = 0, 0, set()
    for _, _, each in alone.micro_batches(step):
        if each.tokens is not None:
            at = each.borders[each.borders < len(each.tokens)]
            at = at[each.targets[at - 1] != -100]
            borders += len(at)
            crossing += int((each.targets[at - 1] == each.tokens[at]).sum())
            firsts |= set(each.tokens[at].tolist())
    what = f"step {step + 1}: the last token of {crossing} of {borders} documents"
    if not crossing or crossing < borders / 2:
        return
    if len(firsts) == 1 and crossing > 1:
        yield note(
            "labels", "same first token", f"{what} has the target {firsts.pop()}, with which all "
            "documents begin: right if it ends them, too",
        )  # fmt: skip
        return
    yield AuditFinding(
        "labels",
        "across documents",
        f"{what} has the first token of the next one as its target",
        "set the label of the last token of every document to -100, as DCPDataloader does",
    )


def check_rows(run: Run) -> Iterable[AuditFinding]:
    """Count the rows that loaders gave in a whole epoch, and batches that were not trained on."""
    for loaders in zip(*(log["loaders"] for log in run.logs), strict=False):
        if all(each["exhausted"] or len(each["given"]) == each["batches"] for each in loaders):
            yield from _check_epoch(loaders)
            yield from _check_given(run, loaders) if run.has_ended else ()
        elif run.has_ended and loaders[0]["batches"]:
            # A number of steps looks like a dropped batch.
            given, of = len(loaders[0]["given"]), loaders[0]["batches"]
            if of - given <= max(len(step.micro_batches) for step in run.steps[0]):
                yield _left_early(loaders[0], given)
    untaken = [steps[-1] for steps in run.steps if not steps[-1].is_taken]
    if run.has_ended and untaken:
        yield AuditFinding(
            "data", "no step", f"the script ends with {len(untaken[0].micro_batches)} backward "
            "passes behind the last step of the optimizer: their rows change no parameter",
            "take a step at the end of an epoch with the micro-batches that are left",
        )  # fmt: skip


def _check_epoch(loaders: Sequence[dict[str, Any]]) -> Iterable[AuditFinding]:
    counts = _times(loaders)
    of, place = loaders[0]["of"], f"the loader of {loaders[0]['line']}"
    if not of or not counts:
        return
    if never := of - len(counts):
        is_cut = loaders[0]["drop_last"]
        yield AuditFinding(
            "data", "never seen", f"{place}: {never} of {of} rows are in no batch of an epoch"
            f"{', because it drops the last batch' if is_cut else ''}",
            f"drop_last=False in {loaders[0]['line']}" if is_cut
            else "a sampler that gives every row to some rank",
        )  # fmt: skip
    # A sampler may fill the last batch up: torch's with rows for other ranks, others wholly.
    if again := counts.total() - len(counts):
        yield AuditFinding(
            "data", "seen twice", f"{place}: {again} rows are given again in the same epoch",
            "give all ranks the same seed of the sampler, and each its part of the rows",
            is_fault=again >= sum(each["most"] if each["fills"] else 1 for each in loaders),
        )  # fmt: skip


def _left_early(loader: dict[str, Any], trained: int) -> AuditFinding:
    return note(
        "data", "last batch dropped", f"the loop leaves the loader of {loader['line']} after "
        f"{trained} of {loader['batches']} batches", "run it to its end, unless a number of steps "
        "is to end it there",
    )  # fmt: skip


def _check_given(run: Run, loaders: Sequence[dict[str, Any]]) -> Iterable[AuditFinding]:
    for log, loader in zip(run.logs, loaders, strict=True):
        trained = [not batch or not set(log["seen"]).isdisjoint(batch) for batch in loader["given"]]
        if all(trained[:-1]) and not all(trained) and not loader["exhausted"]:
            yield _left_early(loader, trained.count(True))
            return
        if any(trained) and not all(trained):
            yield AuditFinding(
                "data", "loaded, not trained", f"the loader of {loader['line']}: "
                f"{trained.count(False)} of {len(trained)} batches never go into the model",
                "train on every batch that the loader gives, the last one too",
            )  # fmt: skip
            return
