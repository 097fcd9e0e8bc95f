"""What layers of Megatron-Core run under plans: the plans of a batch, attention, rotary positions.

Source: megatron-core 0.16: ``PackedSeqParams``, ``DotProductAttention``, ``RotaryEmbedding``.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import DCPAttn, LayerPlans
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.plans.batch_plans import BatchPlan


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
    # Behind megatron-core 0.16:
    total_tokens: None = None
    seq_idx: None = None
    tokens_per_sample: None = None
    pad_between_seqs: None = None
    cp_scatter_cache: None = None

    @classmethod
    def prepare(
        cls, executor: DCPExecutor, plan: BatchPlan, position_ids: Tensor
    ) -> "PlannedSequences":
        """Make the plans of a batch ready; collective."""
        longest = int(position_ids.max()) + 1 if len(position_ids) else 0
        return cls(LayerPlans.prepare(executor, plan), position_ids, longest)


def sequences_of(found: object) -> PlannedSequences:
    """Return what a model was given as ``packed_seq_params``, if it holds plans."""
    if not isinstance(found, PlannedSequences):
        raise RunError(
            "expected packed_seq_params to be PlannedSequences.prepare(executor, plan, "
            f"position_ids), got {type(found).__name__}; to generate text without plans, build the "
            "model with Megatron's own attention"
        )
    return found


def model_rows(config: Any, tokens: int) -> int:  # Any: Megatron's
    """Return how many rows a model computes for this rank's tokens.

    Megatron cannot run without any row, and sequence parallelism wants as many on each
    tensor-parallel rank. Rows behind the tokens stand in; nothing that is trained depends on them.
    """
    step = config.tensor_model_parallel_size if config.sequence_parallel else 1
    return int(max(1, -(-tokens // step)) * step)


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
        self._config, self._scale = config, softmax_scale
        self._layer = layer_number - 1  # Megatron counts from 1
        self.is_in_walked_model = False  # `use_plans` sets it
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        window = getattr(config, "window_size", None)
        kind = others.get("attention_type", "self")
        for name, found, plain, way_out in (
            ("attention_dropout", dropout, 0, "no plan drops weights; use hidden_dropout"),
            ("window_size", window, None, "put the window in the mask of this layer's plan"),
            ("attention_type", kind, "self", "queries see their own batch"),
        ):
            if found != plain:
                raise RunError(
                    f"layer {layer_number}: expected {name} {plain}, got {found}; {way_out}"
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
        """Return ``[rows, 1, Hq * D]`` of query ``[rows, 1, Hq, D]``, key and value.

        Latent attention (MLA) leaves the second dim out. The first rows are this rank's tokens;
        those that stand in (`model_rows`) get 0. The heads are those of this tensor-parallel rank;
        `packed_seq_params` has the plans.

        Raises:
            RunError: if a tensor has another form, or a mask or a bias is given; or if `use_plans`
                has not seen the model.
        """
        if not self.is_in_walked_model:
            raise RunError(
                f"layer {self._layer + 1}: expected a model that can run under plans as a whole; "
                "call use_plans(model) once, before the first step"
            )
        for name, given in (("attention_mask", attention_mask), ("attention_bias", attention_bias)):
            if given is not None:
                raise RunError(f"expected {name} None: the mask is the plan's; omit it")
        sequences = sequences_of(packed_seq_params)
        if query.ndim == 4 and query.shape[1] != 1:
            raise RunError(
                f"expected query [T_local, 1, Hq, D], one packed batch, got {list(query.shape)}; "
                "use micro batches of 1"
            )
        rows, tokens = len(query), len(sequences.position_ids)
        q, k, v = (x[:, 0] if x.ndim == 4 else x for x in (query, key, value))
        if rows == model_rows(self._config, tokens):
            q, k, v = q[:tokens], k[:tokens], v[:tokens]
        plan = sequences.layers.of(self._layer)
        out = DCPAttn.apply(plan, q, (k, v), softmax_scale=self._scale, sinks=self.softmax_offset)
        out = out.flatten(1)
        return (out if len(out) == rows else pad(out, (0, 0, 0, rows - len(out))))[:, None]

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
    """Rotary frequencies of this rank's tokens, in the place of Megatron's ``RotaryEmbedding``.

    `use_plans` puts it there. A token gets the row of its own position in Megatron's table, with
    the scale that YaRN adds. The tensors of latent attention (MLA) have no dim of sequences.
    """

    def __init__(self, rotary: Any, config: Any, *, is_latent: bool = False) -> None:
        super().__init__()  # Any: Megatron's
        self.rotary, self._config, self._is_latent = rotary, config, is_latent

    def get_rotary_seq_len(
        self, *inputs: Any, packed_seq_params: Any = None, **_: Any
    ) -> PlannedSequences:
        """Return the plans of the batch, which the model passes to `forward` as the length."""
        # Megatron's models pass them as the last argument; its signature allows the name, too.
        return sequences_of(inputs[-1] if packed_seq_params is None else packed_seq_params)

    def forward(self, sequences: PlannedSequences, **_: Any) -> Tensor | tuple[Tensor, float]:
        """Return ``[rows, 1, 1, D]``, for latent attention ``[rows, 1, D]``; YaRN adds a scale."""
        found = self.rotary.get_emb(max(1, sequences.longest))
        table, *scale = found if isinstance(found, tuple) else (found,)
        positions = sequences.position_ids.to(table.device)
        missing = model_rows(self._config, len(positions)) - len(positions)
        freqs = table[pad(positions, (0, missing))]
        freqs = freqs[:, 0] if self._is_latent else freqs
        return (freqs, *scale) if scale else freqs
