"""Megatron-Core under DCP: core attention, packed batches, rotary positions and its scheduler.

The plans of a batch travel as ``packed_seq_params``, which Megatron hands to every layer, also to
one that it recomputes::

    block.self_attention.submodules.core_attention = DCPCoreAttention  # in the layer's ModuleSpec
    model.rotary_pos_emb = PlannedRotary(model.rotary_pos_emb)
    for data, plan in loader:  # a DCPDataloader over the context-parallel ranks
        sequences = PlannedSequences.prepare(executor, plan, data.position_ids)
        model(data.tokens[None], data.position_ids[None], None, packed_seq_params=sequences)

Source: megatron-core 0.16. ``utils.get_thd_batch_on_this_cp_rank`` and
``pipeline_parallel.hybrid_cp_schedule.BalancedCPScheduler`` have counterparts here. Megatron is
imported only to write a distributed checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dcp_dsl import Mask, Sample
from dcp_dsl.arrays import Floats, Ints, expand
from dcp_planner import Cluster, build_plan, choose_block_size, cut_blocks
from dcp_planner.step import Documents, StepMesh, StepPlan, StepSetting, plan_step
from dcp_runtime.data.choices import Planning
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import DCPAttn, LayerPlans
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.plans.batch_plans import BatchPlan
from dcp_runtime.transport.group_store import process_group

_EXPECTED = (
    "expected packed_seq_params to be PlannedSequences.prepare(executor, plan, position_ids)"
)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSequences:
    """The plans of a batch, in the place of Megatron's ``PackedSeqParams``.

    Attributes:
        layers: plans of the batch.
        position_ids: int64 ``[T_local]``, of this rank's tokens.
        longest: one more than the largest of them.
        qkv_format: Megatron's name for rows of one packed batch, ``[T_local, 1, ...]``. The fields
            behind it are those by which Megatron would cut sequences; they are ``None``, since the
            plan has cut them.
    """

    layers: LayerPlans
    position_ids: Tensor
    longest: int
    qkv_format: str = "sbhd"
    cu_seqlens_q: None = None
    cu_seqlens_kv: None = None
    cu_seqlens_q_padded: None = None
    cu_seqlens_kv_padded: None = None
    max_seqlen_q: None = None
    max_seqlen_kv: None = None
    local_cp_size: None = None
    cp_group: None = None

    @classmethod
    def prepare(
        cls, executor: DCPExecutor, plan: BatchPlan, position_ids: Tensor
    ) -> "PlannedSequences":
        """Make the plans of a batch ready; collective."""
        longest = int(position_ids.max()) + 1 if len(position_ids) else 0
        return cls(LayerPlans.prepare(executor, plan), position_ids, longest)


class DCPCoreAttention(torch.nn.Module):
    """Attention under the mask of the batch's plan, built and called like Megatron's own.

    Raises:
        RunError: if the model has dropout or a window, which no plan computes.
    """

    def __init__(
        self, config: Any, layer_number: int, *_: Any, attention_dropout: float | None = None,
        softmax_scale: float | None = None, pg_collection: Any = None, **others: Any,
    ) -> None:  # Any: Megatron's, which is not imported  # fmt: skip
        super().__init__()
        self._tensor_ranks = getattr(pg_collection, "tp", None)
        self._layer, self._scale = layer_number - 1, softmax_scale  # Megatron counts from 1
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        window = getattr(config, "window_size", None)
        for name, found, plain in (
            ("attention_dropout", dropout, 0),
            ("window_size", window, None),
        ):
            if found != plain:
                raise RunError(
                    f"layer {layer_number}: expected {name} {plain}, got {found}; dropout is not "
                    "computed, and a window belongs in the mask of the plan"
                )
        # The name is Megatron's, so that checkpoints fit. As a buffer that is not persistent it may
        # hold a tensor which moves with the module and is not saved.
        self.register_buffer("softmax_offset", None, persistent=False)
        if (softmax_type := getattr(config, "softmax_type", "vanilla")) != "vanilla":
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            sinks = torch.zeros(heads)  # a logit per head of this rank
            is_learnt = softmax_type == "learnable"  # else "off-by-one", which is not saved
            self.softmax_offset = torch.nn.Parameter(sinks) if is_learnt else sinks

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        attn_mask_type: Any = None, attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:  # Any: Megatron's  # fmt: skip
        """Return ``[T_local, 1, Hq * D]`` of query ``[T_local, 1, Hq, D]``, key and value.

        The heads are those of this tensor-parallel rank; `packed_seq_params` has the plans.

        Raises:
            RunError: if a tensor has another form, or a mask or a bias is given.
        """
        for name, given in (("attention_mask", attention_mask), ("attention_bias", attention_bias)):
            if given is not None:
                raise RunError(f"expected {name} None: the mask is the plan's; omit it")
        if not isinstance(packed_seq_params, PlannedSequences):
            raise RunError(f"{_EXPECTED}, got {type(packed_seq_params).__name__}")
        if query.ndim != 4 or query.shape[1] != 1:
            raise RunError(
                f"expected query [T_local, 1, Hq, D], one packed batch, got {list(query.shape)}; "
                "use micro batches of 1"
            )
        q, k, v = (tensor[:, 0] for tensor in (query, key, value))
        plan = packed_seq_params.layers.of(self._layer)
        out = DCPAttn.apply(plan, q, (k, v), softmax_scale=self._scale, sinks=self.softmax_offset)
        return out.flatten(1)[:, None]

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> Any:  # Any: Megatron's
        """Return the sinks for a distributed checkpoint: a shard per tensor-parallel rank."""
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
        from megatron.core.utils import get_tensor_model_parallel_group_if_none

        return make_sharded_tensors_for_checkpoint(
            self.state_dict(keep_vars=True), prefix, {"softmax_offset": 0}, sharded_offsets,
            tp_group=get_tensor_model_parallel_group_if_none(self._tensor_ranks),
            dp_cp_group=metadata["dp_cp_group"],
        )  # fmt: skip


class PlannedRotary(torch.nn.Module):
    """Rotary frequencies of this rank's tokens, in the place of a model's ``rotary_pos_emb``.

    Raises:
        RunError: if it is another kind of position embedding.
    """

    def __init__(self, rotary: Any) -> None:  # Any: Megatron's
        super().__init__()
        if not {"get_freqs_non_repeated", "rotary_interleaved"} <= set(dir(rotary)):
            raise RunError(
                f"expected Megatron's RotaryEmbedding, got {type(rotary).__name__}; build the "
                'model with position_embedding_type="rope"'
            )
        self.rotary = rotary

    def get_rotary_seq_len(
        self, *inputs: Any, packed_seq_params: Any = None, **_: Any
    ) -> PlannedSequences:
        """Return the plans of the batch, which the model passes to `forward` as the length."""
        # Megatron's models pass them as the last argument; its signature allows the name, too.
        found = inputs[-1] if packed_seq_params is None else packed_seq_params
        if not isinstance(found, PlannedSequences):
            raise RunError(f"{_EXPECTED}, got {type(found).__name__}")
        return found

    def forward(self, sequences: PlannedSequences, **_: Any) -> Tensor:
        """Return ``[T_local, 1, 1, D]``; the position of every token is its own."""
        positions = sequences.position_ids
        freqs = self.rotary.get_freqs_non_repeated(sequences.longest).to(positions.device)
        found: Tensor = freqs[positions]  # [T_local, D / 2]: a frequency turns two dims
        if self.rotary.rotary_interleaved:  # neighbouring dims; else a dim of each half
            return found.repeat_interleave(2, -1)[:, None, None]
        return torch.cat([found, found], -1)[:, None, None]


_WHOLE = ("attention_mask", "cu_seqlens", "cu_seqlens_padded", "max_seqlen")
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
            cluster = Cluster(1, dist.get_world_size(process_group(planning.group)))
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
            batch: tensors ``[1, T]`` with a value for each token; ``attention_mask`` is left out.
                Without ``position_ids`` positions count from 0 in every sequence.
            cu_seqlens: where the sequences begin and end, ``[S+1]``.
            cu_seqlens_padded: the same with padding, if the batch is padded; padding is left out.
            columns: of each sequence, for a mask that needs some.
        """
        lengths: Ints = cu_seqlens.cpu().long().diff().numpy()
        begins = np.asarray((cu_seqlens if cu_seqlens_padded is None else cu_seqlens_padded).cpu())
        given = [{}] * len(lengths) if columns is None else columns
        forms = [
            self.mask.bind(Sample(dict(values), int(length)))
            for values, length in zip(given, lengths, strict=True)
        ]
        shape, config = self.planning.shape, self.planning.config
        rates = self.planning.rates
        cluster = self.cluster if rates is None else rates.cluster
        block = self.planning.block_size or choose_block_size(forms, cluster, config)
        plan = build_plan(cut_blocks(forms, block), shape, cluster, config)
        own = plan.local_tokens(self.executor.rank)
        # Of each token without padding: its sequence, and its position there. Then its place in the
        # batch, with padding.
        sequence, inside = expand(0, lengths)
        rows = torch.from_numpy((begins[sequence] + inside)[own])
        cut = {
            name: value if name in _WHOLE else value.index_select(1, rows.to(value.device))
            for name, value in batch.items()
        }
        positions = cut.setdefault("position_ids", torch.from_numpy(inside[own])[None])
        cut["attention_mask"] = None
        return cut, PlannedSequences.prepare(self.executor, plan, positions[0])


class PlannedCPScheduler:
    """Deals samples to ranks by `plan_step`, in the place of ``BalancedCPScheduler``.

    Samples are dealt by the work of their own masks, not by the square of their lengths. Each goes
    to 1, 2, 4, ... ranks, whichever number is fastest. Give this object to a
    ``HybridCPDataLoaderWrapper`` as ``cp_balancing_scheduler``.

    Args:
        max_seq_len_per_rank: tokens of one group of samples that a rank may hold.
        setting: model and cluster; its mesh and token budget are not read.
        pairs: visible pairs of samples of these lengths, int64 ``[N]``; by default causal.

    Raises:
        RunError: if the number of ranks is no power of two: Megatron has no other groups.
    """

    def __init__(
        self,
        max_seq_len_per_rank: int,
        setting: StepSetting,
        pairs: Callable[[Ints], Floats] | None = None,
    ) -> None:
        self.devices = setting.cluster.num_devices
        if self.devices & (self.devices - 1):
            raise RunError(
                f"setting.cluster: expected a power of two of ranks, got {self.devices}: Megatron "
                "has no other groups; use 1, 2, 4, 8, ..."
            )
        self.most, self.setting, self.pairs = max_seq_len_per_rank, setting, pairs

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[tuple[int, int]], config: Any = None
    ) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
        """Return the lengths and the ids of each rank's samples, group by group, as Megatron does.

        Raises:
            PlanError: if a sample is longer than all ranks may hold.
        """
        if not sample_id_seqlens:
            return [], []
        ids, lengths = np.array(sample_id_seqlens, np.int64).reshape(-1, 2).T
        documents = Documents.causal(lengths)
        if self.pairs is not None:
            documents = Documents(lengths, self.pairs(lengths))
        plan = self._plan(documents)
        # The rows of samples by group and rank; a sample on several ranks is listed on each.
        found: list[list[list[int]]] = [
            [[] for _ in range(self.devices)] for _ in range(plan.assignment.mesh.micro_batches)
        ]
        for group, first, width, rows in plan.assignment.groups():  # wide groups first on each rank
            for rank in range(first, first + width):
                found[group][rank] += rows.tolist()
        # Megatron runs the last sample of the last group apart: every rank must have one there.
        found.sort(key=all)
        return tuple(
            [[column[rows].tolist() for rows in group] for group in found]
            for column in (lengths, ids)
        )  # type: ignore[return-value]

    def _plan(self, documents: Documents) -> StepPlan:
        """Plan as few groups as hold the tokens, with at least one group without an idle rank."""
        room = self.most * self.devices
        fewest = -(-int(documents.tokens.sum()) // room)  # at least 1: no document is empty
        # First any number of ranks for a sample; then all ranks for each, where no rank is idle.
        for widths in (None, (self.devices,)):
            for count in range(fewest, len(documents) + 1):
                mesh = StepMesh(1, self.devices, micro_batches=count)
                plan = plan_step(
                    documents, replace(self.setting, mesh=mesh, token_budget=room, widths=widths)
                )
                # `max_tokens` is relative to the mean over all ranks and groups.
                held = plan.time.max_tokens * documents.tokens.sum() / (self.devices * count)
                busy = np.zeros((count, self.devices), np.bool_)
                for group, first, width, _ in plan.assignment.groups():
                    busy[group, first : first + width] = True
                if held <= self.most and busy.all(1).any():
                    return plan
        raise AssertionError("a group for each sample, on all ranks, holds it")  # else plan_step
