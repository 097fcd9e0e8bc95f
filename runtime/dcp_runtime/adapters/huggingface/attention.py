"""DCP as an attention implementation of Hugging Face models: ``attn_implementation="dcp"``.

The model stays as it is. `register_dcp` tells transformers the name; every call of the model then
brings the plans of its batch along::

    register_dcp()
    model = AutoModelForCausalLM.from_config(config, attn_implementation="dcp")
    for local_data, plan in dataloader:
        layers = LayerPlans.prepare(executor, plan)
        model(local_data.tokens[None], position_ids=local_data.position_ids[None], dcp=layers)

The mask is the plan's; scale, soft caps and sinks are the model's. Other features of a model (a
window of its own, padding, dropout, a cache) are part of the plan's mask or refused; none is left
out silently. A model whose other layers mix tokens is refused (`model_check`). Every other
implementation refuses the plans: a model takes the implementation from its config at each call, and
models that share a config share the choice that was made last.

Source: transformers' ``AttentionInterface`` and ``AttentionMaskInterface`` (version 5).
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from dcp_runtime.adapters.huggingface.model_check import (
    NAME,
    limits_of,
    note_model,
    place_of,
    walked_mask,
)
from dcp_runtime.adapters.huggingface.no_tokens import add_hooks
from dcp_runtime.adapters.huggingface.walk import ValuesOnly
from dcp_runtime.adapters.placement import PaddedPlans
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import DCPAttn, LayerPlans

_REFUSED_ARGUMENTS = ("head_mask", "output_attentions", "position_bias")
"""Arguments of an attention function that change its result and that no plan knows."""


def register_dcp() -> None:
    """Make ``attn_implementation="dcp"`` known to transformers; calling it again changes nothing.

    Raises:
        RunError: if transformers is not installed.
    """
    try:
        # By module: the package itself names all models, and type checkers read them.
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface, PreTrainedModel
    except ImportError as error:
        raise RunError(
            "the Hugging Face integration needs transformers 5: pip install 'dcp-dsl[hf]'"
        ) from error
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, refuse_padding)
    get_interface = AttentionInterface.get_interface
    # A second guard around the first would refuse the same calls.
    if not hasattr(get_interface, "__wrapped__"):
        AttentionInterface.get_interface = _guarded(get_interface)  # type: ignore[method-assign]
        # Every model asks here which implementation it gets, when it is made and when that changes.
        choose = PreTrainedModel._check_and_adjust_attn_implementation
        PreTrainedModel._check_and_adjust_attn_implementation = _noting(choose)  # type: ignore[method-assign]


def _noting(choose: Callable[..., str]) -> Callable[..., str]:
    """Have models checked that get our attention."""

    @wraps(choose)
    def noting(model: torch.nn.Module, *args: Any, **others: Any) -> str:  # Any: transformers'
        chosen = choose(model, *args, **others)
        if chosen == NAME:
            _require_interface(model)
            add_hooks(model)
            note_model(model)
        return chosen

    return noting


def _require_interface(model: Any) -> None:  # Any: of transformers
    """Refuse models of transformers that keep a table of implementations of their own."""
    is_own = not type(model).__module__.startswith("transformers.models.")  # of a notebook, say
    if not is_own and not model._can_set_attn_implementation():
        raise RunError(
            f"{type(model).__name__}: attn_implementation={NAME!r} needs layers that take their "
            "attention from transformers' AttentionInterface, and this class has none; train it "
            "without context parallelism, or take another model"
        )


def _guarded(get_interface: Callable[..., Any]) -> Callable[..., Any]:  # Any: transformers'
    """Make other implementations refuse plans, which they would silently drop."""

    @wraps(get_interface)
    def guarded(interface: Any, name: str | None, default: Any) -> Any:
        attend = get_interface(interface, name, default)
        return attend if attend is attention_forward else partial(_without_plans, name, attend)

    return guarded


def _without_plans(
    name: str | None, attend: Callable[..., Any], module: torch.nn.Module, *args: Any, **others: Any
) -> Any:  # Any: whatever a model passes on
    plans, index = others.get("dcp"), getattr(module, "layer_idx", None)
    # Layers without a number may belong to an encoder, which needs no plan.
    if isinstance(plans, LayerPlans) and index is not None:
        # The batch has reached a layer: else a later `prepare` or `close` would say that none ran.
        plans.of(index).note_layer()
        raise RunError(
            f"{place_of(module)}: expected attn_implementation={NAME!r}, which the plans of a "
            f"batch need, got {name!r} in the model's config; models made from one config share "
            f"it: call model.set_attn_implementation({NAME!r}), or make each from its own config"
        )
    return attend(module, *args, **others)


def refuse_padding(
    *_: Any, attention_mask: Any = None, **others: Any
) -> Tensor | None:  # Any: transformers'
    """Stand in for the function that builds masks: the plan holds the mask, so none is built."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise RunError(
            "the model was given an attention_mask that hides tokens; with DCP the mask is the "
            "plan's: leave attention_mask out, and pack sequences instead of padding them"
        )
    names = ("mask_function", "q_length", "kv_length")
    return walked_mask(**{name: others[name] for name in names if name in others})


def attention_forward(  # noqa: PLR0913 - the signature is transformers'
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    dcp: LayerPlans | ValuesOnly | None = None,
    **others: Any,  # Any: whatever a model passes on
) -> tuple[Tensor, None]:
    """Run one layer under its plan of the batch, which its ``layer_idx`` finds in `dcp`.

    Takes q ``[1, Hq, T_local, D]``, k and v ``[1, Hkv, T_local, D]`` of the tokens this rank owns;
    returns out ``[1, T_local, Hq, D]``, and no weights. Refuses all features that no plan has.
    """
    if isinstance(dcp, ValuesOnly):
        return dcp.attend(module, query, value, attention_mask, sliding_window), None
    index = getattr(module, "layer_idx", None)
    where = place_of(module)
    if not isinstance(dcp, LayerPlans) or index is None:
        raise RunError(
            f"{where}: attn_implementation='dcp' needs the plans of the batch; call the model with "
            "dcp=LayerPlans.prepare(executor, plan)"
        )
    prepared = dcp.of(index)
    prepared.note_layer()  # before the checks: see `_without_plans`
    _refuse(where, attention_mask, dropout, others)
    _check_sizes(where, query, key)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    padding = len(q) - dcp.own if isinstance(dcp, PaddedPlans) else 0
    q, k, v = (x[: len(x) - padding] for x in (q, k, v))
    out = DCPAttn.apply(
        prepared, q, (k, v), softmax_scale=scaling, softcap=softcap, sinks=s_aux,
        limits=limits_of(module),
    )  # fmt: skip
    if padding:
        out = torch.cat([out, out.new_zeros(padding, *out.shape[1:])])
    return out[None], None


def _refuse(
    where: str, mask: Tensor | None, dropout: float, others: dict[str, Any]
) -> None:  # Any: whatever a model passes on
    if mask is not None:
        raise RunError(
            f"{where}: the model built an attention mask of shape {list(mask.shape)}; with DCP the "
            "mask is the plan's: call register_dcp() before the model is made, and give the model "
            "no attention_mask"
        )
    if dropout:
        raise RunError(
            f"{where}: expected attention dropout 0, got {dropout:g}; set attention_dropout=0 in "
            "the model's config"
        )
    for name in _REFUSED_ARGUMENTS:
        # Tensors, or flags; `in (None, False)` would compare a tensor element by element.
        if others.get(name) is not None and others[name] is not False:
            raise RunError(
                f"{where}: this model uses `{name}`, which DCP attention does not compute; use "
                "another attn_implementation for it"
            )
    if others.get("is_causal") is False:
        raise RunError(
            f"{where}: this model's attention is bidirectional or across two sequences, by "
            "is_causal=False; DCP runs the mask of the plan over one sequence"
        )


def _check_sizes(where: str, query: Tensor, key: Tensor) -> None:
    if query.shape[0] != 1:
        raise RunError(
            f"{where}: expected a batch of 1 (the packed tokens this rank owns), got "
            f"{query.shape[0]}; pass tokens[None]"
        )
    if query.shape[2] != key.shape[2]:
        raise RunError(
            f"{where}: expected as many keys as queries, got {key.shape[2]} and {query.shape[2]}; "
            "training uses no cache: pass use_cache=False"
        )
