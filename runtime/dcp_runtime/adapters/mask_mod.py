"""Masks of ours from a FlexAttention `mask_mod`, pair by pair, and where the two differ."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from dcp_dsl import ExchangeError, Mask, Sample
from dcp_dsl.forms import Rows, compare_masks, ranges_of_tile
from dcp_runtime.adapters.flex_mask import FlexMaskMod

MAX_TOKENS = 2**15  # a billion pairs
PAIRS_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True)
class MaskModDifference:
    """The first pair, in reading order, that only one of two masks sees.

    Attributes:
        sample: on which they differ.
        query, key: the pair.
        is_seen: whether the `mask_mod` sees it; the mask says the opposite.
        pairs: how many pairs of the sample only one of them sees.
    """

    sample: Sample
    query: int
    key: int
    is_seen: bool
    pairs: int


def import_mask_mod(
    mask_mod: FlexMaskMod, length: int, *, batch: int = 0, head: int = 0, device: str = "cpu"
) -> Rows:
    """Return the mask that a `mask_mod` makes on a sequence, exact on all pairs.

    Args:
        mask_mod: of indices ``(b, h, q, k)``, as `create_block_mask` takes it.
        length: tokens of the sequence.
        batch: the row of the batch.
        head: the query head.
        device: of the tensors that it captures.

    Raises:
        ExchangeError: X304 beyond `MAX_TOKENS`, as every pair is asked for.

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
    step = max(1, PAIRS_AT_ONCE // max(1, length))
    for begin in range(0, length, step):
        rows = min(step, length - begin)

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
    device: str = "cpu",
) -> MaskModDifference | None:
    """Compare a `mask_mod` with a mask on samples; return where they differ on the shortest.

    Every pair of every sample is compared, up to the first sample on which any differs. Without a
    difference they are equal on these samples; on others only what they say is known.

    Args:
        mask: of a spec.
        make: gives the `mask_mod` of a sample, which may capture what it makes of its columns.
        samples: by default, for a mask that needs no columns, those of 1 to 32 tokens and of 257.
        device: of the tensors that the `mask_mod` captures.

    Raises:
        ExchangeError: X304 for a sample that is too long; no code without samples.

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
        chosen = [Sample(length=length) for length in (*range(1, 33), 257)]
    for sample in chosen:
        found = import_mask_mod(make(sample), sample.length, device=device)
        differs = compare_masks(found, mask.bind(sample))
        if differs.first is not None:
            pairs = differs.only_left + differs.only_right
            return MaskModDifference(sample, *differs.first, differs.first_is_left, pairs)
    return None
