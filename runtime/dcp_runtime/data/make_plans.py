"""Plan what a request asks for: compile masks, deal documents to micro-batches, plan each.

A planner process makes the same plans from the text as this process makes from the values; both go
through `make_plans`. Masks of rows that are cut are cut with them, and are asked which tokens the
next token does not see.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import lcm
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dcp_dsl import DatasetError, Form, Mask, Sample, Slabs, Spec
from dcp_dsl.arrays import Bools, Floats
from dcp_dsl.forms import Parts, RegionPart, Rows
from dcp_planner import (
    Cluster,
    Plan,
    Provenance,
    build_plan,
    build_stack,
    choose_block_size,
    cut_blocks,
    cut_stack,
    predict,
    stopwatch,
)
from dcp_planner.plan import encode_plan, join_plans
from dcp_runtime.data.dealing import Share, deal_documents, sub_cluster
from dcp_runtime.data.planner_pool import (
    SKIP_HINT,
    MaskText,
    MicroBatch,
    PlanReply,
    PlanRequest,
    Runs,
    SequenceRequest,
    encode_parts_of,
    encode_reply,
)
from dcp_runtime.plans.batch_plans import plan_facts
from dcp_runtime.run_log.records import PlanFacts

MOST_LAYERS = 4096
"""Layers after which the cycles of a batch have to repeat."""
Slot: TypeAlias = tuple[int, ...]
"""For every sequence of a batch the number of the mask that it has in some layer."""
Forms: TypeAlias = Mapping[int, Form]
"""The exact masks of a sequence, by their number in the request."""


class BoundSequence(NamedTuple):
    """A sequence of a request that fits its masks."""

    sequence: SequenceRequest
    forms: Forms


def plan_request(request: PlanRequest) -> PlanReply:
    """Compile the masks of a batch and plan it, from the text alone."""
    masks = list(map(_mask, request.masks))
    samples = [Sample.from_json(sequence.sample) for sequence in request.sequences]
    return make_plans(request, masks, samples)


def make_plans(request: PlanRequest, masks: Sequence[Mask], samples: Sequence[Sample]) -> PlanReply:
    """Plan global batches from their masks and samples; raises as `plan_request`."""
    kept: list[BoundSequence] = []
    left_out = []
    for number, (sequence, sample) in enumerate(zip(request.sequences, samples, strict=True)):
        try:
            kept.append(BoundSequence(sequence, _bind(sequence, masks, sample)))
        except DatasetError as error:
            if not request.may_skip:
                raise DatasetError(f"row {sequence.row}: {error}; {SKIP_HINT}") from error
            left_out.append((number, str(error)))
    if not kept:
        return PlanReply((), tuple(left_out))
    micro_batches, overflow = deal_documents(
        request.dealing,
        [sequence.num_tokens for sequence, _ in kept],
        partial(_mean_pairs, kept),
        request.cluster,
    )
    batches = tuple(_plan_batch(request, kept, shares) for shares in micro_batches)
    steps = np.zeros(len(kept), np.int64)
    for number, shares in enumerate(micro_batches):
        for share in shares:
            steps[list(share.documents)] = number * request.dealing.window // len(micro_batches)
    hidden = hidden_from_next([list(forms.values()) for _, forms in kept])
    return PlanReply(batches, tuple(left_out), hidden, tuple(steps.tolist()), overflow)


def _mean_pairs(kept: Sequence[BoundSequence]) -> Floats:
    """Count the visible pairs of each sequence, the mean over its layers."""
    found = np.zeros(len(kept))
    for place, (sequence, forms) in enumerate(kept):
        # A mask stands in many layers; its pairs are counted once.
        cycle, pairs = sequence.cycle, {number: form.num_pairs for number, form in forms.items()}
        found[place] = sum(pairs[mask] for mask in cycle if mask >= 0) / len(cycle)
    return found


def _plan_batch(
    request: PlanRequest, kept: Sequence[BoundSequence], shares: Sequence[Share]
) -> MicroBatch:
    """Plan the micro-batch of a replica: that of its group, or of all groups if these overlap."""
    dealing = request.dealing
    if not dealing.widths:
        return _plan_together(request, kept, shares)
    own = request.replica * dealing.context_ranks
    # Without documents, a rank runs its layers all the same, with the other groups of its width.
    width = shares[0].width if shares else dealing.widest
    empty = Share((), own // width * width, width)
    mine = next((share for share in shares if share.first == empty.first), empty)
    members = [kept[place] for place in mine.documents]
    slots, cycle = _slots(members)
    cluster = sub_cluster(request.cluster, mine.first, width)
    plans = _build(request, _forms_of(members, slots), cycle, cluster)
    named = tuple(
        replace(plan, provenance=_provenance(request, members, slot))
        for plan, slot in zip(plans, slots, strict=True)
    )
    return MicroBatch(mine.documents, mine.first, named, cycle, _facts(named))


def _plan_together(
    request: PlanRequest, kept: Sequence[BoundSequence], shares: Sequence[Share]
) -> MicroBatch:
    """Plan each share on its devices, and join the plans to one over all devices."""
    places = [place for share in shares for place in share.documents]
    members = [kept[place] for place in places]
    slots, cycle = _slots(members)
    found: list[list[tuple[Plan, int]]] = [[] for _ in slots]
    start = 0
    for share in shares or [Share((), 0, request.dealing.devices)]:
        end = start + len(share.documents)
        forms = _forms_of(members[start:end], [slot[start:end] for slot in slots])
        cluster = sub_cluster(request.cluster, share.first, share.width)
        for number, plan in enumerate(_build(request, forms, cycle, cluster)):
            found[number].append((plan, share.first))
        start = end
    plans = tuple(join_plans(parts, request.cluster, request.config) for parts in found)
    return MicroBatch(tuple(places), 0, plans, cycle, _facts(plans))


def _facts(plans: Sequence[Plan]) -> tuple[PlanFacts, ...]:
    return tuple(plan_facts(plan, tuple(predict(plan))) for plan in plans)


def _slots(members: Sequence[BoundSequence]) -> tuple[tuple[Slot, ...], tuple[int, ...]]:
    """Return the slots of a batch and its cycle; without sequences one layer stands for all."""
    cycles = [sequence.cycle for sequence, _ in members]
    return join_cycles(cycles) if cycles else (((),), (0,))


def _forms_of(members: Sequence[BoundSequence], slots: Sequence[Slot]) -> list[list[Form]]:
    return [[m.forms[mask] for m, mask in zip(members, slot, strict=True)] for slot in slots]


def join_cycles(cycles: Sequence[tuple[int, ...]]) -> tuple[tuple[Slot, ...], tuple[int, ...]]:
    """Return the different slots of a batch, and for each layer the number of its slot.

    Linear layers have number -1 in both cycles and none among the slots.

    >>> join_cycles([(0, 0, 1), (2,)])
    (((0, 2), (1, 2)), (0, 0, 1))
    """
    period = lcm(*map(len, cycles))
    if period > MOST_LAYERS:
        raise DatasetError(
            f"the stacks of a batch repeat together after {period} layers only, at most "
            f"{MOST_LAYERS} are planned; pack rows of one stack into a batch"
        )
    number: dict[Slot, int] = {}
    layers = []
    for layer in range(period):
        slot = tuple(c[layer % len(c)] for c in cycles)
        if min(slot) < 0 <= max(slot):
            raise DatasetError(
                f"layer {layer} is linear in one stack of a batch and has a mask in another; pack "
                "rows of one stack into a batch"
            )
        layers.append(-1 if min(slot) < 0 else number.setdefault(slot, len(number)))
    return tuple(number), tuple(layers)


def _build(
    request: PlanRequest, forms: Sequence[Sequence[Form]], cycle: Sequence[int], cluster: Cluster
) -> tuple[Plan, ...]:
    """Plan every distinct mask, all over one ownership of tokens."""
    shape, config = request.shape, request.config
    if not request.dealing.widths:
        config = replace(config, head_groups=1)  # plans of several groups are joined
    block = request.block_size or min(choose_block_size(f, cluster, config) for f in forms)
    if len(forms) == 1:
        return (build_plan(cut_blocks(forms[0], block), shape, cluster, config),)
    layers = [cycle.count(number) for number in range(len(forms))]
    cut = zip(cut_stack(forms, block), layers, strict=True)
    return build_stack(list(cut), shape, cluster, config).plans


def _bind(sequence: SequenceRequest, masks: Sequence[Mask], sample: Sample) -> Forms:
    """Compile the masks of a sequence, by their number."""
    used = (number for number in dict.fromkeys(sequence.cycle) if number >= 0)
    found = {number: masks[number].compile(sample) for number in used}
    if sequence.num_tokens == sample.length:
        return found
    return {number: truncate(form, sequence.num_tokens) for number, form in found.items()}


# The same few masks come batch after batch.
@lru_cache(maxsize=64)
def _mask(mask: MaskText) -> Mask:
    return Spec.from_text(mask.spec, mask.name, dict(mask.files)).mask(mask.call)


def _provenance(
    request: PlanRequest, members: Sequence[BoundSequence], slot: Slot
) -> Provenance | None:
    """Return what the mask was made of, if one mask made all of it and nothing was cut."""
    sequences = [sequence for sequence, _ in members]
    is_whole = all(Sample.from_json(s.sample).length == s.num_tokens for s in sequences)
    if not is_whole or len(set(slot)) != 1:
        return None
    mask = request.masks[slot[0]]
    samples = tuple(s.sample for s in sequences)
    return Provenance(mask.spec, mask.call, samples, files=mask.files)


def start() -> Callable[..., tuple[dict[str, Any], bytes]]:
    """Return what answers the requests in a planner process; see `WorkerProgram`."""
    return _answer


def _answer(message: dict[str, Any], *_: object) -> tuple[dict[str, Any], bytes]:
    request = PlanRequest.from_json(message["request"])
    with stopwatch() as watch:
        reply = plan_request(request)
        if message["kind"] == "parts":
            parts = encode_parts_of(reply, request.own_devices)
        else:  # planned here, they are whole
            plans = [plan for batch in reply.batches for plan in batch.plans]
            parts = [encode_reply(reply, [encode_plan(p) for p in plans if isinstance(p, Plan)])]
    return {"seconds": watch.seconds, "sizes": [*map(len, parts)]}, b"".join(parts)


def truncate(form: Form, num_tokens: int) -> Form:
    """Restrict an exact mask to its first rows and keys, in the form it has.

    >>> truncate(Rows(3, [0, 1, 2, 3], [0, 1, 0], [3, 3, 1]), 2).tile(0, 2, 0, 2).tolist()
    [[True, True], [False, True]]
    """
    if isinstance(form, Slabs | Rows):
        return _truncate_region(form, num_tokens)
    assert isinstance(form, Parts), f"no form: {type(form).__name__}"
    cut = (  # labels and predicates are told where to end when they are asked
        replace(part, region=_truncate_region(part.region, num_tokens))
        if isinstance(part, RegionPart)
        else part
        for part in form.parts
    )
    return Parts(num_tokens, tuple(cut))


def _truncate_region(region: Slabs | Rows, num_tokens: int) -> Slabs | Rows:
    if isinstance(region, Slabs):
        return truncate_slabs(region, num_tokens)
    row_ptr, start, end = region.row_ranges(0, num_tokens)
    kept = start < num_tokens
    counts = np.append(0, np.cumsum(kept))[row_ptr]
    return Rows(num_tokens, counts, start[kept], np.minimum(end[kept], num_tokens))


def truncate_slabs(slabs: Slabs, num_tokens: int) -> Slabs:
    """Restrict a mask to its first rows and keys.

    A slab whose moving end passes the border is cut where it does; O(slabs).

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> truncate_slabs(causal, 3).num_pairs
    6
    """
    parts = []
    for q0, q1, k0, k1, a, b in slabs.table().tolist():
        stop = min(q1, num_tokens)
        if a:  # rows whose first key is inside
            stop = min(stop, q0 + num_tokens - k0)
        if k0 >= num_tokens:
            continue
        inside = stop if k1 <= num_tokens else q0
        if b:  # rows whose last key is inside
            inside = min(q0 + max(0, num_tokens - k1 + 1), stop)
        if inside > q0:
            parts.append((q0, inside, k0, k1, a, b))
        if inside < stop:  # from here on the last key is the border
            parts.append((inside, stop, k0 + a * (inside - q0), num_tokens, a, 0))
    parts.sort(key=lambda slab: (slab[0], slab[2]))
    table = np.asarray(parts, np.int64).reshape(-1, 6)
    ends, slopes = table[:, :4].T, table[:, 4:].T.astype(np.uint8)
    return Slabs(num_tokens, *ends, *slopes)


TILE = 64
"""Rows of a mask without ranges that are looked at together: pairs grow with it, calls shrink."""


def hidden_from_next(sequences: Sequence[Iterable[Form]]) -> Runs:
    """Return the packed positions of the tokens that the next token of their sequence never sees.

    Args:
        sequences: for each sequence of the batch the masks of its layers. The next token sees a
            token if it does so in one layer at least.

    >>> own = Slabs(4, [0, 2], [2, 4], [0, 2], [1, 3], [0, 0], [1, 1])  # two documents of 2 tokens
    >>> hidden_from_next([[own], [own]])
    ((1, 2), (5, 6))
    """
    is_hidden = [np.zeros(1, np.bool_)]
    for forms in sequences:
        sees = np.logical_or.reduce([sees_previous(form) for form in forms])
        is_hidden += [~sees[1:], np.zeros(min(1, len(sees)), np.bool_)]  # the last has no next one
    edges = np.flatnonzero(np.diff(np.concatenate(is_hidden).astype(np.int8)))
    return tuple((start, end) for start, end in edges.reshape(-1, 2).tolist())


def sees_previous(form: Form) -> Bools:
    """Return for every token whether it sees the one before it, bool ``[T]``; the first sees none.

    O(tokens + slabs), or O(tokens + ranges); a mask of tiles is evaluated along its diagonal.

    >>> sees_previous(Slabs(3, [0, 1], [1, 3], [0, 1], [1, 2], [0, 0], [0, 1])).tolist()
    [False, False, True]
    """
    return _diagonal(form, -1)


def _diagonal(form: Form, offset: int) -> Bools:
    """Return for every row ``r`` whether it sees key ``r + offset``, bool ``[T]``."""
    match form:
        case Slabs():
            return _diagonal_of_slabs(form, offset)
        case Rows():
            return _diagonal_of_rows(form, offset)
        case Parts(parts=parts):
            found = [_diagonal_of_part(p, offset) for p in parts if isinstance(p, RegionPart)]
            if len(found) < len(parts):
                return _diagonal_of_tiles(form, offset)
            none = np.zeros(form.num_tokens, np.bool_)
            return np.asarray(np.logical_or.reduce([none, *found]))
    raise AssertionError(f"no form: {type(form).__name__}")


def _diagonal_of_part(part: RegionPart, offset: int) -> Bools:
    if -offset % part.period not in part.remainders:
        return np.zeros(part.region.num_tokens, np.bool_)
    if part.is_transposed:  # row r sees key r + d if of the transposed r + d sees r
        return np.roll(_diagonal(part.region, -offset), -offset)
    return _diagonal(part.region, offset)


def _diagonal_of_slabs(slabs: Slabs, offset: int) -> Bools:
    """Mark, slab by slab, the run of rows whose keys hold the one on the diagonal.

    An end that moves with the rows lies on the same side of the diagonal on all of them; an end
    that stands still is passed once.
    """
    first, last = slabs.q_start, slabs.q_end
    start_moves, end_moves = slabs.start_slope == 1, slabs.end_slope == 1
    begin = np.where(start_moves, first, np.maximum(first, slabs.kv_start - offset))
    end = np.where(end_moves, last, np.minimum(last, slabs.kv_end - offset))
    is_off = start_moves & (slabs.kv_start > first + offset)
    is_off |= end_moves & (slabs.kv_end <= first + offset)
    kept = ~is_off & (begin < end)
    change = np.zeros(slabs.num_tokens + 1, np.int64)
    np.add.at(change, begin[kept], 1)
    np.add.at(change, end[kept], -1)
    return np.asarray(np.cumsum(change)[:-1] > 0)


def _diagonal_of_rows(rows: Rows, offset: int) -> Bools:
    row = np.repeat(np.arange(rows.num_tokens), np.diff(rows.row_ptr))
    holds = (rows.kv_start <= row + offset) & (row + offset < rows.kv_end)
    found = np.zeros(rows.num_tokens, np.bool_)
    found[row[holds]] = True
    return found


def _diagonal_of_tiles(form: Parts, offset: int) -> Bools:
    count, found = form.num_tokens, np.zeros(form.num_tokens, np.bool_)
    first, last = max(0, -offset), min(count, count - offset)
    for begin in range(first, last, TILE):
        end = min(begin + TILE, last)
        found[begin:end] = form.tile(begin, end, begin + offset, end + offset).diagonal()
    return found
