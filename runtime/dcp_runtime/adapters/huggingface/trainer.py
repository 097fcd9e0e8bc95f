"""`DCPTrainerMixin`: Hugging Face's trainer over a `DCPDataloader`."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dcp_runtime.adapters.huggingface.model_check import NAME
from dcp_runtime.data.dataloader import DCPDataloader
from dcp_runtime.data.local_data import LocalData, next_token_loss
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import LayerPlans
from dcp_runtime.execute.executor import DCPExecutor

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
