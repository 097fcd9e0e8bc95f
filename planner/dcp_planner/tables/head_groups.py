"""Head groups: attention of G groups of heads, each of which may be placed separately.

Heads do not see each other, so attention of G groups of heads is attention of a batch G times as
long with a Gth of the heads: copy g of a token holds its heads of group g, and sees what the token
sees, in copy g. All code that places, schedules, emits, simulates, checks and executes works on
this *expanded* batch and knows nothing of groups. A `Plan` is written in real tokens, with the
group as a column of tiles and transfers; `expand_head_groups` and `fold_head_groups` translate.

Two rules tie the copies together. A token's owner holds all of its heads, because the rest of the
model needs whole tokens. And where there are more groups than key/value heads (GQA, MQA), groups
that share a key/value head share its keys, which exist in the copy of the first of them only.
"""

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Slabs
from dcp_dsl.arrays import Indices, Ints, expand
from dcp_dsl.forms import PlacedForm
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import ModelShape
from dcp_planner.model.config import MOST_HEAD_GROUPS
from dcp_planner.model.problem import DIRECTIONS, Placement, Workload
from dcp_planner.tables.plan import Blocks, Plan
from dcp_planner.tables.programs import COPY, Programs, ProgramTable, tabulate_programs

_Number = TypeVar("_Number", np.int32, np.int64)

_MOST_TOKENS = 2**31 - 1  # `cu_seqlens` is int32, also that of an expanded batch


def group_shape(shape: ModelShape, groups: int) -> ModelShape:
    """Compute the heads of one group: a Gth of the query heads, and the key heads they read."""
    reason = why_not(shape, groups)
    if reason:
        raise PlanError(f"head_groups: {reason}")
    kv_heads = max(1, shape.kv_heads // groups)
    return replace(shape, q_heads=shape.q_heads // groups, kv_heads=kv_heads)


def why_not(shape: ModelShape, groups: int) -> str:
    """Explain why heads cannot be cut into so many groups; empty if they can."""
    if _is_possible(shape, groups):
        return ""
    possible = ", ".join(map(str, possible_groups(shape)))
    return (
        f"cannot cut {shape.q_heads} query and {shape.kv_heads} key/value heads into {groups} "
        f"groups; possible are {possible}"
    )


def possible_groups(shape: ModelShape) -> tuple[int, ...]:
    """List every number of head groups that a shape allows, ascending.

    A group has equally many query heads, and whole key/value heads or a part of the readers of one.
    """
    most = min(shape.q_heads, MOST_HEAD_GROUPS)
    return tuple(groups for groups in range(1, most + 1) if _is_possible(shape, groups))


def _is_possible(shape: ModelShape, groups: int) -> bool:
    if not 1 <= groups <= MOST_HEAD_GROUPS or shape.q_heads % groups:
        return False
    return shape.kv_heads % groups == 0 or groups % shape.kv_heads == 0


def first_groups(shape: ModelShape, groups: int) -> Ints:
    """Find, for every group, the first group that reads the same key/value heads, int64 ``[G]``."""
    sharing = max(1, groups // shape.kv_heads)
    group = np.arange(groups)
    return group - group % sharing


def expand_placement(workload: Workload, placement: Placement) -> tuple[Workload, Placement]:
    """Expand a workload and its placement in head groups; with one group return both unchanged."""
    groups = placement.head_groups
    if groups == 1:
        return workload, placement
    owner = np.tile(placement.device_of_data, groups)
    return _expand_workload(workload, groups), Placement(
        owner, placement.device_of_compute, placement.warnings
    )


def is_cuttable(workload: Workload, groups: int) -> bool:
    """Check that the expanded batch is short enough to be cut at int32 positions."""
    return int(workload.cu_seqlens[-1]) * groups <= _MOST_TOKENS


def _expand_workload(workload: Workload, groups: int) -> Workload:
    """Build the workload of the expanded batch; O(G (W + D + slabs))."""
    shape, blocks = group_shape(workload.shape, groups), workload.num_blocks
    first = first_groups(workload.shape, groups)
    tokens = int(workload.cu_seqlens[-1])
    return Workload(
        shape=shape,
        cu_seqlens=_expanded_cu_seqlens(workload.cu_seqlens, groups),
        block_sequence=_shifted(workload.block_sequence, len(workload.cu_seqlens) - 1, groups),
        block_start=_shifted(workload.block_start, tokens, groups),
        block_end=_shifted(workload.block_end, tokens, groups),
        compute_q=_shifted(workload.compute_q, blocks, groups),
        compute_kv=(workload.compute_kv[None] + blocks * first[:, None]).ravel().astype(np.int32),
        compute_kind=np.tile(workload.compute_kind, groups),
        compute_pairs=np.tile(workload.compute_pairs, groups),
        slabs=_expanded_slabs(workload.slabs, first),
        forms=_expanded_forms(workload.forms, first, tokens),
    )


def expand_head_groups(plan: Plan) -> Plan:
    """Build the plan of the expanded batch, which has one group; the plan itself if G is 1.

    Row i of tiles and transfers is row i of the plan; block b of group g is block ``g * D + b``.
    Local tokens of a device are those of group 0, then those of group 1, ...
    """
    groups, blocks = plan.head_groups, plan.blocks
    if groups == 1:
        return plan
    shape = group_shape(plan.shape, groups)
    tiles, transfers = plan.tiles, plan.transfers
    if tiles.group is None or transfers.group is None:
        raise PlanError(f"a plan of {groups} head groups says the group of tiles and transfers")
    first, count = first_groups(plan.shape, groups), len(blocks)
    forward, backward = (
        Programs(_with_copies(tabulate_programs(plan, d), groups, count, is_expanding=True), len(p))
        for d, p in zip(DIRECTIONS, (plan.forward, plan.backward), strict=True)
    )
    return replace(
        plan,
        shape=shape,
        head_groups=1,
        cu_seqlens=_expanded_cu_seqlens(plan.cu_seqlens, groups),
        sequence_names=plan.sequence_names * groups,
        blocks=Blocks(
            _shifted(blocks.sequence, len(plan.cu_seqlens) - 1, groups),
            _shifted(blocks.start, plan.num_tokens, groups),
            _shifted(blocks.end, plan.num_tokens, groups),
            np.tile(blocks.owner, groups),
        ),
        tiles=replace(
            tiles,
            q_block=(tiles.q_block + tiles.group.astype(np.int64) * count).astype(np.int32),
            kv_block=(tiles.kv_block + first[tiles.group] * count).astype(np.int32),
            group=None,
        ),
        # A transfer of keys names the first group that reads them, whose copy has the keys.
        transfers=replace(
            transfers,
            block=(transfers.block + transfers.group.astype(np.int64) * count).astype(np.int32),
            group=None,
        ),
        slabs=_expanded_slabs(plan.slabs, first),
        forms=_expanded_forms(plan.forms, first, plan.num_tokens),
        forward=forward,
        backward=backward,
    )


def fold_head_groups(plan: Plan, workload: Workload, groups: int) -> Plan:
    """Write the plan of an expanded batch in real blocks; the inverse of `expand_head_groups`."""
    count = workload.num_blocks
    # Block b of group g is block g * count + b of the expanded batch.
    tiles, transfers = plan.tiles, plan.transfers
    forward, backward = (
        Programs(
            _with_copies(tabulate_programs(plan, d), groups, count, is_expanding=False), len(p)
        )
        for d, p in zip(DIRECTIONS, (plan.forward, plan.backward), strict=True)
    )
    return replace(
        plan,
        shape=workload.shape,
        head_groups=groups,
        cu_seqlens=workload.cu_seqlens,
        blocks=Blocks(
            workload.block_sequence,
            workload.block_start,
            workload.block_end,
            plan.blocks.owner[:count],  # the same in every copy
        ),
        tiles=replace(
            tiles,
            q_block=tiles.q_block % count,
            kv_block=tiles.kv_block % count,
            group=(tiles.q_block // count).astype(np.uint8),
        ),
        transfers=replace(
            transfers,
            block=transfers.block % count,
            group=(transfers.block // count).astype(np.uint8),
        ),
        slabs=workload.slabs,
        forms=workload.forms,
        forward=forward,
        backward=backward,
    )


def _shifted(column: NDArray[_Number], by: int, groups: int) -> NDArray[_Number]:
    """Repeat a column for every group, raised by 0, `by`, twice `by`, ..."""
    shifts = np.arange(groups, dtype=column.dtype)[:, None] * column.dtype.type(by)
    return np.asarray((column[None] + shifts).ravel())


def _expanded_cu_seqlens(cu: Indices, groups: int) -> Indices:
    tokens = int(cu[-1])
    if tokens * groups > _MOST_TOKENS:
        raise PlanError(
            f"head_groups: expected tokens times groups up to {_MOST_TOKENS:,}, got {tokens:,} "
            f"times {groups}; use fewer groups"
        )
    return np.append(_shifted(cu[:-1], tokens, groups), np.int32(tokens * groups)).astype(np.int32)


def _expanded_slabs(slabs: Slabs, first: Ints) -> Slabs:
    groups, tokens = len(first), slabs.num_tokens
    keys = first[:, None] * tokens
    return Slabs(
        groups * tokens,
        _shifted(slabs.q_start, tokens, groups),
        _shifted(slabs.q_end, tokens, groups),
        (slabs.kv_start[None] + keys).ravel(),
        (slabs.kv_end[None] + keys).ravel(),
        np.tile(slabs.start_slope, groups),
        np.tile(slabs.end_slope, groups),
    )


def _expanded_forms(
    forms: tuple[PlacedForm, ...], first: Ints, tokens: int
) -> tuple[PlacedForm, ...]:
    """Place every mask once for each group: on the group's queries and the keys that it reads."""
    return tuple(
        PlacedForm(f.form, f.q_start + group * tokens, f.kv_start + keys * tokens)
        for group, keys in enumerate(first.tolist())
        for f in forms
    )


def _with_copies(
    table: ProgramTable, groups: int, count: int, *, is_expanding: bool
) -> ProgramTable:
    """Rewrite the blocks of copies: of all groups if `is_expanding`, else of group 0 only.

    Other instructions list rows of tiles or transfers, which are the same in both plans.
    """
    counts = np.diff(table.item_ptr)
    is_copy = np.repeat(table.op == COPY, counts)
    if is_expanding:
        # Blocks of a copy in group 0, then the same blocks in group 1, ...
        times = np.where(is_copy, groups, 1)
        item, group = expand(0, times)
        items = table.items.astype(np.int64)[item] + group * count
        order = np.lexsort((item, group, table.row_of_item()[item]))
        items, counts = items[order], np.where(table.op == COPY, counts * groups, counts)
    else:
        # A device that owns a block owns its copies in all groups, so a Gth of the items stays.
        items = table.items[~is_copy | (table.items < count)]
        counts = np.where(table.op == COPY, counts // groups, counts)
    return replace(table, items=items.astype(np.int32), item_ptr=np.append(0, np.cumsum(counts)))
