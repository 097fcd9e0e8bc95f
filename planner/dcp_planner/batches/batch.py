"""Pack rows of a data set, or samples, into a batch; compile it under every mask of a stack.

If a stack gives its layers different masks, there is one `Batch` for each mask, cut at the same
places.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import (
    Attachment,
    BlockSparsity,
    Dataset,
    DatasetError,
    Form,
    Mask,
    Sample,
    Spec,
    Stack,
    block_sparsity,
    pack,
    read_dataset,
    row_name,
)
from dcp_planner.model.problem import as_arrays
from dcp_planner.tables.plan import Provenance

MOST_TOKENS = int(np.iinfo(np.int32).max)
"""Tokens of one batch: their positions are int32."""


@dataclass(frozen=True, slots=True)
class StackUse:
    """Use of a mask by a stack."""

    stack: str  # its name
    label: str  # of the mask within the stack, safe in the name of a file
    # layers, period: layers of a cycle that use the mask, and all layers of a cycle
    layers: int
    period: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A packed batch under one mask, ready to plan."""

    sparsity: BlockSparsity  # its blocks
    provenance: Provenance  # text, mask and samples that make it
    notes: tuple[str, ...] = ()  # sentences for people about rows that were left out
    index: int = 0  # number of the batch in its data set
    num_available: int | None = None  # batches that the data set has; `None` for samples
    # first and last row of the data set in it; `None` for samples
    rows: tuple[int, int] | None = None
    names: tuple[str, ...] = ()  # of its rows, one per sequence; none for samples
    use: StackUse | None = None  # where a stack uses the mask; `None` if all layers do


BlockSize: TypeAlias = int | Callable[[Sequence[Sequence[Form]]], tuple[BlockSparsity, ...]]
"""Tokens per block, or a function that cuts the sequences of all masks at common places."""


def batch_of_samples(
    spec: Spec, value: Mask | Stack, samples: Sequence[Sample], block_size: BlockSize
) -> tuple[Batch, ...]:
    """Pack samples one behind the other, once for each different mask."""
    origin = f"{spec.name}, samples of the command line"
    numbers = range(len(samples))
    return _compile(spec, value, "sample", numbers, samples.__getitem__, block_size, origin)


@dataclass(frozen=True, slots=True, eq=False)
class PackedDataset:
    """A data set with its masks, packed in its order into batches."""

    spec: Spec  # the masks
    dataset: Dataset  # the rows
    attached: Attachment  # the mask or stack, and how a row becomes a sample
    tokens: int  # most tokens of a batch
    lengths: NDArray[np.int64]  # tokens of every row, int64 `[N]`
    rows: tuple[tuple[int, ...], ...]  # of each batch
    notes: tuple[str, ...] = ()  # sentences for people about rows that were left out

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, index: int, block_size: BlockSize) -> tuple[Batch, ...]:
        """Compile one batch, once for each different mask."""
        path = self.dataset.path
        # Also where there is no batch at all: then the message tells why.
        if index >= len(self):
            raise DatasetError(f"{path}: {_no_batch(self.lengths, len(self), index, self.tokens)}")
        rows = self.rows[index]
        origin = f"{path}, batch {index} of {len(self)} (rows {rows[0]} to {rows[-1]})"
        # Each row is read once, for its sample and for its name.
        held = {row: self.dataset[row] for row in rows}

        def sample(row: int) -> Sample:
            return self.attached.sample({**held[row], "len": int(self.lengths[row])})

        found = _compile(
            self.spec, self.attached.value, f"{path}: row", rows, sample, block_size, origin
        )
        known: dict[str, Any] = {  # Any: values of fields
            "notes": self.notes,
            "index": index,
            "num_available": len(self),
            "rows": (rows[0], rows[-1]),
            "names": tuple(row_name(row, held[row]) for row in rows),
        }
        return tuple(replace(batch, **known) for batch in found)


def pack_dataset(spec: Spec, path: str, mask_call: str | None, tokens: int) -> PackedDataset:
    """Read a data set and pack its rows in their order; rows of more than `tokens` are left out.

    `mask_call` names a mask or a stack; ``None`` takes that of the first matching `for` statement,
    which must be the same for all files of a folder.
    """
    dataset = read_dataset(path)
    if mask_call is None:
        attached = spec.attachment_of(dataset)
    else:
        attached = Attachment(find_masks(spec, mask_call), {})
    # Lengths come from columns; whole rows are read later, batch by batch.
    lengths = np.concatenate([attached.lengths(part) for part in dataset.parts])
    # A row that alone exceeds the budget fits no batch; one without tokens adds nothing.
    short = [row for row, length in enumerate(lengths.tolist()) if 0 < length <= tokens]
    batches = pack([int(lengths[row]) for row in short], tokens)
    left_out = len(dataset) - len(short)
    notes = (
        f"{left_out} of {len(dataset)} rows are empty or longer than {tokens} tokens: left out",
    )
    return PackedDataset(
        spec=spec,
        dataset=dataset,
        attached=attached,
        tokens=tokens,
        lengths=lengths,
        rows=tuple(tuple(short[place] for place in batch) for batch in batches),
        notes=notes if left_out else (),
    )


def find_masks(spec: Spec, call: str) -> Mask | Stack:
    """Find a stack by name, or a mask by name or call."""
    return spec.stack(call) if call in spec.stacks else spec.mask(call)


def _no_batch(lengths: NDArray[np.int64], count: int, index: int, tokens: int) -> str:
    if count:
        return f"expected a batch 0 to {count - 1}, got {index}"
    if not lengths.any():
        return f"expected rows with tokens, got {len(lengths)} rows without any"
    shortest = int(lengths[lengths > 0].min())
    return (
        f"no row has 1 to {tokens} tokens, the shortest has {shortest}; raise --tokens to "
        f"{shortest} or more"
    )


def _compile(
    spec: Spec,
    value: Mask | Stack,
    kind: str,
    keys: Sequence[int],
    sample_of: Callable[[int], Sample],
    block_size: BlockSize,
    origin: str,
) -> tuple[Batch, ...]:
    """Bind every sample to every mask and cut the batch; errors name the sample, as `row 3`."""
    # A mask is a stack of one, so that both take the same way.
    stack = value if isinstance(value, Stack) else Stack.of(value)
    samples: list[Sample] = []
    bound: list[list[Form]] = []
    for key in keys:
        try:
            samples.append(sample_of(key))
            bound.append([as_arrays(mask.compile(samples[-1])) for mask in stack.masks])
        except DatasetError as error:
            raise DatasetError(f"{kind} {key}: {error}") from error
    total = sum(sample.length for sample in samples)
    if total > MOST_TOKENS:
        raise DatasetError(f"expected a batch of at most {MOST_TOKENS} tokens, got {total}")
    by_mask = list(zip(*bound, strict=True))
    # A function cuts all masks together: a stack needs the same borders under every mask.
    if isinstance(block_size, int):
        cut = tuple(block_sparsity(forms, block_size, block_size) for forms in by_mask)
    else:
        cut = block_size(by_mask)
    texts = tuple(sample.to_json() for sample in samples)
    files = tuple(spec.files.items())
    return tuple(
        Batch(sparsity, Provenance(spec.source, mask.call, texts, origin, files), use=use)
        for sparsity, mask, use in zip(cut, stack.masks, _uses(stack), strict=True)
    )


def _uses(stack: Stack) -> tuple[StackUse | None, ...]:
    """Find where a stack uses each of its masks; one mask for all layers is no stack."""
    cycle = stack.cycle()
    if not any(cycle):  # all layers use mask 0
        return (None,)
    return tuple(
        StackUse(
            stack=stack.name,
            label=f"{number}-{re.sub(r'[^A-Za-z0-9]+', '_', mask.name)[:40]}",
            layers=cycle.count(number),
            period=stack.period,
        )
        for number, mask in enumerate(stack.masks)
    )
