"""Megatron-Core under DCP: its core attention, packed batches and rotary positions.

The plans of a batch travel as ``packed_seq_params``, which Megatron hands to every layer, also to
one that it recomputes::

    block.self_attention.submodules.core_attention = DCPCoreAttention  # in the layer's ModuleSpec
    model.rotary_pos_emb = PlannedRotary(model.rotary_pos_emb)
    for data, plan in loader:  # a DCPDataloader over the context-parallel ranks
        sequences = PlannedSequences.prepare(executor, plan, data.position_ids)
        model(data.tokens[None], data.position_ids[None], None, packed_seq_params=sequences)

Source: megatron-core 0.16, which is imported only where a checkpoint of it is made.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import DCPAttn, LayerPlans
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.plans.batch_plans import BatchPlan

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
        qkv_format: for rows of one packed batch, ``[T_local, 1, ...]``. What Megatron has behind it
            says how to cut sequences; it is not there, as the plan has cut them.
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
    """Attention under the mask of the batch's plan, built and called as Megatron's own.

    Raises:
        RunError: if the model wants dropout or a window, which no plan computes.
    """

    def __init__(
        self, config: Any, layer_number: int, *_: Any, attention_dropout: float | None = None,
        softmax_scale: float | None = None, pg_collection: Any = None, **others: Any,
    ) -> None:  # Any: Megatron's, which is not imported  # fmt: skip
        super().__init__()
        self._tensor_ranks = getattr(pg_collection, "tp", None)
        self._layer, self._scale = layer_number - 1, softmax_scale
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        window = getattr(config, "window_size", None)
        for name, found, plain in (
            ("attention_dropout", dropout, 0),
            ("window_size", window, None),
        ):
            if found != plain:
                raise RunError(
                    f"layer {layer_number}: expected {name} {plain}, got {found}; dropout is not "
                    "computed, and a window belongs into the mask of the plan"
                )
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
            RunError: if a tensor has another form, or one that must be missing is there.
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

    Args:
        rotary: Megatron's ``RotaryEmbedding``.

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
        """Return what the model hands on to `forward` as the length."""
        found = inputs[-1] if packed_seq_params is None else packed_seq_params
        if not isinstance(found, PlannedSequences):
            raise RunError(f"{_EXPECTED}, got {type(found).__name__}")
        return found

    def forward(self, sequences: PlannedSequences, **_: Any) -> Tensor:
        """Return ``[T_local, 1, 1, D]``; the position of every token is its own."""
        positions = sequences.position_ids
        freqs = self.rotary.get_freqs_non_repeated(sequences.longest).to(positions.device)
        found: Tensor = freqs[positions]
        if self.rotary.rotary_interleaved:
            return found.repeat_interleave(2, -1)[:, None, None]
        return torch.cat([found, found], -1)[:, None, None]
