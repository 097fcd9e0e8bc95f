"""FlexAttention masks made from bound masks, and exact masks read from a FlexAttention `mask_mod`.

torch's `create_block_mask` evaluates a Python function for every pair of tokens. Here the block
lists come from exact block sparsity, and the function only serves the kernel inside partial blocks.
The other direction, from a `mask_mod` to a mask, does evaluate every pair.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dcp_dsl import ExchangeError, Form, Mask, Sample
from dcp_dsl.forms import Rows, compare_masks, num_keys, ranges_of_tile, square_slabs
from dcp_dsl.interchange import BlockTables, ExportConfig, build_block_tables, build_mask_mod

FlexMaskMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def flex_block_mask(
    mask: Form, config: ExportConfig | None = None, device: torch.device | str = "cpu"
) -> BlockMask:
    """Return the `BlockMask` of a mask: of a sequence, of a packed batch, or between two sequences.

    Batch and heads are broadcast. Blocks that are full skip the predicate; the last block of a
    length that is no multiple of the block counts as partial.

    Args:
        mask: in any exact form; one with keys of another sequence as `Mask.compile` gives it.
        config: tokens per block; 128 x 128 by default.
        device: where the tables and the predicate's tensors live.

    Raises:
        ExchangeError: X304 if tables become too large.

    >>> from dcp_dsl import Slabs
    >>> causal = Slabs(256, [0], [256], [0], [1], [0], [1])
    >>> flex_block_mask(causal).sparsity()
    25.0
    """
    chosen = config or ExportConfig()
    block, lengths = (chosen.block_q, chosen.block_kv), (mask.num_tokens, num_keys(mask))
    tables, _ = build_block_tables(mask, *block)
    return block_mask_of([tables], block, flex_mask_mod(mask, device), lengths, device)


def block_mask_of(
    rows: Sequence[BlockTables],
    block: tuple[int, int],
    mask_mod: FlexMaskMod,
    lengths: tuple[int, int],
    device: torch.device | str,
) -> BlockMask:
    """Return the `BlockMask` of tables, one for each row of the batch."""
    # Pairs are those of queries and keys: tokens of a block, and of all.
    # From a table per row to an array per column, with a dim of 1 for the heads: [B, 1, ...].
    arrays = [np.stack(columns)[:, None] for columns in zip(*rows, strict=True)]
    num, idx, full_num, full_idx = (_tensor(array, device) for array in arrays)
    return BlockMask.from_kv_blocks(
        num, idx, full_num, full_idx,
        BLOCK_SIZE=block,
        mask_mod=mask_mod,
        seq_lengths=lengths,
    )  # fmt: skip


def flex_mask_mod(mask: Form, device: torch.device | str = "cpu") -> FlexMaskMod:
    """Return the predicate of a bound mask as a `mask_mod`: closed, or with captured tensors.

    Raises:
        ExchangeError: X304 if the mask takes too many ranges and has too many tokens for bits.
    """
    predicate = build_mask_mod(square_slabs(mask))
    tables = {name: _tensor(value, device) for name, value in predicate.tables.items()}
    # The text is our own, as in exported files. torch.compile can capture tensors of a closure.
    source = f"lambda {', '.join(tables)}: lambda b, h, q, k: ({predicate.expression})"
    mask_mod: FlexMaskMod = eval(source, {"__name__": __name__})(**tables)
    return mask_mod


def _tensor(array: object, device: torch.device | str) -> Tensor:
    return torch.tensor(array, device=device)  # copies: the arrays are read-only


MAX_TOKENS = 2**15  # a billion pairs
ROWS_AT_ONCE = 128  # of at most `MAX_TOKENS` keys each, to bound memory


@dataclass(frozen=True, slots=True)
class MaskModDifference:
    """The first pair, in reading order, that only one of two masks sees."""

    sample: Sample  # on which they differ
    query: int
    key: int
    is_seen: bool  # by the `mask_mod`; the mask says the opposite
    pairs: int  # how many of the sample only one of them sees
    batch: int = 0  # of the `mask_mod`, where it depends on it
    head: int = 0  # as `batch`


def import_mask_mod(
    mask_mod: FlexMaskMod, length: int, *, batch: int = 0, head: int = 0, device: str = "cpu"
) -> Rows:
    """Return the mask of a `mask_mod` on a sequence, exact on all pairs.

    Args:
        mask_mod: of indices ``(b, h, q, k)``, as `create_block_mask` takes it.
        length: tokens of the sequence.
        batch: the row of the batch.
        head: the query head.
        device: of the tensors that it captures.

    Raises:
        ExchangeError: X304 beyond `MAX_TOKENS`, as every pair is evaluated.

    >>> import_mask_mod(lambda b, h, q, k: (q >= k) & (q - k < 2), 4).num_pairs
    7
    """
    if length > MAX_TOKENS:
        raise ExchangeError(
            f"import_mask_mod: {length:_} tokens have {length**2:_} pairs, each of which is asked "
            f"for; expected at most {MAX_TOKENS:_} tokens, compare on a shorter sample",
            "X304",
        )
    counts, starts, ends = [np.zeros(1, np.int64)], [], []
    for begin in range(0, length, ROWS_AT_ONCE):
        rows = min(ROWS_AT_ONCE, length - begin)

        def moved(b: Tensor, h: Tensor, q: Tensor, k: Tensor, begin: int = begin) -> Tensor:
            return mask_mod(b + batch, h + head, q + begin, k)

        with torch.no_grad():
            tile = create_mask(moved, 1, 1, rows, length, device)[0, 0].cpu().numpy()
        row_ptr, low, high = ranges_of_tile(tile)
        counts.append(np.diff(row_ptr))
        starts.append(low)
        ends.append(high)
    ranges = (np.concatenate([np.zeros(0, np.int64), *part]) for part in (starts, ends))
    return Rows(length, np.cumsum(np.concatenate(counts)), *ranges)


def check_mask_mod(
    mask: Mask,
    make: Callable[[Sample], FlexMaskMod],
    samples: Iterable[Sample] = (),
    *,
    batches: int | None = None,
    heads: int | None = None,
    device: str = "cpu",
) -> MaskModDifference | None:
    """Compare a `mask_mod` with a mask on samples; return where they differ on the shortest.

    Every pair of every sample is compared, up to the first sample with a difference. Without a
    difference they are equal on these samples; other samples are not proved.

    A mask is the same in all rows of a batch and for all heads. A `mask_mod` that reads the index
    of either is compared for each.

    Args:
        mask: of a spec.
        make: returns the `mask_mod` of a sample, which may capture tensors made of its columns.
        samples: by default, for a mask that needs no columns, those of 1 to 32 tokens and of 257.
        batches: how many rows the batch has.
        heads: how many query heads there are.
        device: of the tensors that the `mask_mod` captures.

    Raises:
        ExchangeError: X304 for a sample that is too long; no code without samples, or if the
            `mask_mod` reads an index and nothing says how many there are.

    >>> from dcp_dsl import Spec
    >>> window = Spec.from_text("").mask("sliding(2)")
    >>> off_by_one = check_mask_mod(window, lambda s: lambda b, h, q, k: (q >= k) & (q - k <= 2))
    >>> off_by_one.sample.length, off_by_one.query, off_by_one.key, off_by_one.is_seen
    (3, 2, 0, True)
    """
    chosen = sorted(samples, key=lambda sample: sample.length)
    if not chosen:
        if mask.columns:
            raise ExchangeError(
                f"check_mask_mod: mask `{mask.name}` needs the columns {sorted(mask.columns)}; "
                "expected samples that have them, got none"
            )
        # Short samples show most differences at once; 257 tokens exceed two blocks of 128.
        chosen = [Sample(length=length) for length in (*range(1, 33), 257)]
    for sample in chosen:
        mask_mod, bound = make(sample), mask.bind(sample)
        if not sample.length:
            continue
        for batch, head in _indices_of(mask_mod, batches, heads, device):
            found = import_mask_mod(mask_mod, sample.length, batch=batch, head=head, device=device)
            differs = compare_masks(found, bound)
            if differs.first is not None:
                return MaskModDifference(
                    sample, *differs.first, differs.first_is_left,
                    differs.only_left + differs.only_right, batch, head,
                )  # fmt: skip
    return None


class _Reads(TorchFunctionMode):
    """Notes which of some tensors any function of torch reads."""

    def __init__(self, watched: Sequence[Tensor]) -> None:
        super().__init__()
        self._watched, self.read = watched, [False] * len(watched)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: torch's
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        self.read = [
            was or id(each) in given for was, each in zip(self.read, self._watched, strict=True)
        ]
        return function(*args, **(kwargs or {}))


def _indices_of(
    mask_mod: FlexMaskMod, batches: int | None, heads: int | None, device: str
) -> list[tuple[int, int]]:
    """Return for which rows of the batch and heads to ask a predicate: one if it reads neither."""
    indices = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(4)]
    with torch.no_grad(), _Reads(indices[:2]) as reads:
        # Predicates have no branches: what one pair does not read, no pair does.
        mask_mod(*indices)
    counts = []
    for what, name, count, is_read in zip(
        ("row of the batch", "head"), ("batches", "heads"), (batches, heads), reads.read,
        strict=True,
    ):  # fmt: skip
        if is_read and count is None:
            raise ExchangeError(
                f"check_mask_mod: the mask_mod reads the index of the {what}, and a mask is the "
                f"same for all; give {name}=, how many there are, to compare it for each"
            )
        counts.append(count or 1 if is_read else 1)
    return [(batch, head) for batch in range(counts[0]) for head in range(counts[1])]
