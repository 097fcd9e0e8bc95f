"""Fingerprints of rows and masks, by which ranks, replicas and resumed runs notice other data.

Fingerprints guard against mistakes, not against attacks: they are fast, and not cryptographic.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dcp_dsl import Mask, Spec, Stack
from dcp_dsl.arrays import Ints
from dcp_runtime.data.choices import Packing, Planning, Replicas, RowPolicy
from dcp_runtime.data.loss_masks import Values
from dcp_runtime.data.planner_pool import MaskText
from dcp_runtime.data.rows import IndexedRows, MaskFunction, Resolver, RowError, StreamedRows
from dcp_runtime.data.sequences import PackedSequence, join_extra, with_length
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import SAME_ROWS
from dcp_runtime.transport.group_store import SERVER, open_store

SHOWN_ROWS = 8  # rows whose numbers a message shows

SAMPLED_ROWS = 16
"""Rows whose tokens and masks stand for those of a data set, from the first to the last."""

_MASK = 2**64 - 1
_FACTOR = 0x9E3779B97F4A7C15  # odd, with bits all over


def describe_content(
    rows: Sequence[int], num_targets: int, columns: Sequence[Ints], extra: Mapping[str, Values]
) -> str:
    """Return a line with the rows of a batch and a fingerprint of all that ranks train on."""
    shown = ", ".join(map(str, rows[:SHOWN_ROWS])) or "none"
    if len(rows) > SHOWN_ROWS:
        shown += f", ... ({len(rows)} rows)"
    numbers = np.array([num_targets, *rows])
    # By name: ranks may name the same extra columns in another order.
    others = [part for name in sorted(extra) for part in (_letters(name), _bits(extra[name]))]
    return f"rows {shown} (fingerprint {fingerprint(numbers, *columns, *others):016x})"


def describe_sequences(
    sequences: Sequence[PackedSequence], *, is_fixed: bool, is_table: bool
) -> str:
    """Return a line as `describe_content` does for rows that every rank reads alike."""
    # Rows that are not fixed tell only their lengths. Extra columns count in rows of a table alone:
    # code that computes rows may draw them at random.
    columns = [sequence.columns for sequence in sequences]
    values = [
        np.concatenate([sequence.tokens for sequence in sequences]),
        np.concatenate([each.targets for each in columns]),
        np.concatenate([each.positions for each in columns]),
    ]
    names = columns[0].extra if is_table else ()
    extra = {name: join_extra(name, [each.extra[name] for each in columns]) for name in names}
    if not is_fixed:
        values = [np.array([len(sequence.tokens) for sequence in sequences])] * 3
    return describe_content([each.row for each in sequences], len(sequences), values, extra)


def _letters(name: str) -> Ints:
    return np.frombuffer(name.encode(), np.uint8).astype(np.int64)


def _bits(values: Values) -> Ints:
    """Return integers that are equal where values are: all NaN count as one, and -0.0 as 0.0."""
    if values.dtype != np.float32:
        return values.astype(np.int64, copy=False)
    plain = values + np.float32(0)
    if (is_nan := np.isnan(plain)).any():
        plain[is_nan] = np.nan
    return plain.view(np.int32).astype(np.int64)


def fingerprint(*arrays: Ints) -> int:
    """Return a number of 64 bits that differs if one of the arrays does, almost certainly.

    >>> a, b = np.array([1, 2]), np.array([2, 1])
    >>> fingerprint(a, b) == fingerprint(a, b), fingerprint(a, b) == fingerprint(b, a)
    (True, False)
    """
    value = 0
    for values in arrays:
        # A sum of products modulo 2**64: several times faster than any hash of bytes.
        count = len(values)
        total = int(np.dot(values, _weights(max(1, count - 1).bit_length())[:count]))
        value = ((value + count) * _FACTOR + total) & _MASK
    return value


@cache
def _weights(bits: int) -> Ints:
    """Return odd numbers at random, the same on all ranks, int64 ``[2**bits]``."""
    # numpy keeps the raw stream of a bit generator, but not what its generators draw from it.
    weights: Ints = np.random.PCG64(0).random_raw(2**bits).view(np.int64) | 1
    return weights


class DataHashes(NamedTuple):
    """Hashes of a data set and its masks; an empty text where nothing can be known."""

    tokens: str  # of some rows
    masks: str  # of these rows, or all masks of a stream


def hash_data(
    rows: IndexedRows | StreamedRows, mask_fn: MaskFunction, resolve: Resolver
) -> DataHashes:
    """Read some rows of a data set and return their hashes."""
    if isinstance(rows, StreamedRows):
        return DataHashes("", _hash_text(_describe(mask_fn)))
    places = np.linspace(0, max(0, len(rows) - 1), min(SAMPLED_ROWS, len(rows)))
    numbers = np.unique(places.round().astype(np.int64))
    # A row without tokens has no hash; it is told where it is read, if it is.
    read = [
        (number, row, own)
        for number in numbers.tolist()
        for row, own in [rows.read(number)]
        if not isinstance(own, RowError)
    ]
    tokens = [own for _, _, own in read]
    texts = []
    for number, row, own in read:
        try:
            mask, _ = resolve(number, with_length(row, len(own)))
        except Exception as error:  # told where the row is read, if it is
            texts.append(type(error).__name__)
        else:
            texts.append(_describe(mask))
    # Rows that are augmented at random say nothing about the data set.
    is_fixed = rows.is_table or all(
        not isinstance(again := rows.read(number)[1], RowError) and np.array_equal(again, own)
        for number, _, own in read
    )
    hashed = f"{fingerprint(numbers, *tokens):016x}" if is_fixed else ""
    return DataHashes(hashed, _hash_text(*texts))


def _describe(value: MaskFunction) -> str:
    """Return the text of masks; empty for a function."""
    if isinstance(value, Spec):
        return "\n".join((value.source, *_flat(value.files.items())))
    if isinstance(value, Mask):
        spec, _, call, files = MaskText.of(value)
        return "\n".join((call, spec, *_flat(files)))
    if isinstance(value, Stack):
        return "\n".join(
            f"{layer.count} {head.first} {head.last} {_describe(head.mask)}"
            if head
            else f"{layer.count} linear"
            for layer in value.layers
            for head in layer.heads or (None,)
        )
    return ""


def _flat(files: Iterable[tuple[str, str]]) -> list[str]:
    return [text for file in sorted(files) for text in file]


def _hash_text(*texts: str) -> str:
    """Hash texts without their comments and spaces; empty texts have an empty hash."""
    plain = [re.sub(r"#[^\n]*|\s", "", text) for text in texts]
    return hashlib.sha256("\n".join(plain).encode()).hexdigest()[:16] if any(plain) else ""


@dataclass(frozen=True)
class DataIdentity:
    """What names the data of a loader: equal names give equal global batches."""

    rows: IndexedRows | StreamedRows
    mask_fn: MaskFunction
    resolve: Resolver
    packing: Packing  # with the number of replicas as found: None and what it stands for pack alike
    policy: RowPolicy

    @cached_property
    def hashes(self) -> DataHashes:
        """Hashes of some rows and their masks."""
        return hash_data(self.rows, self.mask_fn, self.resolve)

    @cached_property
    def fingerprint(self) -> str:
        """A name of the lengths of all rows and of the packing."""
        sha = hashlib.sha256(f"{self.packing} {self.policy}".encode())
        if isinstance(self.rows, IndexedRows):
            sha.update(np.ascontiguousarray(self.rows.lengths, "<i8").tobytes())
        return sha.hexdigest()[:16]

    def settle(self) -> None:
        """Hash rows that code computes now: all ranks then draw as many random numbers."""
        if isinstance(self.rows, IndexedRows) and not self.rows.is_table:
            _ = self.hashes

    def describe(self, sequences: Sequence[PackedSequence], epoch: int, step: int) -> str:
        """Return a line about a step that is the same on all ranks that read the same data."""
        # Rows that are augmented at random may differ between replicas, but for their lengths.
        is_fixed = not isinstance(self.rows, IndexedRows) or bool(self.hashes.tokens)
        is_table = isinstance(self.rows, IndexedRows) and self.rows.is_table
        line = describe_sequences(sequences, is_fixed=is_fixed, is_table=is_table)
        data = f"{self.fingerprint}-{'-'.join(self.hashes)}"
        return f"{line} in epoch {epoch}, step {step} of the data set {data}"


TIMEOUT_S = 60.0  # how long the store may take to answer


def is_known(planning: Planning, replicas: Replicas) -> bool:
    """Return whether this process is a rank of several replicas, which all ranks make up."""
    if replicas.count == 1 or planning.rank is not None or not dist.is_initialized():
        return False
    ranks = replicas.count * replicas.context_ranks
    is_mesh = isinstance(planning.group, DeviceMesh) and planning.group.ndim > 1
    return is_mesh or dist.get_world_size() == ranks


def compare_replicas(device: int, note: str) -> None:
    """Compare a note with that of the rank that came first, n-th call with n-th call.

    No rank waits for another one: the first leaves its note, and ranks that come later raise before
    they train, so that no step mixes different data.
    """
    store = open_store(None, "dcp-replicas", TIMEOUT_S)
    try:
        first = store.compare_set("note", "", f"{device} {note}").decode()
    except RuntimeError as error:
        raise RunError(f"{str(error).splitlines()[0]}; the cause is {SERVER}") from error
    other, _, expected = first.partition(" ")
    if expected != note:
        raise RunError(
            f"device {device} reads other data than device {other}: expected {expected}, got "
            f"{note}; {SAME_ROWS}. Every rank also needs the same packing and masks, and asks its "
            "loaders for their first batches in the same order"
        )
