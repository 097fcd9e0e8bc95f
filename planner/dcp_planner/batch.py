"""From a .dcpm file and a data set, or samples, to the block sparsity of one packed batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dcp_dsl import (
    Attachment,
    BlockSparsity,
    Dataset,
    DatasetError,
    Mask,
    Sample,
    Slabs,
    Spec,
    block_sparsity,
    pack,
    read_dataset,
)
from dcp_planner.plan import Provenance

MOST_TOKENS = 2**31 - 1
"""Tokens of one batch: their positions are int32."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One packed batch, ready to plan.

    Attributes:
        sparsity: its blocks.
        provenance: text, mask and samples that make it.
        notes: what was left out, as sentences for people.
    """

    sparsity: BlockSparsity
    provenance: Provenance
    notes: tuple[str, ...] = ()


def batch_of_samples(spec: Spec, mask: Mask, samples: Sequence[Sample], block_size: int) -> Batch:
    """Pack samples one behind the other.

    Raises:
        DatasetError: if a sample does not fit the mask.
    """
    slabs = []
    for number, sample in enumerate(samples):
        with _naming(f"sample {number}"):
            slabs.append(mask.bind(sample))
    origin = f"{spec.name}, samples of the command line"
    return _compile(spec, mask, samples, slabs, block_size, origin)


def batch_of_dataset(
    spec: Spec,
    path: str,
    mask_call: str | None,
    *,
    tokens: int,
    index: int,
    block_size: int,
    say: Callable[[str], None],
) -> Batch:
    """Pack a data set in its order and compile one of the batches.

    Args:
        spec: the masks.
        path: of the data set.
        mask_call: a mask by name or call; ``None`` takes what the first matching `for` uses.
        tokens: most tokens of a batch; longer rows are left out.
        index: which batch, from 0.
        block_size: tokens per block.
        say: told what is being done.

    Raises:
        DatasetError: if the data set cannot be read, lacks a column, or has no such batch.
    """
    say(f"reading {path}")
    dataset = read_dataset(path)
    if mask_call is None:
        attached = spec.attachment(Path(path).absolute(), dataset.columns)  # patterns name folders
    else:
        attached = Attachment(spec.mask(mask_call), {})
    short = [row for row, length in enumerate(dataset.lengths.tolist()) if 0 < length <= tokens]
    batches = pack([int(dataset.lengths[row]) for row in short], tokens)
    if index >= len(batches):
        raise DatasetError(f"{path}: {_no_batch(dataset, len(batches), index, tokens)}")
    rows = [short[place] for place in batches[index]]
    say(f"compiling mask {attached.mask.call} for {len(rows)} samples")
    samples, slabs = [], []
    for row in rows:
        with _naming(f"{path}: row {row}"):
            samples.append(attached.sample(dataset[row]))
            slabs.append(attached.mask.bind(samples[-1]))
    origin = f"{path}, batch {index} of {len(batches)} (rows {rows[0]} to {rows[-1]})"
    left_out = len(dataset) - len(short)
    notes = (f"{left_out} of {len(dataset)} rows are empty or longer than {tokens} tokens",)
    found = _compile(spec, attached.mask, samples, slabs, block_size, origin)
    return replace(found, notes=notes if left_out else ())


def _no_batch(dataset: Dataset, count: int, index: int, tokens: int) -> str:
    if count:
        return f"expected a batch 0 to {count - 1}, got {index}"
    longest = int(dataset.lengths.max(initial=0))
    if not longest:
        return f"expected rows with tokens, got {len(dataset)} rows without any"
    shortest = int(dataset.lengths[dataset.lengths > 0].min())
    return (
        f"no row has 1 to {tokens} tokens, the shortest has {shortest}; raise --tokens to "
        f"{shortest} or more"
    )


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Say which row or sample an error is about."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{where}: {error}") from error


def _compile(
    spec: Spec,
    mask: Mask,
    samples: Sequence[Sample],
    slabs: Sequence[Slabs],
    block_size: int,
    origin: str,
) -> Batch:
    total = sum(sample.length for sample in samples)
    if total > MOST_TOKENS:
        raise DatasetError(f"expected a batch of at most {MOST_TOKENS} tokens, got {total}")
    sparsity = block_sparsity(slabs, block_size, block_size)
    texts = tuple(sample.to_json() for sample in samples)
    return Batch(sparsity, Provenance(spec.source, mask.call, texts, origin))
