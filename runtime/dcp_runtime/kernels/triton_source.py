"""The Triton source of the CUDA kernels: forward with carried state, dq, and dk with dv.

One program of `forward_kernel` and `dq_kernel` owns the rows of a segment and a query head, one of
`dkv_kernel` a run of key rows and a kv head. No two programs add to the same rows: there are no
atomics, and two runs give the same bits. Exponents have base 2 inside; `lse` is natural outside.

Masks come as in `TileTable`: kind 0 sees all keys of the piece, 1 up to two ranges per row, 2 a bit
per pair. The same source runs in Triton's interpreter on the CPU if that is switched on before this
module is imported.
"""

# Triton reads these functions' source, so types are annotated its way only.
# ruff: noqa: ANN001, ANN201, PLR0913
# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def visible(
    kind, mask_start, rows, columns, num_rows, num_columns, row_lo, row_hi, mask_columns, bits,
    HAS_BITS: tl.constexpr,
):  # fmt: skip
    """Return which (row, column) of a piece are visible; rows and columns count within it."""
    is_row = rows < num_rows
    seen = is_row[:, None] & (columns >= 0)[None, :] & (columns < num_columns)[None, :]
    if kind == 1:
        place = mask_start + rows
        first_lo = tl.load(row_lo + place, mask=is_row, other=0)
        first_hi = tl.load(row_hi + place, mask=is_row, other=0)
        second_lo = tl.load(row_lo + mask_columns + place, mask=is_row, other=0)
        second_hi = tl.load(row_hi + mask_columns + place, mask=is_row, other=0)
        key = columns[None, :]
        in_first = (key >= first_lo[:, None]) & (key < first_hi[:, None])
        in_second = (key >= second_lo[:, None]) & (key < second_hi[:, None])
        seen = seen & (in_first | in_second)
    # Addresses of bits take a register per pair: tables without any do without them.
    if HAS_BITS and kind == 2:
        width = (num_columns + 7) // 8
        place = mask_start + rows[:, None] * width + columns[None, :] // 8
        byte = tl.load(bits + place, mask=seen, other=0).to(tl.int32)
        seen = seen & (((byte >> (7 - columns[None, :] % 8)) & 1) != 0)
    return seen


# Sizes that change from batch to batch: a value of each would compile a kernel of its own.
@triton.jit(do_not_specialize=["mask_columns"])
def forward_kernel(
    q, kv, out, lse, q_start, q_len, row_ptr, kv_start, kv_len, kind, mask_start,
    row_lo, row_hi, bits, mask_columns, scale, q_row, kv_row, kv_half,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BITS: tl.constexpr,
):  # fmt: skip
    """Continue the online softmax of rows of a segment, for one head, over its pieces."""
    segment, head = tl.program_id(0), tl.program_id(1)
    num_rows = tl.load(q_len + segment)
    r, d = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, DIM_PAD)
    if tl.program_id(2) * BLOCK_M >= num_rows:
        return
    # Wide addresses are scalars, offsets inside a tile are narrow: half the registers.
    start = tl.load(q_start + segment).to(tl.int64)
    is_row, is_dim = r < num_rows, d < DIM
    inside = is_row[:, None] & is_dim[None, :]
    query_at = q + start * q_row + head * DIM
    query = tl.load(query_at + r[:, None] * q_row + d[None, :], mask=inside, other=0.0)
    out_at = out + start * (HEADS * DIM) + head * DIM + r[:, None] * (HEADS * DIM) + d[None, :]
    lse_at = lse + start * HEADS + head + r * HEADS
    acc = tl.load(out_at, mask=inside, other=0.0)
    top = tl.load(lse_at, mask=is_row, other=float("-inf")) * LOG2_E
    total = tl.where(top > float("-inf"), 1.0, 0.0)
    for piece in range(tl.load(row_ptr + segment), tl.load(row_ptr + segment + 1)):
        first, size = tl.load(kv_start + piece), tl.load(kv_len + piece)
        piece_kind, masks_at = tl.load(kind + piece), tl.load(mask_start + piece)
        for begin in range(0, size, BLOCK_N):
            lane = tl.arange(0, BLOCK_N)
            column = begin + lane
            key_at = kv + (first + begin).to(tl.int64) * kv_row + (head // GROUP) * DIM
            is_key = column < size
            keys = tl.load(
                key_at + lane[None, :] * kv_row + d[:, None],
                mask=is_dim[:, None] & is_key[None, :], other=0.0,
            )  # fmt: skip
            scores = tl.dot(query, keys, input_precision="ieee") * (scale * LOG2_E)
            seen = visible(
                piece_kind, masks_at, r, column, num_rows, size, row_lo, row_hi, mask_columns, bits,
                HAS_BITS,
            )  # fmt: skip
            scores = tl.where(seen, scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            # A row without keys so far has top -inf, and -inf - -inf would be NaN.
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            weights = tl.exp2(scores - base[:, None])
            keep = tl.exp2(top - base)
            total = total * keep + tl.sum(weights, 1)
            values = tl.load(
                key_at + kv_half + lane[:, None] * kv_row + d[None, :],
                mask=is_key[:, None] & is_dim[None, :], other=0.0,
            )  # fmt: skip
            acc = acc * keep[:, None]
            acc += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
            top = new_top
    is_seen = total > 0
    divisor = tl.where(is_seen, total, 1.0)
    tl.store(out_at, acc / divisor[:, None], mask=inside)
    new_lse = tl.where(is_seen, (top + tl.log2(divisor)) * LN_2, float("-inf"))
    tl.store(lse_at, new_lse, mask=is_row)


# Sizes that change from batch to batch: a value of each would compile a kernel of its own.
@triton.jit(do_not_specialize=["mask_columns"])
def dq_kernel(
    q, kv, dout, lse, delta, dq, q_start, q_len, row_ptr, kv_start, kv_len, kind, mask_start,
    row_lo, row_hi, bits, mask_columns, scale, q_row, dout_row, kv_row, kv_half,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BITS: tl.constexpr,
):  # fmt: skip
    """Add the gradient of rows of a segment, for one query head."""
    segment, head = tl.program_id(0), tl.program_id(1)
    num_rows = tl.load(q_len + segment)
    r, d = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, DIM_PAD)
    if tl.program_id(2) * BLOCK_M >= num_rows:
        return
    # Wide addresses are scalars, offsets inside a tile are narrow: half the registers.
    start = tl.load(q_start + segment).to(tl.int64)
    is_row, is_dim = r < num_rows, d < DIM
    inside = is_row[:, None] & is_dim[None, :]
    query_at = q + start * q_row + head * DIM
    query = tl.load(query_at + r[:, None] * q_row + d[None, :], mask=inside, other=0.0)
    upper_at = dout + start * dout_row + head * DIM
    upper = tl.load(upper_at + r[:, None] * dout_row + d[None, :], mask=inside, other=0.0)
    values_at = start * HEADS + head
    row_lse = tl.load(lse + values_at + r * HEADS, mask=is_row, other=0.0)
    row_lse = tl.where(row_lse == float("-inf"), 0.0, row_lse) * LOG2_E
    row_delta = tl.load(delta + values_at + r * HEADS, mask=is_row, other=0.0)
    acc = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
    for piece in range(tl.load(row_ptr + segment), tl.load(row_ptr + segment + 1)):
        first, size = tl.load(kv_start + piece), tl.load(kv_len + piece)
        piece_kind, masks_at = tl.load(kind + piece), tl.load(mask_start + piece)
        for begin in range(0, size, BLOCK_N):
            lane = tl.arange(0, BLOCK_N)
            column = begin + lane
            key_at = kv + (first + begin).to(tl.int64) * kv_row + (head // GROUP) * DIM
            at = (column < size)[:, None] & is_dim[None, :]
            keys = tl.load(key_at + lane[:, None] * kv_row + d[None, :], mask=at, other=0.0)
            key_at += kv_half
            values = tl.load(key_at + lane[:, None] * kv_row + d[None, :], mask=at, other=0.0)
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * (scale * LOG2_E)
            seen = visible(
                piece_kind, masks_at, r, column, num_rows, size, row_lo, row_hi, mask_columns, bits,
                HAS_BITS,
            )  # fmt: skip
            weights = tl.where(seen, tl.exp2(scores - row_lse[:, None]), 0.0)
            change = tl.dot(upper, tl.trans(values), input_precision="ieee")
            dscores = weights * (change - row_delta[:, None])
            acc += tl.dot(dscores.to(keys.dtype), keys, input_precision="ieee")
    dq_at = dq + start * (HEADS * DIM) + head * DIM + r[:, None] * (HEADS * DIM) + d[None, :]
    tl.store(dq_at, tl.load(dq_at, mask=inside, other=0.0) + acc * scale, mask=inside)


# Sizes that change from batch to batch: a value of each would compile a kernel of its own.
@triton.jit(do_not_specialize=["mask_columns", "num_keys"])
def dkv_kernel(
    q, kv, dout, lse, delta, dkv, chunk_row, chunk_ptr, entry_segment, entry_piece,
    q_start, q_len, kv_start, kv_len, kind, mask_start, row_lo, row_hi, bits, mask_columns,
    scale, num_keys, q_row, dout_row, kv_row, kv_half,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BITS: tl.constexpr,
):  # fmt: skip
    """Add the gradients of a run of keys and values and one kv head, over all that see them."""
    chunk, kv_head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, DIM_PAD)
    is_dim = d < DIM
    first, lane = tl.load(chunk_row + chunk), tl.arange(0, BLOCK_N)
    key_row = first + lane
    at = (key_row < num_keys)[:, None] & is_dim[None, :]
    key_at = kv + first.to(tl.int64) * kv_row + kv_head * DIM + lane[:, None] * kv_row + d[None, :]
    keys, values = (
        tl.load(key_at, mask=at, other=0.0),
        tl.load(key_at + kv_half, mask=at, other=0.0),
    )
    dk = tl.zeros([BLOCK_N, DIM_PAD], tl.float32)
    dv = tl.zeros([BLOCK_N, DIM_PAD], tl.float32)
    is_used = key_row < 0
    for entry in range(tl.load(chunk_ptr + chunk), tl.load(chunk_ptr + chunk + 1)):
        segment, piece = tl.load(entry_segment + entry), tl.load(entry_piece + entry)
        num_rows, size = tl.load(q_len + segment), tl.load(kv_len + piece)
        piece_kind, masks_at = tl.load(kind + piece), tl.load(mask_start + piece)
        column = key_row - tl.load(kv_start + piece)
        is_used = is_used | ((column >= 0) & (column < size))
        start = tl.load(q_start + segment).to(tl.int64)
        for top_row in range(0, num_rows, BLOCK_M):
            r = top_row + tl.arange(0, BLOCK_M)
            is_row = r < num_rows
            inside = is_row[:, None] & is_dim[None, :]
            seen = visible(
                piece_kind, masks_at, r, column, num_rows, size, row_lo, row_hi, mask_columns, bits,
                HAS_BITS,
            )  # fmt: skip
            for member in range(GROUP):
                head = kv_head * GROUP + member
                query_at = q + start * q_row + head * DIM
                query = tl.load(query_at + r[:, None] * q_row + d[None, :], mask=inside, other=0.0)
                upper_at = dout + start * dout_row + head * DIM
                upper = tl.load(
                    upper_at + r[:, None] * dout_row + d[None, :], mask=inside, other=0.0
                )
                values_at = start * HEADS + head
                row_lse = tl.load(lse + values_at + r * HEADS, mask=is_row, other=0.0)
                row_lse = tl.where(row_lse == float("-inf"), 0.0, row_lse) * LOG2_E
                row_delta = tl.load(delta + values_at + r * HEADS, mask=is_row, other=0.0)
                scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * (scale * LOG2_E)
                weights = tl.where(seen, tl.exp2(scores - row_lse[:, None]), 0.0)
                dv += tl.dot(tl.trans(weights).to(upper.dtype), upper, input_precision="ieee")
                change = tl.dot(upper, tl.trans(values), input_precision="ieee")
                dscores = tl.where(seen, weights * (change - row_delta[:, None]), 0.0)
                dk += tl.dot(tl.trans(dscores).to(query.dtype), query, input_precision="ieee")
    # Rows of the chunk in no piece may be on their way to another rank: leave them alone.
    at = at & is_used[:, None]
    width = (HEADS // GROUP) * DIM
    dk_at = dkv + first.to(tl.int64) * (2 * width) + kv_head * DIM
    dk_at += lane[:, None] * (2 * width) + d[None, :]
    tl.store(dk_at, tl.load(dk_at, mask=at, other=0.0) + dk * scale, mask=at)
    dv_at = dk_at + width
    tl.store(dv_at, tl.load(dv_at, mask=at, other=0.0) + dv, mask=at)
