"""Global batches of documents, from a data set with its masks or from a list of lengths."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dcp_dsl import Attachment, Dataset, DatasetError, Mask, Sample, Spec, Stack, pack
from dcp_planner.batches.batch import find_masks
from dcp_planner.step.assignment import Documents

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
    counts = _PairCounts()
    for rows in _steps(lengths, token_budget, packs):
        yield _documents([(value, Sample({}, lengths[row])) for row in rows], counts)


def steps_of_dataset(
    spec: Spec, dataset: Dataset, call: str | None, token_budget: int, packs: int
) -> tuple[Iterator[Documents], int]:
    """Cut a data set into global batches of `packs` packs in order; the rest is left out.

    Args:
        spec: the masks; each file of the data set has that of its `for` statement.
        dataset: the rows.
        call: a mask or stack for all files instead.
        token_budget: most tokens of a pack; longer rows are left out, and empty ones.
        packs: of a global batch.

    Returns:
        The documents of each global batch, and how many rows were left out.

    Raises:
        DatasetError: if a file matches no `for` statement or a row does not fit its mask.
    """
    if call is None:
        attachments = spec.attachments_of(dataset)
    else:
        attachments = (Attachment(find_masks(spec, call), {}),) * len(dataset.parts)
    lengths = np.concatenate(
        [
            attachment.lengths(part)
            for attachment, part in zip(attachments, dataset.parts, strict=True)
        ]
    )
    kept = np.flatnonzero((lengths > 0) & (lengths <= token_budget))
    counts = _PairCounts()

    def bound(row: int) -> tuple[Mask | Stack, Sample]:
        attachment = attachments[dataset.part_of(row)]
        columns = {**dataset[row], "len": int(lengths[row])}
        return attachment.value, attachment.sample(columns)

    steps = (
        _documents([bound(int(kept[place])) for place in places], counts)
        for places in _steps(lengths[kept].tolist(), token_budget, packs)
    )
    return steps, len(lengths) - len(kept)


def _steps(lengths: Sequence[int], token_budget: int, packs: int) -> Iterator[list[int]]:
    """Yield the documents of each global batch."""
    batches = pack(lengths, token_budget)
    for start in range(0, len(batches) - packs + 1, packs):
        yield [row for batch in batches[start : start + packs] for row in batch]


def _documents(bound: Sequence[tuple[Mask | Stack, Sample]], counts: "_PairCounts") -> Documents:
    tokens = np.array([sample.length for _, sample in bound], np.int64)
    return Documents(tokens, np.array([counts.of(value, sample) for value, sample in bound]))


class _PairCounts:
    """Visible pairs of samples, the mean over a stack's layers; equal samples are counted once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], float] = {}

    def of(self, value: Mask | Stack, sample: Sample) -> float:
        key = id(value), sample.to_json()
        if key not in self._known:
            stack = value if isinstance(value, Stack) else Stack.of(value)
            cycle = stack.cycle()
            pairs = [mask.compile(sample).num_pairs for mask in stack.masks]
            self._known[key] = sum(pairs[n] for n in cycle if n >= 0) / len(cycle)
        return self._known[key]
