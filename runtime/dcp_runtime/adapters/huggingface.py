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
out silently. Every other implementation refuses the plans: a model takes the implementation from
its config at each call, and models that share a config share the choice that was made last.

Source: transformers' ``AttentionInterface`` and ``AttentionMaskInterface`` (version 5).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from dcp_dsl.arrays import Ints
from dcp_runtime.data.dataloader import DCPDataloader
from dcp_runtime.data.local_data import LocalData, next_token_loss
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import DCPAttn, LayerPlans
from dcp_runtime.execute.dispatch import undispatch
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.plans.batch_plans import BatchPlan
from dcp_runtime.transport.group_store import Group, process_group

NAME = "dcp"

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
        from transformers.modeling_utils import AttentionInterface
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
            f"{_place(module)}: expected attn_implementation={NAME!r}, which the plans of a batch "
            f"need, got {name!r} in the model's config; models made from one config share it: call "
            f"model.set_attn_implementation({NAME!r}), or make each model from its own config"
        )
    return attend(module, *args, **others)


def _place(module: torch.nn.Module) -> str:
    return f"layer {getattr(module, 'layer_idx', None)} ({type(module).__name__})"


def refuse_padding(*_: Any, attention_mask: Any = None, **__: Any) -> None:  # Any: transformers'
    """Stand in for the function that builds masks: the plan holds the mask, so none is built."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise RunError(
            "the model was given an attention_mask that hides tokens; with DCP the mask is the "
            "plan's: leave attention_mask out, and pack sequences instead of padding them"
        )


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
    dcp: LayerPlans | None = None,
    **others: Any,  # Any: whatever a model passes on
) -> tuple[Tensor, None]:
    """Run one layer under its plan of the batch, which its ``layer_idx`` finds in `dcp`.

    Takes q ``[1, Hq, T_local, D]``, k and v ``[1, Hkv, T_local, D]`` of the tokens this rank owns;
    returns out ``[1, T_local, Hq, D]``, and no weights. Refuses all features that no plan has.
    """
    index = getattr(module, "layer_idx", None)
    where = _place(module)
    if not isinstance(dcp, LayerPlans) or index is None:
        raise RunError(
            f"{where}: attn_implementation='dcp' needs the plans of the batch; call the model with "
            "dcp=LayerPlans.prepare(executor, plan)"
        )
    prepared = dcp.of(index)
    prepared.note_layer()  # before the checks: see `_without_plans`
    _refuse(where, attention_mask, dropout, others)
    _check_sizes(where, prepared, query, key, sliding_window)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = DCPAttn.apply(prepared, q, (k, v), softmax_scale=scaling, softcap=softcap, sinks=s_aux)
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


def _check_sizes(
    where: str, prepared: PreparedPlan, query: Tensor, key: Tensor, window: int | None
) -> None:
    if window is not None and prepared.longest_look_back > window:
        raise RunError(
            f"{where}: the model has a window of {window} tokens, the plan's mask lets a query see "
            f"{prepared.longest_look_back} tokens back, itself included; attach a stack whose mask "
            f"for this layer is sliding({window}) or narrower"
        )
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


@torch.no_grad()
def prefill(
    model: torch.nn.Module,
    executor: DCPExecutor,
    batch: tuple[LocalData, BatchPlan],
    decoders: Sequence[int],
    group: Group | None = None,
) -> dict[int, Any]:  # Any: transformers' DynamicCache
    """Run packed prompts over all ranks; leave the keys and values of each with its decoder.

    A cache holds all tokens of a prompt but the last: ``model.generate(prompt,
    past_key_values=cache)``, under an attention of transformers, computes the last token first and
    goes on. Collective. A rank holds the keys and values of its own tokens beside those of the
    prompts that it decodes.

    Args:
        model: of transformers, with ``attn_implementation="dcp"``.
        executor: of the ranks that share the batch.
        batch: of a `DCPDataloader` over prompts, under the mask that decoding goes on with.
        decoders: for each prompt of the batch, in packed order, the rank that decodes it.
        group: ranks that share the batch, a group or a `DeviceMesh` of one dim; ``None`` for all.

    Returns:
        The caches of the prompts that this rank decodes, by their places in the batch.

    Raises:
        RunError: if there are not as many decoders as prompts, or one is no rank of the group.
    """
    from transformers.cache_utils import DynamicCache

    data, plan = batch
    ranks = dist.get_world_size(process_group(group))
    prompts = np.split(np.arange(plan.num_tokens), plan.cu_seqlens[1:-1])
    if len(decoders) != len(prompts) or not all(0 <= rank < ranks for rank in decoders):
        raise RunError(
            f"prefill: expected for each of the {len(prompts)} prompts a decoder out of {ranks} "
            f"ranks, got {list(decoders)}"
        )
    own: Any = DynamicCache()
    data = data.to(next(model.parameters()).device)
    model(
        input_ids=data.tokens[None], position_ids=data.position_ids[None], past_key_values=own,
        use_cache=True, logits_to_keep=1, dcp=LayerPlans.prepare(executor, plan),
    )  # fmt: skip
    # Tokens of the packed batch by the rank that decodes them, prompt after prompt.
    wanted: list[Ints] = [np.zeros(0, np.int64)] * ranks
    for prompt, decoder in zip(prompts, decoders, strict=True):
        # All but the last token, which `generate` computes first.
        wanted[decoder] = np.concatenate([wanted[decoder], prompt[:-1]])
    caches = {at: DynamicCache() for at, decoder in enumerate(decoders) if decoder == executor.rank}
    lengths = [len(prompts[at]) - 1 for at in caches]
    for number, layer in enumerate(own.layers):  # a layer at a time, which bounds the memory
        rows = torch.stack([layer.keys[0], layer.values[0]]).transpose(0, 2)  # [T_local, Hkv, 2, D]
        found = undispatch(rows, plan, group, wanted).transpose(0, 2)
        for cache, (keys, values) in zip(
            caches.values(), torch.split(found, lengths, 2), strict=True
        ):
            cache.update(keys[None].contiguous(), values[None].contiguous(), number)
    return caches


Inputs: TypeAlias = dict[str, Any]  # Any: as the trainer passes them on


class DCPTrainerMixin:
    """A mixin in front of a trainer: ``class MyTrainer(DCPTrainerMixin, Trainer): ...``.

    Its ``train_dataset`` is a `DCPDataloader` over all ranks, its model has
    ``attn_implementation="dcp"``. A step takes ``gradient_accumulation_steps`` of the loader's
    batches, a multiple of its `Packing.micro_batches`; the loss is the mean over all their targets.
    `DistributedDataParallel` averages gradients, so each rank's loss is multiplied by the number of
    ranks. Evaluation is as in the trainer, and needs a model with another implementation.

    Raises:
        RunError: from ``train``: if the data set is no `DCPDataloader`, the model has another
            attention, or a step would end within a global batch.
    """

    loss_is_scaled_for_ga = True  # else the trainer may divide the loss by the accumulation steps

    def train(self: Any, *args: Any, **others: Any) -> Any:  # Any: the trainer's
        """Train as the trainer does, with an executor for that time."""
        chosen = self.model.config._attn_implementation
        if not isinstance(self.train_dataset, DCPDataloader) or chosen != NAME:
            raise RunError(
                f"DCPTrainerMixin: expected train_dataset to be a DCPDataloader and a model with "
                f"attn_implementation={NAME!r}, got {type(self.train_dataset).__name__} and "
                f"{chosen!r}"
            )
        epochs = _epochs(self.train_dataset)
        self.add_callback(epochs)
        try:
            with DCPExecutor() as self.dcp_executor:
                return super().train(*args, **others)  # type: ignore[misc]
        finally:
            self.remove_callback(epochs)

    def get_train_dataloader(self: Any) -> DataLoader[Inputs]:
        """Return the loader's batches as inputs of `compute_loss`; they are packed already."""
        return DataLoader(self.train_dataset, batch_size=None, collate_fn=_inputs)

    def get_batch_samples(
        self, batches: Iterator[Inputs], count: int, device: torch.device
    ) -> tuple[list[Inputs], int]:
        """Return the batches of a step, and how many targets all ranks have in them."""
        found = list(islice(batches, count))
        if found and not found[-1]["data"].ends_step:
            raise RunError(
                f"DCPTrainerMixin: a step of {len(found)} batches ends within a global batch of "
                f"{found[-1]['data'].micro_batches}; expected gradient_accumulation_steps to be a "
                "multiple of Packing.micro_batches"
            )
        # `num_targets` counts those of a whole global batch, so each counts once.
        ended = [inputs["data"] for inputs in found if inputs["data"].ends_step]
        return found, sum(data.num_targets for data in ended)

    def compute_loss(
        self: Any,
        model: torch.nn.Module,
        inputs: Inputs,
        return_outputs: bool = False,
        num_items_in_batch: int | None = None,
    ) -> Any:
        """Return this rank's share of the loss, times the number of ranks."""
        if "data" not in inputs:  # a batch of evaluation
            others = return_outputs, num_items_in_batch
            return super().compute_loss(model, inputs, *others)  # type: ignore[misc]
        data: LocalData = inputs["data"].to(inputs["input_ids"].device)
        layers = LayerPlans.prepare(self.dcp_executor, inputs["plan"])
        outputs = model(
            input_ids=inputs["input_ids"], position_ids=data.position_ids[None], use_cache=False,
            dcp=layers,
        )  # fmt: skip
        loss: Tensor = next_token_loss(outputs.logits, data, num_items_in_batch)
        loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss


def _epochs(loader: DCPDataloader) -> Any:  # Any: transformers'
    """Return a callback that sets the epoch of the loader: after a resume it is not the first."""
    from transformers.trainer_callback import TrainerCallback

    class Epochs(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            loader.set_epoch(int(state.epoch or 0))

    return Epochs()


def _inputs(batch: Any) -> Inputs:  # Any: torch expects a list; without a batch size it is one item
    data, plan = batch
    return {"input_ids": data.tokens[None], "data": data, "plan": plan}
