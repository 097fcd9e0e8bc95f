"""From a .dcpm file and a data set, or samples, to the block sparsity of one packed batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcp_dsl import (
    Attachment,
    BlockSparsity,
    DatasetError,
    Mask,
    Sample,
    Spec,
    block_sparsity,
    pack,
    read_dataset,
)
from dcp_planner.plan import Provenance


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
    return _compile(spec, mask, samples, block_size, f"{spec.name}, samples of the command line")


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
        raise DatasetError(
            f"{path}: expected a batch 0 to {len(batches) - 1}, got {index}"
            if batches
            else f"{path}: no row has 1 to {tokens} tokens; raise --tokens"
        )
    rows = [short[place] for place in batches[index]]
    say(f"compiling mask {attached.mask.call} for {len(rows)} samples")
    samples = [attached.sample(dataset[row]) for row in rows]
    origin = f"{path}, batch {index} of {len(batches)} (rows {rows[0]} to {rows[-1]})"
    left_out = len(dataset) - len(short)
    notes = (f"{left_out} of {len(dataset)} rows are empty or longer than {tokens} tokens",)
    return _compile(spec, attached.mask, samples, block_size, origin, notes if left_out else ())


def _compile(
    spec: Spec,
    mask: Mask,
    samples: Sequence[Sample],
    block_size: int,
    origin: str,
    notes: tuple[str, ...] = (),
) -> Batch:
    sparsity = block_sparsity([mask.bind(sample) for sample in samples], block_size, block_size)
    texts = tuple(sample.to_json() for sample in samples)
    return Batch(sparsity, Provenance(spec.source, mask.call, texts, origin), notes)
