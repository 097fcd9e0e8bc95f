"""Plan what a request asks for: compile masks, deal documents to micro-batches, plan each.

A planner process makes the same plans from the text as this process makes from the values; both go
through `make_plans`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import lcm
from typing import TypeAlias

import numpy as np

from dcp_dsl import DatasetError, Form, Mask, Sample, Spec
from dcp_dsl.arrays import Floats
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
)
from dcp_planner.plan import join_plans
from dcp_runtime.data.dealing import Share, deal_documents, sub_cluster
from dcp_runtime.data.plan_messages import (
    MaskText,
    MicroBatch,
    PlanReply,
    PlanRequest,
    SequenceRequest,
)
from dcp_runtime.data.rows import SKIP_HINT
from dcp_runtime.data.sequence_masks import hidden_from_next, truncate
from dcp_runtime.plans.batch_plans import plan_facts
from dcp_runtime.run_log.records import PlanFacts

MOST_LAYERS = 4096
"""Layers after which the cycles of a batch have to repeat."""

Slot: TypeAlias = tuple[int, ...]
"""For every sequence of a batch the number of the mask that it has in some layer."""

Bound: TypeAlias = Mapping[int, Form]
"""The exact masks of a sequence, by their number in the request."""


def plan_request(request: PlanRequest) -> PlanReply:
    """Compile the masks of a batch and plan it, from the text alone."""
    masks = list(map(_mask, request.masks))
    samples = [Sample.from_json(sequence.sample) for sequence in request.sequences]
    return make_plans(request, masks, samples)


def make_plans(request: PlanRequest, masks: Sequence[Mask], samples: Sequence[Sample]) -> PlanReply:
    """Plan global batches from their masks and samples; raises as `plan_request`."""
    kept, bound, left_out = [], [], []
    for number, (sequence, sample) in enumerate(zip(request.sequences, samples, strict=True)):
        try:
            bound.append(_bind(sequence, masks, sample))
        except DatasetError as error:
            if not request.may_skip:
                raise DatasetError(f"row {sequence.row}: {error}; {SKIP_HINT}") from error
            left_out.append((number, str(error)))
        else:
            kept.append(number)
    if not kept:
        return PlanReply((), tuple(left_out))
    micro_batches, overflow = deal_documents(
        request.dealing,
        [request.sequences[number].num_tokens for number in kept],
        partial(_mean_pairs, request, kept, bound),
        request.cluster,
    )
    batches = tuple(_plan_batch(request, kept, bound, shares) for shares in micro_batches)
    steps = np.zeros(len(kept), np.int64)
    for number, shares in enumerate(micro_batches):
        for share in shares:
            steps[list(share.documents)] = number * request.dealing.window // len(micro_batches)
    hidden = hidden_from_next([list(of.values()) for of in bound])
    return PlanReply(batches, tuple(left_out), hidden, tuple(steps.tolist()), overflow)


def _mean_pairs(request: PlanRequest, kept: Sequence[int], bound: Sequence[Bound]) -> Floats:
    """Count the visible pairs of each sequence, the mean over its layers."""
    found = np.zeros(len(kept))
    for place, (number, forms) in enumerate(zip(kept, bound, strict=True)):
        cycle, pairs = request.sequences[number].cycle, {n: f.num_pairs for n, f in forms.items()}
        found[place] = sum(pairs[mask] for mask in cycle if mask >= 0) / len(cycle)
    return found


def _plan_batch(
    request: PlanRequest, kept: Sequence[int], bound: Sequence[Bound], shares: Sequence[Share]
) -> MicroBatch:
    """Plan the micro-batch of a replica: that of its group, or of all groups if these overlap."""
    dealing = request.dealing
    if not dealing.widths:
        return _plan_together(request, kept, bound, shares)
    own = request.replica * dealing.context_ranks
    # Without documents, a rank runs its layers all the same, with the other groups of its width.
    width = shares[0].width if shares else dealing.widest
    empty = Share((), own // width * width, width)
    mine = next((share for share in shares if share.first == empty.first), empty)
    members = [kept[place] for place in mine.documents]
    slots, cycle = _slots(request, members)
    forms = _forms_of([bound[place] for place in mine.documents], slots)
    plans = _build(request, forms, cycle, sub_cluster(request.cluster, mine.first, width))
    named = tuple(
        replace(plan, provenance=_provenance(request, members, slot))
        for plan, slot in zip(plans, slots, strict=True)
    )
    return MicroBatch(mine.documents, mine.first, named, cycle, _facts(named))


def _plan_together(
    request: PlanRequest, kept: Sequence[int], bound: Sequence[Bound], shares: Sequence[Share]
) -> MicroBatch:
    """Plan each share on its devices, and join the plans to one over all devices."""
    places = [place for share in shares for place in share.documents]
    members = [kept[place] for place in places]
    slots, cycle = _slots(request, members)
    found: list[list[tuple[Plan, int]]] = [[] for _ in slots]
    start = 0
    for share in shares or [Share((), 0, request.dealing.devices)]:
        end = start + len(share.documents)
        forms = _forms_of([bound[p] for p in share.documents], [slot[start:end] for slot in slots])
        cluster = sub_cluster(request.cluster, share.first, share.width)
        for number, plan in enumerate(_build(request, forms, cycle, cluster)):
            found[number].append((plan, share.first))
        start = end
    plans = tuple(join_plans(parts, request.cluster, request.config) for parts in found)
    return MicroBatch(tuple(places), 0, plans, cycle, _facts(plans))


def _facts(plans: Sequence[Plan]) -> tuple[PlanFacts, ...]:
    return tuple(plan_facts(plan, tuple(predict(plan))) for plan in plans)


def _slots(
    request: PlanRequest, members: Sequence[int]
) -> tuple[tuple[Slot, ...], tuple[int, ...]]:
    """Return the slots of a batch and its cycle; without sequences one layer stands for all."""
    cycles = [request.sequences[number].cycle for number in members]
    return join_cycles(cycles) if cycles else (((),), (0,))


def _forms_of(bound: Sequence[Bound], slots: Sequence[Slot]) -> list[list[Form]]:
    return [[of[mask] for of, mask in zip(bound, slot, strict=True)] for slot in slots]


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
    request: PlanRequest,
    forms: Sequence[Sequence[Form]],
    cycle: Sequence[int],
    cluster: Cluster,
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


def _bind(sequence: SequenceRequest, masks: Sequence[Mask], sample: Sample) -> Bound:
    """Compile the masks of a sequence, by their number."""
    used = (number for number in dict.fromkeys(sequence.cycle) if number >= 0)
    found = {number: masks[number].compile(sample) for number in used}
    if sequence.num_tokens == sample.length:
        return found
    return {number: truncate(form, sequence.num_tokens) for number, form in found.items()}


@lru_cache(maxsize=64)
def _mask(mask: MaskText) -> Mask:
    return Spec.from_text(mask.spec, mask.name, dict(mask.files)).mask(mask.call)


def _provenance(request: PlanRequest, members: Sequence[int], slot: Slot) -> Provenance | None:
    """Return where the batch comes from, if one mask made all of it and nothing was cut."""
    sequences = [request.sequences[number] for number in members]
    is_whole = all(Sample.from_json(s.sample).length == s.num_tokens for s in sequences)
    if not is_whole or len(set(slot)) != 1:
        return None
    mask = request.masks[slot[0]]
    origin = "rows " + ", ".join(str(sequence.row) for sequence in sequences)
    samples = tuple(s.sample for s in sequences)
    return Provenance(mask.spec, mask.call, samples, origin, mask.files)
