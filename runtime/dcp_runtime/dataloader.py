"""`DCPDataloader`: rows of a data set in, this rank's tokens and the plan of each batch out.

Every rank packs and plans all batches itself; both are deterministic, so all ranks hold the same
plan without talking to each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dcp_dsl import (
    Dataset,
    DatasetError,
    Mask,
    Sample,
    Spec,
    block_sparsity,
    pack,
)
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, Provenance, build_plan
from dcp_runtime.errors import RunError

IGNORE_LABEL = -100
"""Label of a token whose successor is no target, as ``torch.nn.CrossEntropyLoss`` ignores it."""

Row: TypeAlias = Mapping[str, Any]  # Any: integers, lists of them, or bytes, by column
MaskFunction: TypeAlias = Spec | Mask | Callable[[Row], Mask]
Resolver: TypeAlias = Callable[[Row], tuple[Mask, Sample]]


@dataclass(frozen=True, slots=True)
class LocalData:
    """The tokens of one batch that a rank owns, in the order of ``plan.local_tokens(rank)``.

    Attributes:
        tokens: int64 ``[T_local]``.
        labels: int64 ``[T_local]``, the next token of the same sequence, whichever rank owns it;
            `IGNORE_LABEL` at the end of a sequence.
        loss_mask: bool ``[T_local]``, where `labels` is a target.
        position_ids: int64 ``[T_local]``, position within the sequence.
        sequence_ids: int64 ``[T_local]``, sequence of the batch.
        rows: rows of the data set in the batch; sequence i of the batch is ``rows[i]``.
        num_targets: targets of the whole batch over all ranks; divide summed losses by it.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    position_ids: torch.Tensor
    sequence_ids: torch.Tensor
    rows: tuple[int, ...]
    num_targets: int


class DCPDataloader:
    """Packs samples to a token budget, plans each batch, and yields this rank's part of it.

    Every sample is in exactly one batch of an iteration. Iterating again starts from the beginning.

    Args:
        dataset: what `read_dataset` gives, or a sequence of rows with a column ``tokens``.
        mask_fn: a loaded spec, which finds the mask by its ``for ... use``; a mask for all samples;
            or a function from a row to its mask.
        token_budget: most tokens of a batch.
        block_size: tokens per planning block.
        cluster: devices to plan for; by default one node with a device for every rank.
        shape: heads of the attention layer on one rank.
        config: how to plan.
        rank: whose part is yielded; by default the rank in the default process group, else 0.
        order: ``"in_order"`` keeps the order of the data set, ``"decreasing"`` packs tighter.
        path: where an in-memory data set counts as lying when a spec looks for its ``for ... use``.

    Raises:
        DatasetError: if a row is longer than the budget, has no tokens, or lacks a column.
        RunError: if the rank is none of the cluster's devices.
    """

    def __init__(  # noqa: PLR0913 - one keyword per choice of the user; all but two have defaults
        self,
        dataset: Dataset | Sequence[Row],
        mask_fn: MaskFunction,
        *,
        token_budget: int = 8192,
        block_size: int = 512,
        cluster: Cluster | None = None,
        shape: ModelShape | None = None,
        config: PlanConfig | None = None,
        rank: int | None = None,
        order: Literal["in_order", "decreasing"] = "in_order",
        path: str = "",
    ) -> None:
        self._dataset = dataset
        self._resolve = _resolver(dataset, mask_fn, path)
        self._spec_source = mask_fn.source if isinstance(mask_fn, Spec) else None
        self._block_size = block_size
        self._cluster = cluster or Cluster(devices_per_node=_world_size())
        self._shape = shape or ModelShape()
        self._config = config or PlanConfig()
        self._rank = _own_rank() if rank is None else rank
        if not 0 <= self._rank < self._cluster.num_devices:
            raise RunError(
                f"expected a rank from 0 to {self._cluster.num_devices - 1}, the devices of the "
                f"cluster, got {self._rank}; give the cluster of all ranks that share a batch, and "
                "the rank among these"
            )
        self._batches = pack(_lengths(dataset), token_budget, order=order)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[LocalData, Plan]]:
        """Plan one batch after the other."""
        for rows in self._batches:
            plan = self._plan(rows)
            tokens = [_tokens(self._dataset, row) for row in rows]
            yield take_local(tokens, plan, self._rank, rows), plan

    def _plan(self, rows: tuple[int, ...]) -> Plan:
        resolved, slabs = [], []
        for row in rows:
            try:
                mask, sample = self._resolve(self._dataset[row])
                slabs.append(mask.bind(sample))
            except DatasetError as error:
                raise DatasetError(f"row {row}: {error}") from error
            resolved.append((mask, sample))
        sparsity = block_sparsity(slabs, self._block_size, self._block_size)
        provenance = None
        calls = {mask.call for mask, _ in resolved}
        if self._spec_source is not None and len(calls) == 1:
            provenance = Provenance(
                self._spec_source,
                calls.pop(),
                tuple(sample.to_json() for _, sample in resolved),
                f"rows {', '.join(map(str, rows))}",
            )
        return build_plan(sparsity, self._shape, self._cluster, self._config, provenance=provenance)


def take_local(
    tokens: Sequence[NDArray[np.int64]], plan: Plan, rank: int, rows: tuple[int, ...]
) -> LocalData:
    """Cut a rank's part out of a batch.

    Args:
        tokens: int64 ``[length]`` of each sequence of the batch.
        plan: plan of the batch.
        rank: whose part.
        rows: rows of the data set, for the record.
    """
    cu = plan.cu_seqlens.astype(np.int64)
    packed = np.concatenate([np.empty(0, np.int64), *tokens])
    labels = np.append(packed[1:], IGNORE_LABEL)
    labels[cu[1:][np.diff(cu) > 0] - 1] = IGNORE_LABEL  # no target across sequences
    lengths = np.diff(cu)
    sequence_ids = np.repeat(np.arange(len(lengths)), lengths)
    position_ids = np.arange(len(packed)) - cu[:-1][sequence_ids]
    local = plan.local_tokens(rank)
    is_target = np.ones(len(packed), bool)
    is_target[cu[1:][lengths > 0] - 1] = False
    return LocalData(
        tokens=torch.from_numpy(packed[local]),
        labels=torch.from_numpy(labels[local]),
        loss_mask=torch.from_numpy(is_target[local]),
        position_ids=torch.from_numpy(position_ids[local]),
        sequence_ids=torch.from_numpy(sequence_ids[local]),
        rows=rows,
        num_targets=int(is_target.sum()),
    )


def _resolver(dataset: Dataset | Sequence[Row], mask_fn: MaskFunction, path: str) -> Resolver:
    if isinstance(mask_fn, Spec):
        if isinstance(dataset, Dataset):
            path, columns = str(dataset.path), set(dataset.columns)
        else:
            columns = set(dataset[0]) if len(dataset) else set()
        attachment = mask_fn.attachment(path, columns)
        return lambda row: (attachment.mask, attachment.sample(row))
    if isinstance(mask_fn, Mask):
        mask = mask_fn
        return lambda row: (mask, Sample.of(row, mask))
    if not callable(mask_fn):
        raise DatasetError(
            "expected mask_fn to be a loaded spec, a mask or a function from a row to a mask, got "
            f"{mask_fn!r:.60}; load(path) gives a spec, spec.mask(call) a mask"
        )
    choose = mask_fn

    def resolve(row: Row) -> tuple[Mask, Sample]:
        chosen = choose(row)
        if not isinstance(chosen, Mask):
            raise DatasetError(f"mask_fn must give a Mask for each row, got {chosen!r}")
        return chosen, Sample.of(row, chosen)

    return resolve


def _lengths(dataset: Dataset | Sequence[Row]) -> list[int]:
    if isinstance(dataset, Dataset):
        return [int(n) for n in dataset.lengths]
    return [len(_tokens(dataset, row)) for row in range(len(dataset))]


def _tokens(dataset: Dataset | Sequence[Row], row: int) -> NDArray[np.int64]:
    if isinstance(dataset, Dataset):
        return np.asarray(dataset.tokens(row)).astype(np.int64)
    columns = dataset[row]
    if not isinstance(columns, Mapping):
        raise DatasetError(
            f"row {row}: expected columns by name, got {type(columns).__name__}; read_dataset(path)"
            " gives the rows of a file"
        )
    values = columns.get("tokens")
    if values is None:
        have = ", ".join(sorted(columns)) or "none"
        raise DatasetError(f"row {row} has no column `tokens`; its columns are: {have}")
    if isinstance(values, bytes | bytearray):
        return np.frombuffer(bytes(values), np.uint8).astype(np.int64)
    return _integers(values, row)


def _integers(values: Any, row: int) -> NDArray[np.int64]:  # Any: what a user's row holds
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        array = np.empty((), object)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DatasetError(
            f"row {row}: expected `tokens` to be integers or bytes, got {str(values)[:60]!r}"
        )
    return array.astype(np.int64)


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _own_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
