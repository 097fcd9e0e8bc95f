"""Write a plan's mask and placement for other systems of context parallelism.

MagiAttention and FlashMask with `cp_balance` deal chunks of equal length to ranks, and keep each
rank's chunks in the order of the sequence, as plans keep blocks. A plan becomes one of theirs with
the longest chunks of which every device owns whole ones; their kernels and their communication do
the rest, so a plan's tiles and transfers are left out.
Sources: SandAI-org/MagiAttention, commit 2c641357, `meta/collection/dispatch_meta.py`, with
`uneven_shard`; PaddlePaddle/flash-attention, commit 9985af53, `flash_mask/cp_balance`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import ExchangeError, Slabs, export_mask
from dcp_dsl.arrays import Ints, order_by
from dcp_dsl.forms import as_slabs
from dcp_dsl.interchange import Export
from dcp_planner.tables.plan import Plan

PlanFormat: TypeAlias = Literal["magi", "flashmask"]
"""Formats of `export_plan`."""


def export_plan(plan: Plan, format: PlanFormat) -> Export:
    """Write the mask and the placement of a plan in the form of another system.

    Beside the arrays of `export_mask` there are, all int32, with chunk c from token
    ``c * chunk_size`` on, R devices and the values `chunk_size`, `num_chunks`, `cp_size`:

    - ``magi``, the fields of a `DispatchMeta` with `uneven_shard`: `partitions_perm_idxs` and
      `partitions_unperm_idxs` ``[chunks]``, `chunk_actual_sizes` ``[chunks]``, `split_sizes`
      ``[R]``; `partition_sizes` ``[R]`` cuts the first into `partitions`.
    - ``flashmask``: `chunk_order` ``[R, chunks / R]``, the chunks of `buckets`, and
      `local_startend_row_indices` ``[R, 1, n, 2 or 4]``, what `balance_flashmask_input` returns on
      each rank: keys in the order of all ranks, rows those of the rank. It is never causal.

    Args:
        plan: any; its tiles, transfers and head groups are left out.
        format: one of the two.

    Raises:
        ExchangeError: if the format cannot hold the mask (codes as `export_mask`), a device owns no
            token, or, for ``flashmask``, devices own different numbers of tokens.

    Cost:
        As `export_mask`; for ``flashmask`` also R arrays of the tokens.

    >>> from dcp_dsl import block_sparsity
    >>> from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
    >>> blocks = block_sparsity([Slabs(8, [0], [8], [0], [1], [0], [1])], 2, 2)
    >>> plan = build_plan(blocks, ModelShape(1, 1, 8), Cluster(1, 2), PlanConfig("static:zigzag"))
    >>> export_plan(plan, "magi").arrays["partitions_perm_idxs"].tolist()
    [0, 3, 1, 2]
    >>> export_plan(plan, "flashmask").arrays["chunk_order"].tolist()
    [[0, 3], [1, 2]]
    """
    if format not in get_args(PlanFormat):
        names = " or ".join(map(repr, get_args(PlanFormat)))
        raise ExchangeError(f"export_plan: expected the format {names}, got {format!r}")
    mask = export_mask(_mask_of(plan), format)
    rows = [plan.local_tokens(device) for device in range(plan.num_devices)]
    if empty := [device for device, own in enumerate(rows) if not len(own)]:
        raise ExchangeError(
            f"{format}: expected tokens on every device, device {empty[0]} owns none; plan for "
            "fewer devices, or with a smaller block_size"
        )
    chunk = _chunk_size(plan)
    write = _magi if format == "magi" else _flashmask
    more, chunk = write(plan, rows, chunk, mask)
    values = {
        **mask.values, "chunk_size": chunk, "num_chunks": -(-plan.num_tokens // chunk),
        "cp_size": plan.num_devices,
    }  # fmt: skip
    own = {name: array.astype(np.int32) for name, array in more.items()}
    return replace(mask, arrays={**mask.arrays, **own}, values=values)


def _mask_of(plan: Plan) -> Slabs:
    tables = [plan.slabs.table()]
    for placed in plan.forms:
        q, k = placed.q_start, placed.kv_start
        tables.append(as_slabs(placed.form).table() + np.array([q, q, k, k, 0, 0]))
    table = np.concatenate(tables)
    table = table[order_by(table[:, 0], table[:, 2])]
    return Slabs(plan.num_tokens, *table.T)


def _chunk_size(plan: Plan) -> int:
    """Return the longest chunk at whose borders alone the owner changes."""
    blocks = plan.blocks
    borders = blocks.start[1:][blocks.owner[1:] != blocks.owner[:-1]]
    return int(np.gcd.reduce(borders)) if len(borders) else plan.num_tokens


def _magi(
    plan: Plan, rows: list[Ints], chunk: int, _: Export
) -> tuple[Mapping[str, NDArray[Any]], int]:  # Any: integers
    owned = [np.unique(own // chunk) for own in rows]
    order = np.concatenate(owned)
    sizes = np.minimum(chunk, plan.num_tokens - np.arange(len(order)) * chunk)
    return {
        "partitions_perm_idxs": order, "partitions_unperm_idxs": np.argsort(order),
        "partition_sizes": np.array([len(own) for own in owned]), "chunk_actual_sizes": sizes,
        "split_sizes": np.array([len(own) for own in rows]),
    }, chunk  # fmt: skip


def _flashmask(
    plan: Plan, rows: list[Ints], chunk: int, mask: Export
) -> tuple[Mapping[str, NDArray[Any]], int]:  # Any: integers
    counts = [len(own) for own in rows]
    if len(set(counts)) > 1:
        raise ExchangeError(
            f"flashmask: expected equally many tokens on every device, got {min(counts)} to "
            f'{max(counts)}; export "magi", or plan with PlanConfig("static:zigzag") or '
            "token_tolerance=0 and blocks of one length"
        )
    chunk = int(np.gcd(chunk, counts[0]))  # the last chunk is as long as the others, too
    # Its exchange of chunks takes the rank that held chunk c before to be c // cp_size.
    usual = counts[0] // len(rows)
    if usual and counts[0] % len(rows) == 0 and chunk % usual == 0:
        chunk = usual
    hidden = _two_sided(mask)[np.concatenate(rows)]
    # Rows of a rank keep their order: a border becomes the number of its rows in front of it.
    local = np.stack([np.searchsorted(own, hidden) for own in rows])
    order = np.stack([own[::chunk] // chunk for own in rows])
    return {"chunk_order": order, "local_startend_row_indices": local[:, None]}, chunk


def _two_sided(mask: Export) -> NDArray[Any]:  # Any: integers
    """Return the hidden rows of every key, those above the diagonal written out: ``[n, 2 or 4]``.

    Two columns are the first row of those hidden below and the end of those above; four are the
    rows from the first to the second, and from the third to the fourth.
    """
    columns: NDArray[Any] = mask.arrays["startend_row_indices"][0, 0]
    if not mask.values["causal"]:
        return columns
    keys = np.arange(len(columns))
    if columns.shape[1] == 1:
        return np.column_stack([columns, keys])
    return np.column_stack([columns, np.zeros(len(keys), np.int64), keys])
