"""The Triton source of the CUDA kernels: forward with carried state, dq, and dk with dv.

A program of `forward_kernel` and `dq_kernel` owns a segment and PACK query heads of a kv head. The
rows of its tile are tokens times heads: few tokens fill it, and its masked edges are short. A
program of `dkv_kernel` owns a chunk of key rows and a kv head. No two programs add to the same
rows: there are no atomics, and two runs give the same bits. Exponents have base 2 inside; `lse` is
natural outside.

Sums begin and end where a table opens and closes their rows (`own_sums`): those that begin here are
not read, and those that end here are written as results, in the type of q.

Work comes as runs (`triton_inputs`). Whole runs come first: every row of the program sees every key
of them, in whole steps, and the loop over them has no mask. The other runs have a mask as in
`TileTable`: kind 0 sees all keys of the run, 1 up to two ranges per row, 2 a bit per pair.

The scale must be positive. A soft cap c turns a score into c * tanh(score / c). The same source
runs in Triton's interpreter on the CPU if that is switched on before this module is imported.
"""

# Triton reads these functions' source, so types are annotated its way only.
# ruff: noqa: ANN001, ANN201, PLR0913
# Names that masked runs need are set where MASKED is, a constant when Triton compiles.
# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator,possibly-undefined"

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def ranges_of(kind, mask_start, rows, end, row_lo, row_hi, mask_columns):
    """Return two ranges of columns outside which rows of a piece see none: lows, highs.

    Of a piece without ranges the first one holds all columns, up to `end`. Rows below 0, which are
    none of the piece, get empty ranges.
    """
    has_ranges = (rows >= 0) & (kind == 1)
    at = mask_start + rows
    first_lo = tl.load(row_lo + at, mask=has_ranges, other=0)
    first_hi = tl.load(row_hi + at, mask=has_ranges, other=end)
    second_lo = tl.load(row_lo + mask_columns + at, mask=has_ranges, other=0)
    second_hi = tl.load(row_hi + mask_columns + at, mask=has_ranges, other=0)
    first_hi = tl.where(rows >= 0, tl.minimum(first_hi, end), 0)
    return first_lo, first_hi, second_lo, tl.minimum(second_hi, end)


@triton.jit
def seen_pairs(
    kind, mask_start, rows, columns, first_lo, first_hi, second_lo, second_hi, num_columns, bits,
    HAS_BITS: tl.constexpr, BRANCHES: tl.constexpr,
):  # fmt: skip
    """Return which pairs of rows and columns of a piece are visible.

    `rows` and their ranges are columns of a tile and `columns` a row of it, or the other way round:
    dkv has tiles of keys times queries. With `BRANCHES`, pieces without bits skip their addresses.
    In dkv, Triton cannot compile that branch in float32, and code without it is shorter.
    """
    seen = (columns >= first_lo) & (columns < first_hi)
    seen = seen | (columns >= second_lo) & (columns < second_hi)
    # Addresses of bits take a register per pair, so tables without bits compile without this.
    if HAS_BITS and (not BRANCHES or kind == 2):
        width = (num_columns + 7) // 8
        at = bits + mask_start + rows * width + columns // 8
        has_bit = seen if BRANCHES else seen & (kind == 2)
        byte = tl.load(at, mask=has_bit, other=255)
        seen = seen & (((byte.to(tl.int32) >> (7 - columns % 8)) & 1) != 0)
    return seen


@triton.jit
def squashed(scores, squash, IS_WIDE: tl.constexpr):
    """Return tanh(scores * squash), which a soft cap multiplies; of float32 scores `IS_WIDE`."""
    # 1 - 2 / (1 + exp(2 x)): where exp overflows this is 1, not NaN.
    found = 1.0 - 2.0 / (1.0 + tl.exp2(scores * (2.0 * squash * LOG2_E)))
    if IS_WIDE:  # near 0 the difference has lost digits that a cap of 50 brings to light
        x = scores * squash
        square = x * x
        # Lambert's continued fraction of tanh, exact to a rounding up to 1/2.
        fraction = (
            x * (945.0 + square * (105.0 + square)) / (945.0 + square * (420.0 + square * 15.0))
        )
        found = tl.where(square < 0.25, fraction, found)
    return found


@triton.jit
def attend_runs(
    query, acc, top, total, rows, key_at, kv_row, kv_half, first_run, last_run,
    scale, squash,
    kv_start, run_from, run_to, kind, mask_start, kv_len, row_lo, row_hi, mask_columns, bits,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BITS: tl.constexpr,
    CAPPED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Continue the online softmax of a tile of queries over runs of keys.

    `acc` is the sum of weights times values relative to the row maximum `top`, `total` the sum of
    the weights.
    Source: FlashAttention-2, Sec. 3.1.
    """
    lane, d = tl.arange(0, BLOCK_N), tl.arange(0, DIM_PAD)
    for run in range(first_run, last_run):
        origin, begin, end = tl.load(kv_start + run), tl.load(run_from + run), tl.load(run_to + run)
        if MASKED:
            run_kind, run_mask = tl.load(kind + run), tl.load(mask_start + run)
            first_lo, first_hi, second_lo, second_hi = ranges_of(
                run_kind, run_mask, rows, end, row_lo, row_hi, mask_columns
            )
        for at in range(begin, end, BLOCK_N):
            tile_at = key_at + (origin + at).to(tl.int64) * kv_row
            inside = (d < DIM)[None, :]
            if MASKED:
                inside = inside & (at + lane < end)[:, None]
            offset = lane[:, None] * kv_row + d[None, :]
            keys = tl.load(tile_at + offset, mask=inside, other=0.0)
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
            if CAPPED:
                scores = squashed(scores, squash, query.dtype == tl.float32)
            if MASKED:
                seen = seen_pairs(
                    run_kind, run_mask, rows[:, None], (at + lane)[None, :], first_lo[:, None],
                    first_hi[:, None], second_lo[:, None], second_hi[:, None],
                    tl.load(kv_len + run), bits, HAS_BITS, True,
                )  # fmt: skip
                scores = tl.where(seen, scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1) * scale)
            # A row without keys so far has top -inf, and -inf - -inf would be NaN.
            base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
            weights = tl.exp2(scores * scale - base[:, None])
            keep = tl.exp2(top - base)  # brings earlier sums to the new maximum
            total = total * keep + tl.sum(weights, 1)
            values = tl.load(tile_at + kv_half + offset, mask=inside, other=0.0)
            acc = acc * keep[:, None]
            acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
            top = new_top
    return acc, top, total


# Sizes that change from batch to batch: a value of each would compile a kernel of its own.
@triton.jit(do_not_specialize=["mask_columns", "finishes"])
def forward_kernel(
    q, kv, out, lse, result, finishes, order, q_start, q_len, turns, row_ptr, masked_ptr,
    kv_start, run_from, run_to, kind, mask_start, kv_len, row_lo, row_hi, bits, mask_columns, scale,
    softcap, q_row, kv_row, kv_half,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EDGE: tl.constexpr,
    HAS_BITS: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Continue the online softmax of a segment, for some heads, over its runs of keys."""
    PACKS: tl.constexpr = HEADS // PACK
    # Neighbouring programs compute packs of one segment: those of a kv head read the same keys.
    segment = tl.load(order + tl.program_id(0) // PACKS)
    head = tl.program_id(0) % PACKS * PACK
    lane, d = tl.arange(0, BLOCK_M), tl.arange(0, DIM_PAD)
    r, member = lane // PACK, lane % PACK  # token and head of each row of the tile
    # Wide addresses are scalars, offsets inside a tile are narrow: half the registers.
    start = tl.load(q_start + segment).to(tl.int64)
    is_row = r < tl.load(q_len + segment)
    inside = is_row[:, None] & (d < DIM)[None, :]
    column = member[:, None] * DIM + d[None, :]
    query_at = q + start * q_row + head * DIM
    query = tl.load(query_at + r[:, None] * q_row + column, mask=inside, other=0.0)
    out_at = out + start * (HEADS * DIM) + head * DIM + r[:, None] * (HEADS * DIM) + column
    lse_at = lse + start * HEADS + head + r * HEADS + member
    turn = tl.load(turns + segment) * finishes
    is_open = turn % 2 == 0  # else the sums begin here
    acc = tl.load(out_at, mask=inside & is_open, other=0.0)
    top = tl.load(lse_at, mask=is_row & is_open, other=float("-inf")) * LOG2_E
    # The normalised output so far counts as one key of score lse and weight 1.
    total = tl.where(top > float("-inf"), 1.0, 0.0)
    key_at = kv + (head // GROUP) * DIM
    # The loops multiply raw products by one factor before exp2. With a cap, the products become
    # tanh(product * scale / cap) first, and the factor is the cap in place of the scale.
    scale2, squash = (softcap if CAPPED else scale) * LOG2_E, scale / softcap
    rows = tl.where(is_row, r, -1)
    whole, masked = tl.load(row_ptr + segment), tl.load(masked_ptr + segment)
    acc, top, total = attend_runs(
        query, acc, top, total, rows, key_at, kv_row, kv_half, whole, masked,
        scale2, squash,
        kv_start, run_from, run_to, kind, mask_start, kv_len, row_lo, row_hi, mask_columns, bits,
        DIM, DIM_PAD, BLOCK_N, HAS_BITS, CAPPED, False,
    )  # fmt: skip
    acc, top, total = attend_runs(
        query, acc, top, total, rows, key_at, kv_row, kv_half, masked,
        tl.load(row_ptr + segment + 1), scale2, squash,
        kv_start, run_from, run_to, kind, mask_start, kv_len, row_lo, row_hi, mask_columns, bits,
        DIM, DIM_PAD, EDGE, HAS_BITS, CAPPED, True,
    )  # fmt: skip
    is_seen = total > 0
    divisor = tl.where(is_seen, total, 1.0)
    acc = acc / divisor[:, None]
    if turn < 2:
        tl.store(out_at, acc, mask=inside)
    else:
        result_at = result + start * (HEADS * DIM) + head * DIM + r[:, None] * (HEADS * DIM)
        tl.store(result_at + column, acc.to(result.dtype.element_ty), mask=inside)
    new_lse = tl.where(is_seen, (top + tl.log2(divisor)) * LN_2, float("-inf"))
    tl.store(lse_at, new_lse, mask=is_row)


@triton.jit
def dq_runs(
    query, upper, acc, row_lse, row_delta, rows, key_at, kv_row, kv_half, first_run, last_run,
    scale, squash, kv_start, run_from, run_to, kind, mask_start, kv_len, row_lo, row_hi,
    mask_columns, bits,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BITS: tl.constexpr,
    CAPPED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the gradient of a tile of queries over runs of keys."""
    lane, d = tl.arange(0, BLOCK_N), tl.arange(0, DIM_PAD)
    for run in range(first_run, last_run):
        origin, begin, end = tl.load(kv_start + run), tl.load(run_from + run), tl.load(run_to + run)
        if MASKED:
            run_kind, run_mask = tl.load(kind + run), tl.load(mask_start + run)
            first_lo, first_hi, second_lo, second_hi = ranges_of(
                run_kind, run_mask, rows, end, row_lo, row_hi, mask_columns
            )
        for at in range(begin, end, BLOCK_N):
            tile_at = key_at + (origin + at).to(tl.int64) * kv_row
            inside = (d < DIM)[None, :]
            if MASKED:
                inside = inside & (at + lane < end)[:, None]
            offset = lane[:, None] * kv_row + d[None, :]
            keys = tl.load(tile_at + offset, mask=inside, other=0.0)
            values = tl.load(tile_at + kv_half + offset, mask=inside, other=0.0)
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
            if CAPPED:
                scores = squashed(scores, squash, query.dtype == tl.float32)
            weights = tl.exp2(scores * scale - row_lse[:, None])
            if MASKED:
                seen = seen_pairs(
                    run_kind, run_mask, rows[:, None], (at + lane)[None, :], first_lo[:, None],
                    first_hi[:, None], second_lo[:, None], second_hi[:, None],
                    tl.load(kv_len + run), bits, HAS_BITS, True,
                )  # fmt: skip
                weights = tl.where(seen, weights, 0.0)
            change = tl.dot(upper, tl.trans(values), input_precision="ieee")
            dscores = weights * (change - row_delta[:, None])
            if CAPPED:  # the derivative of tanh; the scale follows once, behind all runs
                dscores = dscores * (1.0 - scores * scores)
            acc = tl.dot(dscores.to(keys.dtype), keys, acc, input_precision="ieee")
    return acc


# Sizes that change from batch to batch: a value of each would compile a kernel of its own.
@triton.jit(do_not_specialize=["mask_columns", "finishes"])
def dq_kernel(
    q, kv, dout, lse, delta, dq, result, finishes, order, q_start, q_len, turns, row_ptr,
    masked_ptr, kv_start, run_from, run_to, kind, mask_start, kv_len, row_lo, row_hi, bits,
    mask_columns, scale, softcap, q_row, dout_row, kv_row, kv_half,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EDGE: tl.constexpr,
    HAS_BITS: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Add the gradient of a segment, for some query heads."""
    PACKS: tl.constexpr = HEADS // PACK
    segment = tl.load(order + tl.program_id(0) // PACKS)
    head = tl.program_id(0) % PACKS * PACK
    lane, d = tl.arange(0, BLOCK_M), tl.arange(0, DIM_PAD)
    r, member = lane // PACK, lane % PACK
    start = tl.load(q_start + segment).to(tl.int64)
    is_row = r < tl.load(q_len + segment)
    inside = is_row[:, None] & (d < DIM)[None, :]
    column = member[:, None] * DIM + d[None, :]
    query_at = q + start * q_row + head * DIM
    query = tl.load(query_at + r[:, None] * q_row + column, mask=inside, other=0.0)
    upper_at = dout + start * dout_row + head * DIM
    upper = tl.load(upper_at + r[:, None] * dout_row + column, mask=inside, other=0.0)
    values_at = start * HEADS + head + r * HEADS + member
    row_lse = tl.load(lse + values_at, mask=is_row, other=0.0)
    # A row without any key has lse -inf: a finite number in its place keeps exp2 from NaN.
    row_lse = tl.where(row_lse == float("-inf"), 0.0, row_lse) * LOG2_E
    row_delta = tl.load(delta + values_at, mask=is_row, other=0.0)
    acc = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
    key_at = kv + (head // GROUP) * DIM
    scale2, squash = (softcap if CAPPED else scale) * LOG2_E, scale / softcap
    rows = tl.where(is_row, r, -1)
    whole, masked = tl.load(row_ptr + segment), tl.load(masked_ptr + segment)
    acc = dq_runs(
        query, upper, acc, row_lse, row_delta, rows, key_at, kv_row, kv_half, whole, masked, scale2,
        squash, kv_start, run_from, run_to, kind, mask_start, kv_len, row_lo, row_hi, mask_columns,
        bits,
        DIM, DIM_PAD, BLOCK_N, HAS_BITS, CAPPED, False,
    )  # fmt: skip
    acc = dq_runs(
        query, upper, acc, row_lse, row_delta, rows, key_at, kv_row, kv_half, masked,
        tl.load(row_ptr + segment + 1), scale2, squash,
        kv_start, run_from, run_to, kind, mask_start, kv_len, row_lo, row_hi, mask_columns, bits,
        DIM, DIM_PAD, EDGE, HAS_BITS, CAPPED, True,
    )  # fmt: skip
    turn = tl.load(turns + segment) * finishes
    dq_at = dq + start * (HEADS * DIM) + head * DIM + r[:, None] * (HEADS * DIM) + column
    acc = tl.load(dq_at, mask=inside & (turn % 2 == 0), other=0.0) + acc * scale
    if turn < 2:
        tl.store(dq_at, acc, mask=inside)
    else:
        result_at = result + start * (HEADS * DIM) + head * DIM + r[:, None] * (HEADS * DIM)
        tl.store(result_at + column, acc.to(result.dtype.element_ty), mask=inside)


@triton.jit
def dkv_runs(
    keys, values, dk, dv, key_row, q, dout, lse, delta, q_row, dout_row, kv_head, first_run,
    last_run, scale, squash, run_q, run_rows, kv_start, kv_len, kind, mask_start, row_lo,
    row_hi, mask_columns, bits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, HAS_BITS: tl.constexpr, CAPPED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add the gradients of a chunk of keys over runs of queries; tiles are ``[keys, rows]``."""
    lane, d = tl.arange(0, BLOCK_M), tl.arange(0, DIM_PAD)
    for run in range(first_run, last_run):
        start, num_rows = tl.load(run_q + run).to(tl.int64), tl.load(run_rows + run)
        if MASKED:
            run_kind, run_mask = tl.load(kind + run), tl.load(mask_start + run)
            column, size = (key_row - tl.load(kv_start + run))[:, None], tl.load(kv_len + run)
        # All query heads that share the kv head: their gradients add up in registers.
        for member in range(GROUP):
            head = kv_head * GROUP + member
            for begin in range(0, num_rows, BLOCK_M):
                row = start + begin
                is_row = tl.full([BLOCK_M], True, tl.int1)
                if MASKED:
                    is_row = begin + lane < num_rows
                inside = is_row[:, None] & (d < DIM)[None, :]
                query_at = q + row * q_row + head * DIM
                query = tl.load(
                    query_at + lane[:, None] * q_row + d[None, :], mask=inside, other=0.0
                )
                values_at = row * HEADS + head + lane * HEADS
                # Rows behind the end of the run weigh exp(-inf).
                row_lse = tl.load(lse + values_at, mask=is_row, other=float("inf")) * LOG2_E
                scores = tl.dot(keys, tl.trans(query), input_precision="ieee")
                if CAPPED:
                    scores = squashed(scores, squash, query.dtype == tl.float32)
                masked = scores  # a cap needs the scores themselves once more
                if MASKED:
                    row_lse = tl.where(row_lse == float("-inf"), 0.0, row_lse)
                    rows = tl.where(is_row, begin + lane, -1)
                    first_lo, first_hi, second_lo, second_hi = ranges_of(
                        run_kind, run_mask, rows, size, row_lo, row_hi, mask_columns
                    )
                    seen = seen_pairs(
                        run_kind, run_mask, rows[None, :], column, first_lo[None, :],
                        first_hi[None, :], second_lo[None, :], second_hi[None, :], size, bits,
                        HAS_BITS, False,
                    )  # fmt: skip
                    masked = tl.where(seen, scores, float("-inf"))
                weights = tl.exp2(masked * scale - row_lse[None, :])
                upper_at = dout + row * dout_row + head * DIM
                upper = tl.load(
                    upper_at + lane[:, None] * dout_row + d[None, :], mask=inside, other=0.0
                )
                dv = tl.dot(weights.to(upper.dtype), upper, dv, input_precision="ieee")
                change = tl.dot(values, tl.trans(upper), input_precision="ieee")
                row_delta = tl.load(delta + values_at, mask=is_row, other=0.0)
                dscores = weights * (change - row_delta[None, :])
                if CAPPED:
                    dscores = dscores * (1.0 - scores * scores)
                dscores = dscores.to(query.dtype)
                dk = tl.dot(dscores, query, dk, input_precision="ieee")
    return dk, dv


@triton.jit
def used_keys(key_row, first_run, last_run, kv_start, kv_len):
    """Return which rows of a chunk lie in a run."""
    is_used = key_row < 0  # none yet
    for run in range(first_run, last_run):
        column = key_row - tl.load(kv_start + run)
        is_used = is_used | ((column >= 0) & (column < tl.load(kv_len + run)))
    return is_used


# Sizes that change from batch to batch: a value of each would compile a kernel of its own.
@triton.jit(do_not_specialize=["mask_columns", "num_keys", "opens", "closes"])
def dkv_kernel(
    q, kv, dout, lse, delta, dkv, dk_result, dv_result, result_row, opens, closes, order,
    chunk_row, chunk_ptr, masked_ptr, run_q, run_rows, kv_start, kv_len, kind, mask_start, row_lo,
    row_hi, bits, mask_columns, scale, softcap, num_keys, q_row, dout_row, kv_row, kv_half,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EDGE: tl.constexpr, HAS_BITS: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    """Add the gradients of a chunk of keys and values and one kv head, over all that see them."""
    KV_HEADS: tl.constexpr = HEADS // GROUP
    chunk = tl.load(order + tl.program_id(0) // KV_HEADS)
    kv_head = tl.program_id(0) % KV_HEADS
    d = tl.arange(0, DIM_PAD)
    first, lane = tl.load(chunk_row + chunk), tl.arange(0, BLOCK_N)
    key_row = first + lane
    whole, masked = tl.load(chunk_ptr + chunk), tl.load(masked_ptr + chunk)
    last = tl.load(chunk_ptr + chunk + 1)
    at = (key_row < num_keys)[:, None] & (d < DIM)[None, :]
    key_at = kv + first.to(tl.int64) * kv_row + kv_head * DIM + lane[:, None] * kv_row + d[None, :]
    keys = tl.load(key_at, mask=at, other=0.0)
    values = tl.load(key_at + kv_half, mask=at, other=0.0)
    dk = tl.zeros([BLOCK_N, DIM_PAD], tl.float32)
    dv = tl.zeros([BLOCK_N, DIM_PAD], tl.float32)
    scale2, squash = (softcap if CAPPED else scale) * LOG2_E, scale / softcap
    dk, dv = dkv_runs(
        keys, values, dk, dv, key_row, q, dout, lse, delta, q_row, dout_row, kv_head, whole,
        masked, scale2, squash, run_q, run_rows, kv_start, kv_len, kind, mask_start, row_lo,
        row_hi, mask_columns, bits, HEADS, GROUP, DIM, DIM_PAD, BLOCK_M, HAS_BITS, CAPPED,
        False,
    )  # fmt: skip
    dk, dv = dkv_runs(
        keys, values, dk, dv, key_row, q, dout, lse, delta, q_row, dout_row, kv_head, masked,
        last, scale2, squash, run_q, run_rows, kv_start, kv_len, kind, mask_start, row_lo,
        row_hi, mask_columns, bits, HEADS, GROUP, DIM, DIM_PAD, EDGE, HAS_BITS, CAPPED,
        True,
    )  # fmt: skip
    # Rows of the chunk in no run may be on their way to another rank: leave them alone.
    at = at & used_keys(key_row, whole, last, kv_start, kv_len)[:, None]
    width = KV_HEADS * DIM
    dk_at = dkv + first.to(tl.int64) * (2 * width) + kv_head * DIM
    dk_at += lane[:, None] * (2 * width) + d[None, :]
    dv_at = dk_at + width
    dk = tl.load(dk_at, mask=at & (opens == 0), other=0.0) + dk * scale
    dv = tl.load(dv_at, mask=at & (opens == 0), other=0.0) + dv
    if closes == 0:
        tl.store(dk_at, dk, mask=at)
        tl.store(dv_at, dv, mask=at)
    else:
        offset = first.to(tl.int64) * result_row + kv_head * DIM
        offset += lane[:, None] * result_row + d[None, :]
        tl.store(dk_result + offset, dk.to(dk_result.dtype.element_ty), mask=at)
        tl.store(dv_result + offset, dv.to(dv_result.dtype.element_ty), mask=at)


@triton.jit(do_not_specialize=["num_rows"])
def delta_kernel(
    out, dout, delta, num_rows, DIM: tl.constexpr, DIM_PAD: tl.constexpr, ROWS: tl.constexpr
):
    """Store the sums of products of rows of out and dout."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, d = tl.arange(0, ROWS), tl.arange(0, DIM_PAD)
    is_row = first + row < num_rows
    inside = is_row[:, None] & (d < DIM)[None, :]
    at = first * DIM + row[:, None] * DIM + d[None, :]
    ours = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    product = ours * tl.load(dout + at, mask=inside, other=0.0)
    tl.store(delta + first + row, tl.sum(product, 1), mask=is_row)


@triton.jit(do_not_specialize=["num_rows"])
def merge_kernel(
    out, lse, part_out, part_lse, num_rows, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Merge rows of a partial result over other keys into the rows of a state."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, d = tl.arange(0, ROWS), tl.arange(0, DIM_PAD)
    is_row = first + row < num_rows
    ours = tl.load(lse + first + row, mask=is_row, other=float("-inf"))
    theirs = tl.load(part_lse + first + row, mask=is_row, other=float("-inf"))
    top = tl.maximum(ours, theirs)
    base = tl.where(top == float("-inf"), 0.0, top)  # -inf - -inf would be NaN
    kept, added = tl.exp(ours - base), tl.exp(theirs - base)
    total = kept + added
    is_seen = total > 0
    divisor = tl.where(is_seen, total, 1.0)
    at = first * DIM + row[:, None] * DIM + d[None, :]
    inside = is_row[:, None] & (d < DIM)[None, :]
    so_far = tl.load(out + at, mask=inside, other=0.0)
    part = tl.load(part_out + at, mask=inside, other=0.0).to(tl.float32)
    # Both shares, for 1 less a share has lost the digits of a small one.
    merged = so_far * (kept / divisor)[:, None] + part * (added / divisor)[:, None]
    tl.store(out + at, merged, mask=inside)
    new_lse = tl.where(is_seen, base + tl.log(divisor), float("-inf"))
    tl.store(lse + first + row, new_lse, mask=is_row)
