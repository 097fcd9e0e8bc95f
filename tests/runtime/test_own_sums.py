"""Tables that begin and end sums: the kernel reads nothing before, and nobody converts behind."""

from dataclasses import replace

import numpy as np
import pytest
import test_random_placements as placements
import torch

from dcp_planner import TransferKind
from dcp_runtime.errors import RunError
from dcp_runtime.execute.passes import BackwardPass, ForwardPass
from dcp_runtime.kernels import choice
from dcp_runtime.kernels.cpu import CpuKernel
from dcp_runtime.kernels.kernel import AttentionState, Gradients, QueryRows
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.plans.own_sums import OwnSums

SUMS = frozenset({TransferKind.OUT, TransferKind.DQ, TransferKind.DKV})


def segments(table, marks):
    chosen = np.flatnonzero(marks) if marks is not None else []
    return [slice(table.q_start[i], table.q_start[i] + table.q_len[i]) for i in chosen]


def keys_of(table):
    return [slice(a, a + n) for a, n in zip(table.kv_start, table.kv_len, strict=True)]


def widened(sums, rows, dtype):
    """The sums, over all rows of the buffer: NaN where none lie in memory."""
    wide = rows.new_full(rows.shape, torch.nan, dtype=dtype)
    wide[: len(sums)] = sums
    return wide


def finish(sums, wide, result, closed):
    """Write sums back, but for rows that a table closes: these become results, then NaN."""
    for rows in closed:
        result[rows] = wide[rows].to(result.dtype)
    for rows in closed:
        wide[rows] = torch.nan
    sums[:] = wide[: len(sums)]


class Finishing(CpuKernel):
    """The CPU kernel, which begins and ends sums as strictly as a kernel may."""

    finishes = SUMS

    def forward(self, q, kv, table, scale, state):
        lse = state.lse
        wide = widened(state.out, q, lse.dtype)
        if state.result is not None:
            for rows in segments(table, table.opens):
                wide[rows], lse[rows] = 0, -torch.inf
        super().forward(q, kv, table, scale, AttentionState(wide, lse))
        closed = segments(table, table.closes) if state.result is not None else []
        finish(state.out, wide, state.result, closed)

    def backward(self, rows, kv, table, scale, gradients):
        dtype = gradients.dq.dtype
        dq, dkv = widened(gradients.dq, rows.q, dtype), widened(gradients.dkv, kv, dtype)
        for each in segments(table, table.opens):
            dq[each] = 0
        for each in keys_of(table) if table.opens_keys else ():
            dkv[each] = 0
        super().backward(rows, kv, table, scale, Gradients(dq, dkv))
        finish(gradients.dq, dq, gradients.dq_result, segments(table, table.closes))
        closed = keys_of(table) if table.closes_keys else []
        results = gradients.dkv_result
        if len(results) == 1:
            return finish(gradients.dkv, dkv, results[0], closed)
        for half, result in enumerate(results):
            finish(gradients.dkv[:, half], dkv[:, half], result, closed)


@pytest.mark.usefixtures("nan_in_new_memory")
def test_blocks_and_tiles_anywhere_are_exact(lab, monkeypatch):
    monkeypatch.setattr(choice, "CpuKernel", Finishing)
    for seed in range(40, 52):
        if seed % 4:  # the others run the reference
            placements.check(lab, seed)


def test_a_kernel_that_leaves_rows_out_is_found_out(lab, monkeypatch):
    class Forgetful(Finishing):
        def forward(self, q, kv, table, scale, state):
            super().forward(q, kv, table, scale, replace(state, result=state.result.clone()))

    monkeypatch.setattr(choice, "CpuKernel", Forgetful)
    plan = lab.plan_of([("causal", 32)], heads=(2, 1, 8))
    with pytest.raises(RunError, match="out has 512 values that are not finite after forward"):
        lab.run_in_threads(plan, *lab.random_qkv(1, 32, 2, 1, 8, torch.float32))


def part_of(lab, mask, devices, **choices):
    plan = lab.plan_of([mask], devices, heads=(4, 2, 16), dtype_bytes=2, **choices)
    return prepare_device(plan, 0, 16)


def test_sums_of_a_single_table_take_no_memory(lab):
    part = part_of(lab, lab.MASKS["causal"](49), 1)  # the last block is one row
    q, kv, _ = lab.random_qkv(1, 49, 4, 2, 16, torch.bfloat16)
    forward = ForwardPass(part, q, kv, None, SUMS)
    rows = QueryRows(q, q, *torch.zeros(2, 49, 4))
    backward = BackwardPass(part, rows, (kv[:, 0], kv[:, 1]), None, SUMS)
    assert not any(map(len, (forward._state.out, backward._dq.wide, backward._dkv.wide)))
    results = *forward._out.results, *backward._dq.results, *backward._dkv.results
    assert [x.dtype for x in results] == 4 * [torch.bfloat16]
    assert [list(x.shape) for x in results] == [[49, 4, 16], [49, 4, 16], [49, 2, 16], [49, 2, 16]]


@pytest.mark.parametrize("divisions", [2, 3])
def test_rows_of_a_causal_plan_begin_at_home_and_gradients_of_keys_end_with_partial_sums(
    lab, divisions
):
    part = part_of(lab, lab.MASKS["causal"](96), 2, divisions=divisions)
    for direction, kind in ((part.forward, TransferKind.OUT), (part.backward, TransferKind.DQ)):
        first, *others = direction.tables
        assert first.opens.all()
        assert not any(table.opens.any() for table in others)
        ends = np.concatenate([t.q_start[t.closes] for t in direction.tables])
        assert sorted(ends.tolist()) == sorted(first.q_start.tolist())  # each row ends once
        assert direction.sums[kind] == OwnSums((), (), is_kept=True)
    keys = part.backward.sums[TransferKind.DKV]
    assert part.backward.tables[0].opens_keys
    assert keys.left == (slice(0, part.num_local),)  # partial sums of the other device come last
    assert not any(table.closes_keys for table in part.backward.tables)


def test_rows_and_keys_in_no_table_are_blank(lab):
    mask = lab.MASKS["causal"](64)
    mask[16:32], mask[:, 48:] = False, False
    part = part_of(lab, mask, 1)
    assert part.forward.sums[TransferKind.OUT].blank == (slice(16, 32),)
    assert part.forward.sums[TransferKind.OUT].left == (slice(16, 32),)
    assert part.backward.sums[TransferKind.DKV].blank == (slice(48, 64),)


def test_many_gaps_are_cleared_and_converted_at_once(lab):
    mask = np.kron(np.eye(24, dtype=bool)[:, ::2], np.ones((16, 32), bool))  # every other block
    mask[np.arange(384) // 16 % 2 == 1] = False
    own = part_of(lab, mask, 1).forward
    assert own.sums[TransferKind.OUT] == OwnSums.of_all(384)
    (table,) = own.tables
    assert table.opens.all()
    assert not table.closes.any()
    keys = part_of(lab, mask.T, 1).backward
    assert keys.sums[TransferKind.DKV] == OwnSums.of_all(384)
    (table,) = keys.tables
    assert (table.opens_keys, table.closes_keys) == (True, False)
