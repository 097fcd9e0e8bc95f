"""`PlannedBatches`: cuts packed batches of Megatron-Core's data loaders by plans.

Source: ``utils.get_thd_batch_on_this_cp_rank`` of megatron-core 0.16.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dcp_dsl import Form, Mask, Sample
from dcp_dsl.arrays import Ints, expand
from dcp_planner import Plan, build_plan, cut_blocks, fastest_block_size
from dcp_runtime.adapters.megatron.layers import PlannedSequences
from dcp_runtime.data.choices import Planning
from dcp_runtime.errors import RunError
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.plans.own_cluster import cluster_of_ranks
from dcp_runtime.transport.group_store import process_group

_WHOLE = (
    "attention_mask", "cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size",
    "hybrid_cp_group",
)  # fmt: skip
"""Entries of a batch that have no value for each token."""


class PlannedBatches:
    """Cuts packed batches by plans, in the place of ``get_thd_batch_on_this_cp_rank``.

    Every rank makes the same plan, in the training process; a `DCPDataloader` plans ahead.

    Args:
        executor: of the context-parallel ranks.
        mask: of every sequence.
        planning: shape, config, block size, the cluster of these ranks, and their group.
    """

    def __init__(self, executor: DCPExecutor, mask: Mask, planning: Planning) -> None:
        self.executor, self.mask, self.planning = executor, mask, planning
        if (cluster := planning.cluster) is None:
            group = process_group(planning.group)
            cluster = cluster_of_ranks(dist.get_world_size(group), group)
        self.cluster = cluster

    def split(
        self,
        batch: Mapping[str, Any],  # Any: tensors, and the entries in `_WHOLE`
        cu_seqlens: Tensor,
        cu_seqlens_padded: Tensor | None = None,
        columns: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[dict[str, Any], PlannedSequences]:
        """Return this rank's tokens of a batch, and what to pass as ``packed_seq_params``.

        Collective.

        Args:
            batch: tensors ``[1, T, ...]`` with a value for each token, or ``None``;
                ``attention_mask`` is left out. Without ``position_ids`` positions count from 0 in
                every sequence.
            cu_seqlens: where the sequences begin and end, ``[S+1]`` or ``[1, S+1]``, filled up with
                -1 or with its last number, as Megatron's data sets do.
            cu_seqlens_padded: the same with padding, if the batch is padded; padding, and what lies
                behind the last sequence, is left out.
            columns: of each sequence, for a mask that needs some.

        Raises:
            RunError: if the ends of the sequences and the tensors do not go together.
        """
        lengths, begins = _read_sequences(cu_seqlens, cu_seqlens_padded, _tokens_of(batch))
        plan = self._plan(lengths, columns)
        own = plan.local_tokens(self.executor.rank)
        # Of each token without padding: its sequence, and its position there. Then its place in the
        # batch, with padding.
        sequence, inside = expand(0, lengths)
        rows = torch.from_numpy((begins[sequence] + inside)[own])
        cut: dict[str, Any] = {
            name: value
            if name in _WHOLE or value is None
            else value.index_select(1, rows.to(value.device))
            for name, value in batch.items()
        }
        if cut.get("position_ids") is None:
            cut["position_ids"] = torch.from_numpy(inside[own])[None]
        cut["attention_mask"] = None
        return cut, PlannedSequences.prepare(self.executor, plan, cut["position_ids"][0])

    def _plan(self, lengths: Ints, columns: Sequence[Mapping[str, Any]] | None) -> Plan:
        """Plan the sequences that have tokens."""
        filled = np.flatnonzero(lengths)
        fewest = int(filled[-1]) + 1  # sequences behind the last one with tokens fill a tensor up
        if columns is not None and not fewest <= len(columns) <= len(lengths):
            raise RunError(
                f"columns: expected those of each of {fewest} sequences, got {len(columns)}; give "
                "one mapping for each sequence of cu_seqlens"
            )
        forms: list[Form] = []
        for index in filled.tolist():
            values = {} if columns is None else dict(columns[index])
            forms.append(self.mask.bind(Sample(values, int(lengths[index]))))
        rates, config = self.planning.rates, self.planning.config
        cluster = self.cluster if rates is None else rates.cluster
        shape, block = self.planning.shape, self.planning.block_size
        block = block or fastest_block_size([forms], shape, cluster, config)
        return build_plan(cut_blocks(forms, block), shape, cluster, config)


def _tokens_of(batch: Mapping[str, Any]) -> int | None:  # Any: as in `split`
    """Return how many tokens the tensors of a batch have, ``None`` if there is no tensor."""
    tokens, first = None, ""
    for name, value in batch.items():
        if name in _WHOLE or value is None:
            continue
        if not isinstance(value, Tensor) or value.ndim < 2 or len(value) != 1:
            found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise RunError(
                f"batch[{name!r}]: expected a tensor [1, T, ...] with a value for each token, got "
                f"{found}; give it to the model yourself, or reshape several samples to one"
            )
        if tokens is None:
            tokens, first = value.shape[1], name
        if value.shape[1] != tokens:
            raise RunError(
                f"batch[{name!r}]: expected {tokens} tokens, as in batch[{first!r}], got "
                f"{value.shape[1]}; leave out what has no value for each token"
            )
    return tokens


def _read_sequences(real: Tensor, padded: Tensor | None, tokens: int | None) -> tuple[Ints, Ints]:
    """Return lengths of the sequences without padding, and where they begin in the batch."""
    ends = _read_ends("cu_seqlens", real)
    lengths = np.diff(ends)
    places, name = ends, "cu_seqlens"
    if padded is not None:
        places, name = _read_ends("cu_seqlens_padded", padded), "cu_seqlens_padded"
        rooms = np.diff(places)
        # Both were filled up, each in its own way.
        common = min(len(lengths), len(rooms))
        if lengths[common:].any() or rooms[common:].any():
            raise RunError(
                f"cu_seqlens_padded: expected as many sequences as in cu_seqlens, {len(lengths)}, "
                f"got {len(rooms)}; both describe the same sequences"
            )
        lengths, rooms = lengths[:common], rooms[:common]
        if (lengths > rooms).any():
            number = int(np.argmax(lengths > rooms))
            raise RunError(
                f"cu_seqlens_padded: expected room for the {lengths[number]} tokens of sequence "
                f"{number}, got {rooms[number]}; the padded ends come third, the real ends second"
            )
    if not lengths.any():
        raise RunError(
            f"cu_seqlens: expected a sequence with tokens, got {len(lengths)} without any; leave "
            "such a batch out on all ranks"
        )
    last = int(places[-1])
    if tokens is not None and last > tokens:
        raise RunError(
            f"{name}: expected ends up to {tokens}, the tokens of the batch, got {last}; give the "
            "ends of this batch, those of one sample"
        )
    if tokens is not None and padded is None and last < tokens:
        raise RunError(
            f"cu_seqlens: expected {tokens} as the last end, all tokens of the batch, got {last}: "
            f"{tokens - last} tokens are in no sequence; if they are padding, say so by "
            "cu_seqlens_padded"
        )
    return lengths, places[:-1]


def _read_ends(name: str, given: Tensor) -> Ints:
    """Return ends of sequences, int64 ``[S+1]``, without the -1 that fill the tensor up."""
    found = given[0] if given.ndim == 2 and len(given) == 1 else given
    if found.ndim != 1 or found.is_floating_point():
        raise RunError(
            f"{name}: expected integers [S+1] or [1, S+1], got {given.dtype} {list(given.shape)}; "
            "flatten a batch of several samples to one, and its ends with it"
        )
    ends: Ints = found.detach().cpu().numpy().astype(np.int64)
    if (filled := np.flatnonzero(ends != -1)).size:
        ends = ends[: filled[-1] + 1]
    if not filled.size or ends[0] != 0:
        raise RunError(
            f"{name}: expected ends that begin with 0, got {ends[:3].tolist() or 'none'}; the "
            "first sequence begins at token 0 of the batch"
        )
    if (falls := np.flatnonzero(np.diff(ends) < 0)).size:
        number = int(falls[0])
        raise RunError(
            f"{name}: expected ends that do not fall, got {ends[number]} and then "
            f"{ends[number + 1]}, at place {number + 1}; only the end of the tensor may be filled "
            "up, with -1"
        )
    return ends
