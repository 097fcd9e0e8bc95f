"""Global batches of documents, from a data set with its masks or from a list of lengths."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dcp_dsl import DatasetError, Mask, Sample, Stack, pack
from dcp_planner.batches.batch import PackedDataset
from dcp_planner.step.documents import Documents

MOST_LENGTHS = 1 << 24
"""Lengths that a file may list."""
MOST_FILE_BYTES = 1 << 28
"""Bytes of a file of lengths."""


def read_lengths(path: str) -> list[int]:
    """Read a JSON list of document lengths.

    Raises:
        DatasetError: if the file cannot be read or holds anything else.
    """
    file = Path(path)
    try:
        if file.stat().st_size > MOST_FILE_BYTES:
            raise DatasetError(f"{path}: expected at most {MOST_FILE_BYTES} bytes")
        found = json.loads(file.read_text())
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: expected a JSON list of lengths; {error}") from error
    if not isinstance(found, list) or not 0 < len(found) <= MOST_LENGTHS:
        raise DatasetError(f"{path}: expected a JSON list of 1 to {MOST_LENGTHS} lengths")
    for place, value in enumerate(found):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise DatasetError(
                f"{path}: entry {place}: expected a whole number of tokens from 1 on, got {value!r}"
            )
    return found


def steps_of_lengths(
    lengths: Sequence[int], value: Mask | Stack, token_budget: int, packs: int
) -> Iterator[Documents]:
    """Cut a list of documents into global batches of `packs` packs in order; the rest is left out.

    Raises:
        DatasetError: if the mask needs more than a length, or a document exceeds the budget.
    """
    batches = pack(lengths, token_budget)
    counts = _PairCounts(value)
    for start in range(0, len(batches) - packs + 1, packs):
        rows = [row for batch in batches[start : start + packs] for row in batch]
        yield _documents([Sample({}, lengths[row]) for row in rows], counts)


def steps_of_dataset(packed: PackedDataset, packs: int) -> Iterator[Documents]:
    """Cut a packed data set into global batches of `packs` packs; the rest is left out.

    Raises:
        DatasetError: if a row does not fit its mask.
    """
    counts = _PairCounts(packed.attached.value)
    for start in range(0, len(packed) - packs + 1, packs):
        rows = [row for batch in packed.rows[start : start + packs] for row in batch]
        yield _documents([packed.sample(row) for row in rows], counts)


def _documents(samples: Sequence[Sample], counts: "_PairCounts") -> Documents:
    tokens = np.array([sample.length for sample in samples], np.int64)
    return Documents(tokens, np.array([counts.of(sample) for sample in samples]))


class _PairCounts:
    """Visible pairs of samples, the mean over a stack's layers; equal samples are counted once."""

    def __init__(self, value: Mask | Stack) -> None:
        self._stack = value if isinstance(value, Stack) else Stack.of(value)
        self._known: dict[str, float] = {}

    def of(self, sample: Sample) -> float:
        text = sample.to_json()
        if text not in self._known:
            cycle = self._stack.cycle()
            pairs = [mask.compile(sample).num_pairs for mask in self._stack.masks]
            self._known[text] = sum(pairs[number] for number in cycle) / len(cycle)
        return self._known[text]
