"""Core attention for Megatron-LM models: what stands between the projections runs on DCP.

```
plans = CurrentPlans()
submodules.core_attention = ModuleSpec(module=DCPCoreAttention, params={"plans": plans})
for local_data, plan in dataloader:
    plans.prepare(executor, plan)
    ...  # forward and backward, as ever
```

The signatures are those of ``megatron.core.transformer.dot_product_attention.DotProductAttention``;
Megatron itself is not imported. What a plan does not compute is refused, never left out.
"""

from typing import Any

import torch

from dcp_runtime import BatchPlan, DCPAttn, DCPExecutor, LayerPlans, RunError


class CurrentPlans:
    """Holds the plans of the present batch, where the layers of a model find them."""

    def __init__(self) -> None:
        self._layers: LayerPlans | None = None

    def prepare(self, executor: DCPExecutor, plan: BatchPlan) -> None:
        """Make the plan of a batch ready, before the model is called; collective."""
        self._layers = LayerPlans.prepare(executor, plan)

    @property
    def layers(self) -> LayerPlans:
        """The plans of the batch.

        Raises:
            RunError: before the first `prepare`, and inside a backward pass, where a layer that is
                recomputed would find the plans of whichever batch was prepared last.
        """
        if self._layers is None:
            raise RunError("no plan is prepared; call plans.prepare(executor, plan) first")
        if torch._C._current_graph_task_id() != -1:  # as torch.utils.checkpoint asks it
            raise RunError(
                "the core attention is recomputed inside a backward pass, when another batch may "
                "have been prepared; leave it out of recomputation: --recompute-granularity "
                "selective with --recompute-modules that do not name core_attn"
            )
        return self._layers


class DCPCoreAttention(torch.nn.Module):
    """Attention under the mask of the batch's plan.

    Args:
        config: Megatron's ``TransformerConfig``.
        layer_number: of the model, from 1, as Megatron counts.
        attention_dropout: must be 0, here or in the config.
        softmax_scale: factor of the scores; by default ``1 / sqrt(head_dim)``.
        plans: where the plans of the batch are.
        others: ``attn_mask_type``, ``attention_type``, ``cp_comm_type``, ``pg_collection``: the
            mask is the plan's, and so is who computes what.

    Raises:
        RunError: if the model wants something that no plan computes.
    """

    def __init__(
        self,
        config: Any,  # Any: Megatron's, which is not imported
        layer_number: int,
        *_: Any,
        plans: CurrentPlans,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        self._layer, self._plans, self._scale = layer_number - 1, plans, softmax_scale
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        wanted = {"attention_dropout": dropout, "window_size": getattr(config, "window_size", None)}
        for name, plain in (("attention_dropout", 0), ("window_size", None)):
            if wanted[name] != plain:
                raise RunError(
                    f"layer {layer_number}: expected {name} {plain}, got {wanted[name]}; dropout "
                    "is not computed, and a window belongs into the mask of the plan"
                )
        self.softmax_offset = None  # of the sinks, a logit per head of this rank
        if (softmax_type := getattr(config, "softmax_type", "vanilla")) != "vanilla":
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            is_learnt = softmax_type == "learnable"  # else "off-by-one"
            self.softmax_offset = torch.nn.Parameter(torch.zeros(heads), requires_grad=is_learnt)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """Return ``[T_local, 1, Hq * D]``.

        Args:
            query: ``[T_local, 1, Hq, D]``, the tokens this rank owns; heads of this tensor-parallel
                rank.
            key: ``[T_local, 1, Hkv, D]``.
            value: as key.
            attention_mask: must be ``None``: the mask is the plan's.
            attn_mask_type: of the layer; ``None`` or any, since the plan's mask replaces it.
            attention_bias: must be ``None``.
            packed_seq_params: must be ``None``: the plan knows the sequences.

        Raises:
            RunError: if a tensor has another form, or one that must be missing is there.
        """
        given = {
            "attention_mask": attention_mask,
            "attention_bias": attention_bias,
            "packed_seq_params": packed_seq_params,
        }
        for name, value_given in given.items():
            if value_given is not None:
                raise RunError(f"expected {name} None: the plan has masks and sequences; omit it")
        if query.ndim != 4 or query.shape[1] != 1:
            raise RunError(
                f"expected query [T_local, 1, Hq, D], one packed batch, got {list(query.shape)}; "
                "use micro batches of 1"
            )
        q, k, v = (tensor[:, 0] for tensor in (query, key, value))
        plan = self._plans.layers.of(self._layer)
        out = DCPAttn.apply(plan, q, (k, v), softmax_scale=self._scale, sinks=self.softmax_offset)
        return out.flatten(1)[:, None]
