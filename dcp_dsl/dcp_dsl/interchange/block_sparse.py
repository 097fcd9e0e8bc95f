"""Write block-sparse kernels' inputs: lists of blocks, and an expression for single pairs.

Each block row lists its partial and its full blocks. Inside partial blocks the kernel evaluates the
expression. For a few slabs it compares positions with numbers; otherwise it reads tables of ranges
per row, or per key where that takes fewer ranges; masks with many ranges both ways become bits. The
text is the same for FlexAttention (tensors) and FlashAttention-4 (scalars): comparisons joined by
``&`` and ``|``.

FlexAttention takes `BlockMask.from_kv_blocks`; source: documentation of
torch.nn.attention.flex_attention.BlockMask. FlashAttention-4 takes tables of forward (the key
blocks of every query block) and backward (the query blocks of every key block); both must be given,
or gradients are wrong. Varlen batches are one packed buffer of batch size 1. The kernel finds
`mask_mod` by its source, so the function must be in a file. Source: flash-attn-4,
flash_attn.cute.block_sparsity and the signature of its `mask_mod`.
"""

from dataclasses import dataclass
from textwrap import indent
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Indices, Ints, expand
from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.conversion import square_slabs
from dcp_dsl.forms.form import CrossForm, Form, num_keys
from dcp_dsl.forms.slabs import Rows, Slabs
from dcp_dsl.forms.sparsity import BlockKind, block_sparsity
from dcp_dsl.interchange.export import Export, ExportConfig
from dcp_dsl.interchange.lines import MAX_TOKENS, key_runs, row_runs, to_dense

MAX_ENTRIES = 2**28  # of a block table
MAX_TERMS = 6  # slabs that become a closed form
MAX_RANGES = 8  # per row or key, before bits are cheaper
JOIN = "\n        | "  # terms stand below each other, indented as in the written files


class BlockTables(NamedTuple):
    """The blocks that a block row meets; blocks in neither list hold no visible pair.

    Attributes:
        partial_num, full_num: int32 ``[N]``, blocks of each kind per block row.
        partial_idx, full_idx: int32 ``[N, M]``, their numbers, ascending; entries from the number
            on are 0 and mean nothing.
    """

    partial_num: Indices
    partial_idx: Indices
    full_num: Indices
    full_idx: Indices


def build_block_tables(form: Form, block_q: int, block_kv: int) -> tuple[BlockTables, BlockTables]:
    """Return the key blocks of every query block, and the query blocks of every key block.

    No pair is evaluated: the blocks come from the exact block sparsity. The last block row and
    column count as partial where they are shorter than a block, as `create_block_mask` has it:
    kernels compute whole blocks.

    Raises:
        ExchangeError: X304 beyond `MAX_ENTRIES` per table; no code for block sizes below 1.
    """
    if min(block_q, block_kv) < 1:
        raise ExchangeError(f"expected blocks of at least 1 token, got {block_q} x {block_kv}")
    blocks = block_sparsity([form], block_q, block_kv)
    num_q, num_kv = len(blocks.q_bounds) - 1, len(blocks.kv_bounds) - 1
    if num_q * num_kv > MAX_ENTRIES:
        raise ExchangeError(
            f"block tables of {num_q:_} x {num_kv:_} entries; at most {MAX_ENTRIES:_} are written, "
            f"use blocks larger than {block_q} x {block_kv}",
            "X304",
        )
    row, col = blocks.row_idx.astype(np.int64), blocks.col_idx.astype(np.int64)
    is_whole = (row + 1) * block_q <= form.num_tokens
    is_whole &= (col + 1) * block_kv <= num_keys(form)
    is_full = (blocks.kind == BlockKind.FULL) & is_whole
    # blocks come by row and then by column; the transposed table needs the other order
    order = np.lexsort((row, col))
    return (
        list_blocks(row, col, is_full, (num_q, num_kv)),
        list_blocks(col[order], row[order], is_full[order], (num_kv, num_q)),
    )


def list_blocks(line: Ints, item: Ints, is_full: Bools, shape: tuple[int, int]) -> BlockTables:
    """Return the items of every line, partial and full ones apart.

    >>> row, col, is_full = np.array([[0, 1, 1], [0, 0, 1], [0, 1, 0]])
    >>> found = list_blocks(row, col, is_full > 0, (2, 2))
    >>> found.partial_num.tolist(), found.full_num.tolist()
    ([1, 1], [0, 1])
    """
    found = []
    for chosen in (~is_full, is_full):
        num = np.bincount(line[chosen], minlength=shape[0])
        place = expand(0, num)[1]
        table = np.zeros(shape, np.int32)
        table[line[chosen], place] = item[chosen]
        found += [num.astype(np.int32), table]
    return BlockTables(*found)


@dataclass(frozen=True, slots=True, eq=False)
class MaskMod:
    """The predicate of a mask, and the tables that it reads.

    Attributes:
        form: ``"closed"`` reads no table, ``"rows"`` and ``"keys"`` read ranges per row or key,
            ``"bits"`` reads one bit.
        expression: Python text over ``q``, ``k`` and the names of `tables`; true where q sees k.
        tables: int32; ``lo0``, ``hi0``, ... are ``[n]``, ``bits`` is ``[n * words]``: the pair is
            bit ``k % 32`` of word ``q * words + k // 32``.
    """

    form: Literal["closed", "rows", "keys", "bits"]
    expression: str
    tables: dict[str, NDArray[Any]]  # Any: int32, which numpy's stubs lose on the way


def build_mask_mod(slabs: Slabs) -> MaskMod:
    """Choose the cheapest exact predicate of a mask.

    Raises:
        ExchangeError: X304 if it takes more than `MAX_RANGES` ranges per row and per key, and has
            too many tokens for bits.

    >>> build_mask_mod(Slabs(4, [0], [4], [0], [1], [0], [1])).expression
    '(k < q + 1)'
    """
    if len(slabs) <= MAX_TERMS:
        terms = [_term(slabs.num_tokens, *row) for row in slabs.table().tolist()]
        # kernels need the type of a comparison, a tensor of bool, even where nothing is visible
        return MaskMod("closed", JOIN.join(terms) or "(q < 0)", {})
    by_row, by_key = row_runs(slabs), key_runs(slabs)
    most_row, most_key = (int(np.diff(r.row_ptr).max(initial=0)) for r in (by_row, by_key))
    if min(most_row, most_key) > MAX_RANGES:
        return _bits(slabs, by_row, min(most_row, most_key))
    if most_row <= most_key:
        return _ranges("rows", by_row, most_row)
    return _ranges("keys", by_key, most_key)


def _term(n: int, q0: int, q1: int, k0: int, k1: int, a: int, b: int) -> str:
    """Write a slab without the comparisons that hold for every token."""

    def end(value: int, slope: int) -> str:
        shift = value - q0
        moving = "q" if shift == 0 else f"q {'+' if shift > 0 else '-'} {abs(shift)}"
        return moving if slope else str(value)

    parts = [
        f"(q >= {q0})" if q0 > 0 else "",
        f"(q < {q1})" if q1 < n else "",
        f"(k >= {end(k0, a)})" if a or k0 > 0 else "",
        f"(k < {end(k1, b)})" if b or k1 < n else "",
    ]
    kept = [part for part in parts if part]
    return f"({' & '.join(kept)})" if len(kept) > 1 else (kept or ["(q >= 0)"])[0]


def _ranges(form: Literal["rows", "keys"], runs: Rows, most: int) -> MaskMod:
    line, place = ("q", "k") if form == "rows" else ("k", "q")
    tables: dict[str, NDArray[Any]] = {}  # Any: as in MaskMod
    terms, (number, rank) = [], expand(0, np.diff(runs.row_ptr))
    for i in range(most):
        chosen = rank == i
        lo, hi = np.zeros((2, runs.num_tokens), np.int32)
        lo[number[chosen]], hi[number[chosen]] = runs.kv_start[chosen], runs.kv_end[chosen]
        tables |= {f"lo{i}": lo, f"hi{i}": hi}
        terms.append(f"(({place} >= lo{i}[{line}]) & ({place} < hi{i}[{line}]))")
    return MaskMod(form, JOIN.join(terms), tables)


def _bits(slabs: Slabs, by_row: Rows, least: int) -> MaskMod:
    n = slabs.num_tokens
    if n > MAX_TOKENS:
        counts = np.diff(by_row.row_ptr)
        row = int(np.argmax(counts > MAX_RANGES))
        raise ExchangeError(
            f"mask_mod: row {row} sees {counts[row]} ranges of keys, and keys need "
            f"{least} ranges or more as well; beyond {MAX_RANGES} ranges a bit per pair is stored, "
            f"for at most {MAX_TOKENS:_} tokens, got {n:_}",
            "X304",
        )
    # every row begins with a word of its own, so bits behind the last key stay 0
    words = -(-n // 32)
    dense = np.zeros((n, words * 32), bool)
    dense[:, :n] = to_dense(slabs).arrays["mask"]
    # the expression counts bits from the lowest, so bytes are little-endian on every machine
    packed = np.packbits(dense, axis=1, bitorder="little").view("<i4").astype(np.int32)
    expression = f"(((bits[q * {words} + k // 32] >> (k % 32)) & 1) != 0)"
    return MaskMod("bits", expression, {"bits": packed.reshape(-1)})


_LOAD_TABLES = """def load_tables(device="DEVICE"):
    with np.load(Path(__file__).with_suffix(".npz"), allow_pickle=False) as file:
        names = [name for name in file.files if not name.startswith("__")]
        return {name: torch.from_numpy(file[name]).to(device) for name in names}"""

_FLEX_TEMPLATE = '''"""FlexAttention mask `{title}` on {tokens} tokens.

    from torch.nn.attention.flex_attention import flex_attention

    block_mask = make_block_mask("cuda")
    out = flex_attention(q, k, v, block_mask=block_mask)  # compiled: torch.compile(flex_attention)
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

TOKENS = {tokens}
BLOCK_SIZE = ({block_q}, {block_kv})


{load_tables}


def make_mask_mod(tables):
{captured}    def mask_mod(b, h, q, k):
        return (
            {expression}
        )

    return mask_mod


def make_block_mask(device="cpu"):
    tables = load_tables(device)
    return BlockMask.from_kv_blocks(
        tables["kv_num_blocks"],
        tables["kv_indices"],
        tables["full_kv_num_blocks"],
        tables["full_kv_indices"],
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=make_mask_mod(tables),
        seq_lengths=(TOKENS, {keys}),
    )
'''


def to_flex(form: Form, config: ExportConfig) -> Export:
    """Write arguments of `BlockMask.from_kv_blocks`, tables of `mask_mod`, and the source."""
    forward, _ = build_block_tables(form, config.block_q, config.block_kv)
    predicate = build_mask_mod(square_slabs(form))
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    reads = {name: f"tables[{name!r}]" for name in predicate.tables}
    source = _FLEX_TEMPLATE.format(
        **_filled(form, config, reads, "cpu"),
        keys=num_keys(form) if isinstance(form, CrossForm) else "TOKENS",
        # this template indents the expression one level deeper than the other one
        expression=predicate.expression.replace("\n", "\n    "),
    )
    tables = dict(zip(names, forward, strict=True))
    return _export("flex", form, config, predicate, tables, source)


def _export(
    name: str, form: Form, config: ExportConfig, predicate: MaskMod, tables: dict[str, Indices],
    source: str,
) -> Export:  # fmt: skip
    """Return an export to kernels that take a batch and a head in front of every block table."""
    arrays = {name: table[None, None] for name, table in tables.items()} | predicate.tables
    values = {"block_q": config.block_q, "block_kv": config.block_kv, "form": predicate.form}
    return Export(name, form.num_tokens, arrays, values, source)


def _filled(
    form: Form, config: ExportConfig, reads: dict[str, str], device: str
) -> dict[str, object]:
    """Return the fields of both templates; `reads` says where the predicate finds its tables."""
    lines = "".join(f"{name} = {place}\n" for name, place in reads.items())
    return {
        "title": plain_title(config.title), "tokens": form.num_tokens, "block_q": config.block_q,
        "block_kv": config.block_kv, "load_tables": _LOAD_TABLES.replace("DEVICE", device),
        "captured": indent(lines, "    ") + ("\n" if lines else ""),
    }  # fmt: skip


def plain_title(title: str) -> str:
    """Make a title, which is a user's text, harmless inside a docstring."""
    # no quote ends the docstring, no backslash begins an escape
    kept = "".join(c if c.isprintable() and c not in '"\\' else " " for c in title)
    return " ".join(kept.split())[:200]


_FLASH4_TEMPLATE = '''"""FlashAttention-4 mask `{title}` on {tokens} tokens, batch of 1.

    from flash_attn.cute import flash_attn_func

    out = flash_attn_func(q, k, v, **attention_arguments("cuda"))
"""

from pathlib import Path

import cutlass
import cutlass.cute as cute
import numpy as np
import torch
from flash_attn.cute import utils
from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

TOKENS = {tokens}
BLOCK_SIZE = ({block_q}, {block_kv})
CAPTURED = {names}


@cute.jit
def mask_mod(batch, head, q_idx, kv_idx, seqlen_info, aux_tensors):
{captured}    q = utils.ssa_to_scalar(q_idx)
    k = utils.ssa_to_scalar(kv_idx)
    seen = (
        {expression}
    )
    return utils.scalar_to_ssa(seen, cutlass.Boolean)


{load_tables}


def block_sparse_tensors(tables, direction):
    names = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx")
    found = {{name: tables[direction + "." + name] for name in names}}
    return BlockSparseTensorsTorch(**found, block_size=BLOCK_SIZE)


def attention_arguments(device="cuda"):
    tables = load_tables(device)
    return dict(
        mask_mod=mask_mod,
        aux_tensors=[tables[name] for name in CAPTURED] or None,
        block_sparse_tensors=block_sparse_tensors(tables, "forward"),
        block_sparse_tensors_bwd=block_sparse_tensors(tables, "backward"),
    )
'''


def to_flash4(form: Form, config: ExportConfig) -> Export:
    """Write ``forward.*`` and ``backward.*`` tables, the tables of `mask_mod`, and the source."""
    forward, backward = build_block_tables(form, config.block_q, config.block_kv)
    predicate = build_mask_mod(square_slabs(form))
    names = list(predicate.tables)
    reads = {name: f"aux_tensors[{index}]" for index, name in enumerate(names)}
    source = _FLASH4_TEMPLATE.format(
        **_filled(form, config, reads, "cuda"), names=names, expression=predicate.expression
    )
    columns = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx")
    keys = [f"{side}.{column}" for side in ("forward", "backward") for column in columns]
    tables = dict(zip(keys, forward + backward, strict=True))
    return _export("flash4", form, config, predicate, tables, source)
