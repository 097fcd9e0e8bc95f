"""Kernels and tile tables against dense attention: divisions, permuted buffers, head layouts."""

import numpy as np
import pytest
import torch

from dcp_dsl import Slabs
from dcp_planner.tables import Blocks, ComputeBlocks
from dcp_runtime.errors import RunError
from dcp_runtime.kernels.choice import choose_kernel
from dcp_runtime.kernels.kernel import AttentionState, Gradients, QueryRows, accumulator_dtype
from dcp_runtime.plans.tile_pieces import Cells, PieceKind, cut_pieces, cut_slabs
from dcp_runtime.plans.tile_table import TableBuilder

KERNELS = ("cpu", "reference")  # `test_triton_kernels` has the interpreted ones
HEADS = {"mha": (2, 2), "gqa": (4, 2), "mqa": (3, 1)}


def tables_of(sparsity, rng, num_tables, segment_rows):
    """Blocks in random places of the buffers (with gaps), tiles dealt at random to tables."""
    bounds = sparsity.q_bounds
    blocks = Blocks(np.zeros(len(bounds) - 1), bounds[:-1], bounds[1:], np.zeros(len(bounds) - 1))
    count = len(sparsity.col_idx)
    division = rng.integers(num_tables, size=count)
    zeros = np.zeros(count, int)
    tiles = ComputeBlocks(
        sparsity.row_idx, sparsity.col_idx, sparsity.kind, sparsity.pairs, zeros, division, zeros
    )
    places, sizes = [], []
    for _ in ("q", "kv"):
        order, at, place = rng.permutation(len(blocks)), 3, np.zeros(len(blocks), np.int64)
        for block in order.tolist():
            place[block] = at
            at += int(blocks.num_tokens[block]) + int(rng.integers(3))
        places.append(place)
        sizes.append(at)
    pieces = cut_pieces(blocks, tiles, sparsity.slabs, np.arange(count), segment_rows)
    rows = places[0][tiles.q_block], places[1][tiles.kv_block]
    builder = TableBuilder(blocks, tiles, pieces, rows)
    tables = [
        builder.build(tuple(np.flatnonzero(division == d).tolist())) for d in range(num_tables)
    ]
    return blocks, places, sizes, tables


def into_buffer(x, blocks, place, size):
    buffer = torch.full((size, *x.shape[1:]), torch.nan, dtype=x.dtype)  # untouched rows are poison
    for block, at in enumerate(place.tolist()):
        a, b = int(blocks.start[block]), int(blocks.end[block])
        buffer[at : at + b - a] = x[a:b]
    return buffer


def out_of_buffer(buffer, blocks, place):
    parts = [buffer[place[b] : place[b] + int(blocks.num_tokens[b])] for b in range(len(blocks))]
    return torch.cat(parts)


def run_kernel(kernel, sparsity, qkv, seed, num_tables=3, segment_rows=16):
    q, kv, dout = qkv
    dtype, scale = accumulator_dtype(q.dtype), q.shape[-1] ** -0.5
    rng = np.random.default_rng(seed)
    blocks, (q_place, kv_place), (q_size, kv_size), tables = tables_of(
        sparsity, rng, num_tables, segment_rows
    )
    q_buffer = into_buffer(q, blocks, q_place, q_size)
    kv_buffer = into_buffer(kv, blocks, kv_place, kv_size)
    state = AttentionState.empty(q_size, q.shape[1], q.shape[2], dtype)
    for table in tables:
        kernel.forward(q_buffer, kv_buffer, table, scale, state)
    out = out_of_buffer(state.out, blocks, q_place).to(q.dtype)
    lse = out_of_buffer(state.lse, blocks, q_place)
    delta = (dout.to(dtype) * out.to(dtype)).sum(-1)
    query_rows = QueryRows(
        q_buffer,
        into_buffer(dout, blocks, q_place, q_size),
        into_buffer(lse, blocks, q_place, q_size),
        into_buffer(delta, blocks, q_place, q_size),
    )
    sums = Gradients(
        torch.zeros(q_buffer.shape, dtype=dtype), torch.zeros(kv_buffer.shape, dtype=dtype)
    )
    for table in tables:
        kernel.backward(query_rows, kv_buffer, table, scale, sums)
    dq = out_of_buffer(sums.dq, blocks, q_place).to(q.dtype)
    return {
        "out": out, "lse": lse, "dq": dq,
        "dkv": out_of_buffer(sums.dkv, blocks, kv_place).to(q.dtype),
    }  # fmt: skip


def dense_of(sparsity):
    dense = np.zeros((sparsity.batch.num_tokens,) * 2, bool)
    for q0, q1, k0, k1, a, b in sparsity.slabs.table().tolist():
        for q in range(q0, q1):
            dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)] = True
    return dense


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("mask", ["causal", "streaming", "blind_rows", "scattered", "full"])
def test_kernel_is_as_exact_as_eager_attention(lab, name, heads, mask):
    sparsity = lab.sparsity_of([lab.MASKS[mask](n) for n in (77, 1, 40, 3)], 24)
    qkv = lab.random_qkv(1, 121, *HEADS[heads], 16, torch.float32)
    got = run_kernel(choose_kernel(torch.float32, wanted=name).kernel, sparsity, qkv, seed=2)
    lab.assert_as_exact_as_eager(got, *qkv, dense_of(sparsity))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_kernel_is_as_exact_as_eager_in_every_dtype(lab, name, dtype):
    sparsity = lab.sparsity_of([lab.MASKS["streaming"](90), lab.MASKS["blind_rows"](50)], 32)
    qkv = lab.random_qkv(3, 140, 4, 2, 32, dtype)
    got = run_kernel(choose_kernel(dtype, wanted=name).kernel, sparsity, qkv, seed=4)
    lab.assert_as_exact_as_eager(got, *qkv, dense_of(sparsity))


@pytest.mark.parametrize("name", KERNELS)
def test_rows_that_see_nothing_give_exact_zeros(lab, name):
    mask = lab.MASKS["blind_rows"](60)
    sparsity = lab.sparsity_of([mask], 16)
    qkv = lab.random_qkv(5, 60, 2, 1, 8, torch.float32)
    got = run_kernel(choose_kernel(torch.float32, wanted=name).kernel, sparsity, qkv, seed=6)
    blind = ~mask.any(1)
    assert blind.sum() > 5
    assert (got["out"][blind] == 0).all()
    assert (got["dq"][blind] == 0).all()
    assert (got["lse"][blind] == -torch.inf).all()
    unseen = ~mask.any(0)
    assert (got["dkv"][unseen] == 0).all()


@pytest.mark.parametrize("name", KERNELS)
def test_backward_survives_tiny_and_zero_gradients(lab, name):
    sparsity = lab.sparsity_of([lab.MASKS["causal"](48)], 16)
    q, kv, dout = lab.random_qkv(7, 48, 2, 1, 8, torch.float32)
    dout = dout * 1e-25  # squares of these underflow in float32
    dout[::5] = 0
    got = run_kernel(choose_kernel(torch.float32, wanted=name).kernel, sparsity, (q, kv, dout), 8)
    want = lab.eager(q.double(), kv.double(), dout.double(), lab.MASKS["causal"](48))
    for tensor in ("dq", "dkv"):
        error = (got[tensor].double() - want[tensor]).norm() / want[tensor].norm()
        assert error < 1e-5


def test_the_reference_brings_masks_to_where_the_tensors_are(lab):
    sparsity = lab.sparsity_of([lab.MASKS["causal"](8)], 8)
    *_, (table,) = tables_of(sparsity, np.random.default_rng(0), 1, 8)
    q, kv, lse = (torch.empty(16, *rest, device="meta") for rest in ((1, 8), (2, 1, 8), (1,)))
    kernel = choose_kernel(torch.float32, "meta", "reference").kernel
    kernel.forward(q, kv, table, 1.0, AttentionState.empty(16, 1, 8, torch.float32, "meta"))
    kernel.backward(QueryRows(q, q, lse, lse), kv, table, 1.0, Gradients(q, kv))


@pytest.mark.parametrize("segment_rows", [1, 7, 16, 1000])
@pytest.mark.parametrize("mask", ["causal", "streaming", "blind_rows", "scattered", "full"])
def test_tables_hold_exactly_the_dense_mask(lab, mask, segment_rows):
    sparsity = lab.sparsity_of([lab.MASKS[mask](n) for n in (50, 1, 33)], 16)
    rng = np.random.default_rng(9)
    blocks, (q_place, kv_place), (q_size, kv_size), tables = tables_of(
        sparsity, rng, 2, segment_rows
    )
    found = np.zeros((q_size, kv_size), int)
    for table in tables:
        for s in range(table.num_segments):
            a, n = int(table.q_start[s]), int(table.q_len[s])
            for p in range(int(table.row_ptr[s]), int(table.row_ptr[s + 1])):
                c, m = int(table.kv_start[p]), int(table.kv_len[p])
                found[a : a + n, c : c + m] += table.piece_mask(p, n)
    q_at = torch.arange(q_size)
    columns = out_of_buffer(torch.arange(kv_size), blocks, kv_place).numpy()
    lines = out_of_buffer(q_at, blocks, q_place).numpy()
    assert (found[np.ix_(lines, columns)] == dense_of(sparsity)).all()
    assert found.sum() == sparsity.num_pairs == sum(t.pairs for t in tables)


def test_a_sink_and_a_window_are_ranges_and_scattered_keys_are_bits(lab):
    for mask, kind in (("streaming", PieceKind.RANGES), ("scattered", PieceKind.BITS)):
        sparsity = lab.sparsity_of([lab.MASKS[mask](64)], 64)
        *_, (table,) = tables_of(sparsity, np.random.default_rng(0), 1, 64)
        assert set(table.kind.tolist()) == {kind}


def test_keys_outside_a_narrow_window_are_trimmed(lab):
    sparsity = lab.sparsity_of([lab.MASKS["streaming"](256)], 256)
    *_, (table,) = tables_of(sparsity, np.random.default_rng(0), 1, 32)
    # 5 + 12 of 256 keys per row: a segment needs its own 32 keys, the window before and the sink.
    area = sum(
        int(table.q_len[s]) * int(table.kv_len[table.row_ptr[s] : table.row_ptr[s + 1]].sum())
        for s in range(table.num_segments)
    )
    assert area < 0.7 * 256 * 256


def test_keys_side_by_side_are_one_piece_and_what_is_all_visible_needs_no_mask(lab):
    n, full = 64, int(PieceKind.FULL)
    q, kv = np.ogrid[:n, :n]
    masks = {
        "full": np.ones((n, n), bool),
        "first keys": np.broadcast_to(kv < 20, (n, n)),
        "sink and window that touch": (kv < 4) | ((kv >= 4) & (kv <= q)),
    }
    pieces = {}
    for name, mask in masks.items():
        found = lab.sparsity_of([mask], 16)
        blocks = Blocks(np.zeros(4), np.arange(0, n, 16), np.arange(16, n + 1, 16), np.zeros(4))
        count, zeros = len(found.col_idx), np.zeros(len(found.col_idx), int)
        tiles = ComputeBlocks(
            found.row_idx, found.col_idx, found.kind, found.pairs, zeros, zeros, zeros
        )
        cut = cut_pieces(blocks, tiles, found.slabs, np.arange(count), 16)
        assert not any(x.flags.writeable for x in (cut.masks.row_lo, cut.masks.bits))
        rows = 16 * tiles.q_block, 16 * tiles.kv_block
        table = TableBuilder(blocks, tiles, cut, rows).build(tuple(range(count)))
        pieces[name] = [(int(k), int(m)) for k, m in zip(table.kind, table.kv_len, strict=True)]
    assert pieces["full"] == [(full, n)] * 4
    assert pieces["first keys"] == [(full, 20)] * 4
    # A segment sees all keys before its own in one piece, its own through a range per row.
    touching = pieces["sink and window that touch"]
    assert [m for k, m in touching if k == full] == [16, 32, 48]
    assert [k for k, _ in touching if k != full] == [int(PieceKind.RANGES)] * 4


def test_ranges_that_touch_are_one():
    slabs = np.array([(0, 8, a, b, 0, 0) for a, b in ((0, 2), (2, 3), (5, 7))]).T
    cells = Cells(*np.array([[0], [0], [8], [0], [16]]))
    cut = cut_slabs(Slabs(16, *slabs), cells)
    assert list(zip(cut.lo.tolist(), cut.hi.tolist(), strict=True)) == [(0, 3), (5, 7)] * 8


def test_wrong_pair_count_in_a_plan_is_refused(lab):
    sparsity = lab.sparsity_of([lab.MASKS["causal"](32)], 16)
    object.__setattr__(sparsity, "pairs", sparsity.pairs + 1)
    with pytest.raises(RunError, match="visible pairs"):
        tables_of(sparsity, np.random.default_rng(0), 1, 16)
