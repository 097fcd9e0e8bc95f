"""Plan a request: compile its masks, deal its documents to micro-batches, plan each.

Masks and samples of a request are text, so a planner process and the training process make the
same plans. The mask of a row that is cut is cut, too. Masks also tell which tokens the next token
does not see: such a next token is no target of the loss. And they tell which tokens the token
before sees, so that it could copy its target.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import lcm
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dcp_dsl import DatasetError, Form, Mask, Sample, Slabs, Spec
from dcp_dsl.arrays import Bools, Floats
from dcp_dsl.forms import Parts, RegionPart, Rows, regions_of
from dcp_planner import (
    Cluster,
    Plan,
    Provenance,
    build_plan,
    build_stack,
    cut_blocks,
    cut_stack,
    fastest_block_size,
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

MOST_LAYERS = 4096  # layers after which the cycles of a batch have to repeat
Slot: TypeAlias = tuple[int, ...]
"""For every sequence of a batch the number of the mask that it has in some layer."""
Forms: TypeAlias = Mapping[int, Form]
"""The exact masks of a sequence, by their number in the request."""


class BoundSequence(NamedTuple):
    """A sequence of a request that fits its masks; `is_cut` if it is shorter than its sample."""

    sequence: SequenceRequest
    forms: Forms
    is_cut: bool


def plan_request(request: PlanRequest) -> PlanReply:
    """Compile the masks of global batches, deal their sequences, and plan each micro-batch."""
    masks = list(map(_mask, request.masks))
    kept: list[BoundSequence] = []
    left_out = []
    for number, sequence in enumerate(request.sequences):
        sample = Sample.from_json(sequence.sample)
        try:
            kept.append(_bind(sequence, masks, sample))
        except DatasetError as error:
            if not request.may_skip:
                raise DatasetError(f"row {sequence.row}: {error}; {SKIP_HINT}") from error
            left_out.append((number, str(error)))
    if not kept:
        return PlanReply((), tuple(left_out))
    micro_batches, overflow = deal_documents(
        request.dealing,
        [bound.sequence.num_tokens for bound in kept],
        partial(_mean_pairs, kept),
        request.cluster,
    )
    batches = tuple(_plan_batch(request, kept, shares) for shares in micro_batches)
    steps = np.zeros(len(kept), np.int64)
    for number, shares in enumerate(micro_batches):
        for share in shares:
            steps[list(share.documents)] = number * request.dealing.window // len(micro_batches)
    hidden, seen = hidden_and_seen([list(bound.forms.values()) for bound in kept])
    return PlanReply(batches, tuple(left_out), hidden, seen, tuple(steps.tolist()), overflow)


def _mean_pairs(kept: Sequence[BoundSequence]) -> Floats:
    """Count the visible pairs of each sequence, the mean over its layers."""
    found = np.zeros(len(kept))
    for place, bound in enumerate(kept):
        # A mask stands in many layers; its pairs are counted once.
        pairs = {number: form.num_pairs for number, form in bound.forms.items()}
        cycle = bound.sequence.cycle
        found[place] = sum(pairs[mask] for mask in cycle if mask >= 0) / len(cycle)
    return found


def _plan_batch(
    request: PlanRequest, kept: Sequence[BoundSequence], shares: Sequence[Share]
) -> MicroBatch:
    """Plan the micro-batch of a replica: that of its group, or of all groups joined to one plan."""
    # Groups are joined where each document has a width of its own: a rank is in several then.
    dealing = request.dealing
    if not dealing.widths:
        return _plan_together(request, kept, shares)
    own = request.replica * dealing.context_ranks
    # A group without documents runs its layers on no tokens, as wide as the other groups.
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
    """Return the slots of a batch and its cycle; a batch without sequences has a single slot."""
    cycles = [bound.sequence.cycle for bound in members]
    return join_cycles(cycles) if cycles else (((),), (0,))


def _forms_of(members: Sequence[BoundSequence], slots: Sequence[Slot]) -> list[list[Form]]:
    """Return for each slot the masks of all members."""
    return [[m.forms[mask] for m, mask in zip(members, slot, strict=True)] for slot in slots]


def join_cycles(cycles: Sequence[tuple[int, ...]]) -> tuple[tuple[Slot, ...], tuple[int, ...]]:
    """Return the different slots of a batch, and for each layer the number of its slot.

    Linear layers have number -1 in both cycles and no slot.

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
    # A mask weighs by the layers that run it.
    layers = [cycle.count(number) for number in range(len(forms))]
    block = request.block_size or fastest_block_size(forms, shape, cluster, config, layers=layers)
    if len(forms) == 1:
        return (build_plan(cut_blocks(forms[0], block), shape, cluster, config),)
    cut = zip(cut_stack(forms, block), layers, strict=True)
    return build_stack(list(cut), shape, cluster, config).plans


def _bind(sequence: SequenceRequest, masks: Sequence[Mask], sample: Sample) -> BoundSequence:
    """Compile the masks of a sequence, and cut them where the sequence is cut."""
    used = (number for number in dict.fromkeys(sequence.cycle) if number >= 0)
    forms = {number: masks[number].compile(sample) for number in used}
    is_cut = sequence.num_tokens != sample.length
    if is_cut:
        forms = {number: truncate(form, sequence.num_tokens) for number, form in forms.items()}
    return BoundSequence(sequence, forms, is_cut)


# The same few masks come batch after batch.
@lru_cache(maxsize=64)
def _mask(mask: MaskText) -> Mask:
    return Spec.from_text(mask.spec, mask.name, dict(mask.files)).mask(mask.call)


def _provenance(
    request: PlanRequest, members: Sequence[BoundSequence], slot: Slot
) -> Provenance | None:
    """Return the spec and the samples of a plan's mask, if it is one mask and nothing was cut."""
    if any(bound.is_cut for bound in members) or len(set(slot)) != 1:
        return None
    mask = request.masks[slot[0]]
    samples = tuple(bound.sequence.sample for bound in members)
    return Provenance(mask.spec, mask.call, samples, files=mask.files)


def start() -> Callable[..., tuple[dict[str, Any], bytes]]:
    """Return the function that answers requests in a planner process; see `WorkerProgram`."""
    return _answer


def _answer(message: dict[str, Any], *_: object) -> tuple[dict[str, Any], bytes]:
    request = PlanRequest.from_json(message["request"])
    with stopwatch() as watch:
        reply = plan_request(request)
        if message["kind"] == "parts":
            parts = encode_parts_of(reply, request.own_devices)
        else:
            plans = [plan for batch in reply.batches for plan in batch.plans]
            # Plans made here are whole: the type allows for parts, which `decode_reply` makes.
            parts = [encode_reply(reply, [encode_plan(p) for p in plans if isinstance(p, Plan)])]
    return {"seconds": watch.seconds, "sizes": [*map(len, parts)]}, b"".join(parts)


def truncate(form: Form, num_tokens: int) -> Form:
    """Restrict an exact mask to its first rows and keys; its form stays the same.

    >>> truncate(Rows(3, [0, 1, 2, 3], [0, 1, 0], [3, 3, 1]), 2).tile(0, 2, 0, 2).tolist()
    [[True, True], [False, True]]
    """
    if isinstance(form, Slabs | Rows):
        return _truncate_region(form, num_tokens)
    assert isinstance(form, Parts), f"no form: {type(form).__name__}"
    # Labels and predicates need no cut: each question says which rows and keys it is about.
    cut = (
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
    counts = np.append(0, np.cumsum(kept))[row_ptr]  # kept ranges before each row
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
        if k0 >= num_tokens:
            continue
        stop = min(q1, num_tokens)
        if a:  # rows whose first key is inside
            stop = min(stop, q0 + num_tokens - k0)
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


TILE = 64  # rows of a mask without ranges that are evaluated at once, in tiles of as many keys


def hidden_and_seen(sequences: Sequence[Iterable[Form]]) -> tuple[Runs, Runs]:
    """Return the tokens that the next token never sees, and those that the token before sees.

    Both as packed positions. A token sees another one if it does in at least one of the masks that
    the layers of its sequence have.

    >>> own = Slabs(4, [0, 2], [2, 4], [0, 2], [1, 3], [0, 0], [1, 1])  # two documents of 2 tokens
    >>> both = Slabs(4, [0, 2], [2, 4], [0, 2], [2, 4], [0, 0], [0, 0])  # seen in both directions
    >>> hidden_and_seen([[own], [own], [both]])
    (((1, 2), (5, 6), (9, 10)), ((9, 10), (11, 12)))
    """
    is_hidden, is_seen = [np.zeros(1, np.bool_)], [np.zeros(1, np.bool_)]
    for forms in sequences:
        both = [sees_neighbours(form) for form in forms]
        previous, following = (np.logical_or.reduce(found) for found in zip(*both, strict=True))
        # The last token of a sequence has no next token, and is not hidden.
        none = np.zeros(min(1, len(previous)), np.bool_)
        is_hidden += [~previous[1:], none]
        is_seen += [none, following[:-1]]
    last = np.zeros(1, np.bool_)
    return _runs(np.concatenate(is_hidden)), _runs(np.concatenate([*is_seen, last]))


def _runs(is_in: Bools) -> Runs:
    """Return the runs behind the first position; False stands at both ends."""
    # Edges come in pairs: begin and end of each run.
    edges = np.flatnonzero(np.diff(is_in.astype(np.int8)))
    return tuple((start, end) for start, end in edges.reshape(-1, 2).tolist())


def sees_neighbours(form: Form) -> tuple[Bools, Bools]:
    """Return for every token whether it sees the token before, and the next one, bool ``[T]`` each.

    O(tokens + slabs), or O(tokens + ranges); a mask of tiles is evaluated along its diagonal.

    >>> form = Slabs(3, [0, 1], [1, 3], [0, 1], [2, 2], [0, 0], [0, 1])
    >>> tuple(found.tolist() for found in sees_neighbours(form))
    ([False, False, True], [True, False, False])
    """
    regions = regions_of(form)
    if isinstance(form, Parts) and len(regions) < len(form.parts):
        return _neighbours_by_tiles(form)
    return _sees(form.num_tokens, regions, -1), _sees(form.num_tokens, regions, 1)


def _sees(num_tokens: int, regions: Iterable[RegionPart], offset: int) -> Bools:
    """Return for every token whether it sees the token `offset` behind it, bool ``[T]``."""
    sees = np.zeros(num_tokens, np.bool_)
    for part in regions:
        if -offset % part.period not in part.remainders:
            continue
        if part.is_transposed:  # row r sees key r - 1 if row r - 1 of the transposed sees key r
            sees |= np.roll(_diagonal(part.region, -offset), -offset)
        else:
            sees |= _diagonal(part.region, offset)
    return sees


def _neighbours_by_tiles(form: Parts) -> tuple[Bools, Bools]:
    num_tokens = form.num_tokens
    sees = np.zeros((2, num_tokens + 1), np.bool_)
    for begin in range(0, num_tokens - 1, TILE):
        end = min(begin + TILE, num_tokens - 1)
        tile = form.tile(begin, end + 1, begin, end + 1)
        sees[0, begin + 1 : end + 1] = tile.diagonal(-1)
        sees[1, begin:end] = tile.diagonal(1)
    return sees[0, :-1], sees[1, :-1]


def _diagonal(region: Slabs | Rows, offset: int) -> Bools:
    """Return for every row ``r`` whether it sees key ``r + offset``, bool ``[T]``."""
    if isinstance(region, Slabs):
        return _diagonal_of_slabs(region, offset)
    rows, counts = np.arange(region.num_tokens), np.diff(region.row_ptr)
    if offset > 0 and len(region.kv_end):  # a causal mask, most often: one look at each row
        last = region.kv_end[np.maximum(region.row_ptr[1:] - 1, 0)]  # ranges of a row rise
        if not ((counts > 0) & (last > rows + offset)).any():
            return np.zeros(region.num_tokens, np.bool_)
    row = np.repeat(rows, counts)
    holds = (region.kv_start <= row + offset) & (row + offset < region.kv_end)
    found = np.zeros(region.num_tokens, np.bool_)
    found[row[holds]] = True
    return found


def _diagonal_of_slabs(slabs: Slabs, offset: int) -> Bools:
    """Mark for each slab the run of rows that see their key on the diagonal."""
    # An end that moves with the rows stays on one side of the diagonal; one that stands still is
    # crossed once.
    first, last = slabs.q_start, slabs.q_end
    start_moves, end_moves = slabs.start_slope == 1, slabs.end_slope == 1
    begin = np.where(start_moves, first, np.maximum(first, slabs.kv_start - offset))
    end = np.where(end_moves, last, np.minimum(last, slabs.kv_end - offset))
    is_off = start_moves & (slabs.kv_start > first + offset)
    is_off |= end_moves & (slabs.kv_end <= first + offset)
    kept = ~is_off & (begin < end)
    if not kept.any():
        return np.zeros(slabs.num_tokens, np.bool_)
    # Mark where runs begin and end: the running sum is positive inside them.
    change = np.zeros(slabs.num_tokens + 1, np.int64)
    np.add.at(change, begin[kept], 1)
    np.add.at(change, end[kept], -1)
    return np.asarray(np.cumsum(change)[:-1] > 0)
