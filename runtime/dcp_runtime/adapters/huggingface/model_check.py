"""`check_model`: may a Hugging Face model run on a part of its tokens, and what may its layers see?

A model is checked by itself before its first batch; see `note_model`.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from dcp_runtime.adapters.huggingface.walk import ValuesOnly, walk
from dcp_runtime.errors import RunError
from dcp_runtime.execute.layer_limits import LayerLimits
from dcp_runtime.execute.model_checks import check_later

NAME = "dcp"  # the name of our attention among the implementations of transformers

_LIMITS, _REFUSAL = "_dcp_limits", "_dcp_refusal"
"""Attributes of an attention module and of a model; copies of a model have them, too."""

_walking: ValuesOnly | None = None


def check_model(model: Module, **inputs: Any) -> tuple[LayerLimits, ...]:
    """Check that a model computes each token for itself outside its attention.

    Two calls of the model on 13 tokens, without gradients; collective if its weights are sharded.
    `LayerPlans.prepare` checks every model with ``attn_implementation="dcp"`` before its first
    batch. Call this for a copy of a model, or if a model needs more inputs than token ids.

    Args:
        model: of transformers, with its weights, under ``attn_implementation="dcp"``.
        inputs: further arguments of the model.

    Returns:
        What each layer may see by the model's config, in the order of the layers.

    Raises:
        RunError: if a module mixes tokens, or the model cannot be called.
    """
    config = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) != NAME:
        raise RunError(
            f"check_model: expected a model of transformers with attn_implementation={NAME!r}, got "
            f"{type(model).__name__}"
        )
    vocabulary = model.get_input_embeddings().num_embeddings  # type: ignore[operator]  # transformers'
    try:
        found = walk(model, _calling(model, inputs), vocabulary, _special_ids(config))
    except Exception as error:
        raise RunError(
            f"{type(model).__name__}: whether it can run on a part of its tokens could not be "
            f"checked, a call of 13 tokens failed: {type(error).__name__}: {error}; call "
            "check_model(model, ...) with the further arguments that the model needs, before it is "
            "wrapped or cut into stages"
        ) from error
    if found.culprit:
        raise RunError(
            f"{type(model).__name__}: `{found.culprit}` gives a token another result among other "
            "tokens, or at another place in the call, and is no attention that dcp computes. A "
            "rank calls the model with its own tokens only, so that training would be silently "
            "wrong. Train this model without context parallelism, or take one whose layers outside "
            "attention compute each token for itself"
        )
    if not found.seen:
        raise RunError(
            f"{type(model).__name__}: no attention of this model comes to dcp: expected layers "
            "that take their attention from transformers' AttentionInterface, as those of most "
            "causal models do; train this model without context parallelism"
        )
    limits = []
    for module, seen in found.seen.items():
        limit = LayerLimits(
            place_of(module), seen.window, seen.chunk, seen.is_causal, found.longest,
            _most_tokens(module),
        )  # fmt: skip
        setattr(module, _LIMITS, limit)
        limits.append(limit)
    if own := [place_of(module) for module, seen in found.seen.items() if not seen.is_known]:
        warnings.warn(
            f"{type(model).__name__}: {', '.join(own)}: the model's own mask is none of causal, "
            "bidirectional, windows and chunks, and is not compared with the mask of the plan, "
            "which takes its place",
            UserWarning,
            stacklevel=2,
        )
    return tuple(limits)


def note_model(model: Module) -> None:
    """Have a model checked before its first batch."""
    setattr(model, _REFUSAL, None)
    check_later(model, _check)


def _check(model: Any) -> None:  # Any: of transformers
    if model.config._attn_implementation != NAME:  # it has changed meanwhile
        return
    why = ""
    try:
        check_model(model)
    except RunError as error:  # told when it is called: it may never be
        why = str(error)
    for part in model.modules():
        if hasattr(part, _REFUSAL):
            setattr(part, _REFUSAL, why)


def refusal_of(model: Module) -> str:
    """Return why a model cannot run, empty if it can; check it now if it is a copy, say."""
    if getattr(model, _REFUSAL) is None and not torch.compiler.is_compiling():
        _check(model)
    return getattr(model, _REFUSAL) or ""


def limits_of(module: Module) -> LayerLimits:
    """Return what an attention module may see."""
    found: LayerLimits | None = getattr(module, _LIMITS, None)
    if found is None:
        raise RunError(
            f"{place_of(module)}: the model of this layer was not checked before it was compiled; "
            "make it before LayerPlans.prepare, or call check_model(model) once"
        )
    return found


def place_of(module: Module) -> str:
    """Return the name of a layer for messages."""
    return f"layer {getattr(module, 'layer_idx', None)} ({type(module).__name__})"


def walked_mask(
    mask_function: Any = None, q_length: int = 0, kv_length: int = 0
) -> Tensor | None:  # Any: transformers'
    """Return a stand-in for a mask while a model is walked, else ``None``."""
    if _walking is None or mask_function is None:
        return None
    return _walking.mask(mask_function, q_length, kv_length)


def _calling(model: Module, inputs: dict[str, Any]) -> Callable[[ValuesOnly, Tensor, Tensor], None]:
    names = inspect.signature(model.forward).parameters
    takes_cache = "use_cache" in names or any(p.kind is p.VAR_KEYWORD for p in names.values())
    given = {"use_cache": False, **inputs} if takes_cache else inputs

    def run(attention: ValuesOnly, tokens: Tensor, positions: Tensor) -> None:
        global _walking
        _walking = attention
        try:
            model(input_ids=tokens, position_ids=positions, dcp=attention, **given)
        finally:
            _walking = None

    return run


def _special_ids(config: Any) -> frozenset[int]:  # Any: transformers'
    """Return ids that stand for something else than text, such as those of images."""
    found: set[int] = set()
    for part in (config, config.get_text_config()):
        for name, value in vars(part).items():
            if name.endswith(("token_id", "token_ids", "token_index")):
                found |= {n for n in (value if isinstance(value, list) else [value]) if n}
    return frozenset(found)


def _most_tokens(module: Module) -> int:
    """Return from how many tokens of a call on a layer's temperature counts them; 0 for never."""
    # Llama 4 scales the queries of some layers by their places in the call, in large steps that a
    # walk does not reach.
    counts = getattr(module, "attn_temperature_tuning", False) and not getattr(
        module, "use_rope", False
    )
    return max(1, int(module.floor_scale) - 1) if counts else 0  # type: ignore[arg-type]  # a number
