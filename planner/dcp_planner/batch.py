"""From a .dcpm file and a data set, or samples, to the block sparsity of one packed batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

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
        index: number of the batch in its data set.
        num_available: batches that the data set has; ``None`` for samples.
        rows: first and last row of the data set in it; ``None`` for samples.
    """

    sparsity: BlockSparsity
    provenance: Provenance
    notes: tuple[str, ...] = ()
    index: int = 0
    num_available: int | None = None
    rows: tuple[int, int] | None = None


BlockSize: TypeAlias = int | Callable[[Sequence[Slabs]], BlockSparsity]
"""Tokens per block, or who cuts the bound masks of a batch's sequences."""


def batch_of_samples(
    spec: Spec, mask: Mask, samples: Sequence[Sample], block_size: BlockSize
) -> Batch:
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


@dataclass(frozen=True, slots=True, eq=False)
class PackedDataset:
    """A data set with its mask, packed in its order into batches.

    Attributes:
        spec: the masks.
        dataset: the rows.
        attached: the mask and how a row becomes a sample.
        tokens: most tokens of a batch.
        rows: of each batch.
        notes: what was left out, as sentences for people.
    """

    spec: Spec
    dataset: Dataset
    attached: Attachment
    tokens: int
    rows: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, index: int, block_size: BlockSize) -> Batch:
        """Compile one batch.

        Raises:
            DatasetError: if there is no such batch, or a row does not fit the mask.
        """
        path = self.dataset.path
        if index >= len(self):
            raise DatasetError(f"{path}: {_no_batch(self.dataset, len(self), index, self.tokens)}")
        rows, samples, slabs = self.rows[index], [], []
        for row in rows:
            with _naming(f"{path}: row {row}"):
                samples.append(self.attached.sample(self.dataset[row]))
                slabs.append(self.attached.mask.bind(samples[-1]))
        origin = f"{path}, batch {index} of {len(self)} (rows {rows[0]} to {rows[-1]})"
        found = _compile(self.spec, self.attached.mask, samples, slabs, block_size, origin)
        return replace(
            found,
            notes=self.notes,
            index=index,
            num_available=len(self),
            rows=(rows[0], rows[-1]),
        )


def pack_dataset(spec: Spec, path: str, mask_call: str | None, tokens: int) -> PackedDataset:
    """Read a data set and pack its rows in their order.

    Args:
        spec: the masks.
        path: of the data set.
        mask_call: a mask by name or call; ``None`` takes what the first matching `for` uses, which
            has to be the same for all files of a folder.
        tokens: most tokens of a batch; longer rows are left out.

    Raises:
        DatasetError: if the data set cannot be read or lacks a column.
    """
    dataset = read_dataset(path)
    if mask_call is None:
        attached = _one_mask(spec.attachment_of(dataset))
    else:
        attached = Attachment(spec.mask(mask_call), {})
    short = [row for row, length in enumerate(dataset.lengths.tolist()) if 0 < length <= tokens]
    batches = pack([int(dataset.lengths[row]) for row in short], tokens)
    left_out = len(dataset) - len(short)
    notes = (f"{left_out} of {len(dataset)} rows are empty or longer than {tokens} tokens",)
    return PackedDataset(
        spec=spec,
        dataset=dataset,
        attached=attached,
        tokens=tokens,
        rows=tuple(tuple(short[place] for place in batch) for batch in batches),
        notes=notes if left_out else (),
    )


def _one_mask(attached: Attachment) -> Attachment:
    """Refuse a stack: what is planned here is one mask."""
    if attached.stack is None:
        return attached
    calls = " or ".join(f"--mask '{mask.call}'" for mask in attached.masks)
    raise DatasetError(
        f"{attached.where}: the stack `{attached.stack.name}` is attached here, and one mask is "
        f"planned at a time; choose one of its masks: {calls}"
    )


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
    block_size: BlockSize,
    origin: str,
) -> Batch:
    total = sum(sample.length for sample in samples)
    if total > MOST_TOKENS:
        raise DatasetError(f"expected a batch of at most {MOST_TOKENS} tokens, got {total}")
    if isinstance(block_size, int):
        sparsity = block_sparsity(slabs, block_size, block_size)
    else:
        sparsity = block_size(slabs)
    texts = tuple(sample.to_json() for sample in samples)
    return Batch(sparsity, Provenance(spec.source, mask.call, texts, origin))
