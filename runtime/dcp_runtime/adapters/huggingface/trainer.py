"""`DCPTrainerMixin`: Hugging Face's trainer over a `DCPDataloader`."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import accumulate, islice
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

from dcp_runtime.adapters.huggingface.model_check import NAME
from dcp_runtime.adapters.huggingface.trainer_checks import (
    base_model,
    check_evaluation,
    check_training,
    num_ranks,
)
from dcp_runtime.adapters.huggingface.trainer_loss import (
    COEFFICIENTS,
    EXPERTS_PER_TOKEN,
    check_added_terms,
    router_loss,
    setting,
    without_token_loss,
)
from dcp_runtime.adapters.huggingface.trainer_progress import (
    EpochBatches,
    TrainingPlace,
    is_sized,
    progress_callback,
    saved_place,
    steps_of_epochs,
)
from dcp_runtime.data.dataloader import DCPDataloader
from dcp_runtime.data.local_data import LocalData, next_token_loss
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import LayerPlans
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.plans.batch_plans import batch_note, note_batch
from dcp_runtime.transport.group_store import Group, process_group

Inputs: TypeAlias = dict[str, Any]  # Any: as the trainer passes them on


class DCPTrainerMixin:
    """A mixin in front of a trainer: ``class MyTrainer(DCPTrainerMixin, Trainer): ...``.

    Its ``train_dataset`` is a `DCPDataloader` over all ranks, its model has
    ``attn_implementation="dcp"``. A step takes ``gradient_accumulation_steps`` of the loader's
    batches, a multiple of its `Packing.micro_batches`, and at the end of an epoch those that are
    left; the loss is the mean over all their targets. Every epoch runs to its own end.
    `DistributedDataParallel` averages gradients, so each rank's loss is multiplied by the number of
    ranks. The loss is that of the trainer: with ``label_smoothing_factor``, the router loss of the
    model, or a ``compute_loss_func``, which gets `LocalData` in place of labels and returns this
    rank's share: the sum of its terms divided by ``num_items_in_batch``.

    Checkpoints hold the state of the loader, so that resuming reads and plans nothing twice.
    An ``eval_dataset`` is a `DCPDataloader`, or a dict of them; its loss is the mean over all its
    targets, the same on every rank.

    Raises:
        RunError: from ``train``, ``evaluate`` and ``predict``: if the data set is no
            `DCPDataloader`, the model has another attention, or a setting would be silently left
            out; from ``train`` also if a checkpoint holds no state of the loader.
    """

    loss_is_scaled_for_ga = True  # else the trainer may divide the loss by the accumulation steps
    dcp_executor: DCPExecutor | None = None

    def create_executor(self, group: Group | None) -> DCPExecutor:
        """Return the executor of a run of ``train`` or ``evaluate``; override it to set options.

        Args:
            group: ranks that share a batch: those of a replica; ``None`` for all.
        """
        return DCPExecutor(group)

    def train(self: Any, *args: Any, **others: Any) -> Any:  # Any: the trainer's
        """Train as the trainer does, with an executor for that time."""
        check_training(self, DCPTrainerMixin)
        if self.model_wrapped is self.model and not self.is_fsdp_enabled:
            # An evaluation before has marked the model as prepared (accelerate 1.15): training
            # would leave it unwrapped, and nothing would add the gradients of the ranks.
            self.model._is_accelerate_prepared = False
        self._dcp_places: dict[int, TrainingPlace] = {}
        progress = progress_callback(self)
        self.add_callback(progress)
        try:
            with self._executor_for(self.train_dataset):
                return super().train(*args, **others)  # type: ignore[misc]
        finally:
            self.remove_callback(type(progress))

    def evaluate(self: Any, eval_dataset: Any = None, *args: Any, **others: Any) -> Any:
        """Evaluate as the trainer does, under the plans of a `DCPDataloader` or a dict of them."""
        given = self._given(eval_dataset)
        loaders = list(given.values()) if isinstance(given, dict) else [given]
        check_evaluation(self, given)
        if not loaders or self.model.config._attn_implementation != NAME:
            return super().evaluate(eval_dataset, *args, **others)  # type: ignore[misc]
        with self._executor_for(loaders[0]):
            return super().evaluate(eval_dataset, *args, **others)  # type: ignore[misc]

    def _given(self: Any, eval_dataset: Any) -> Any:
        """Return the data set that an argument of the trainer's methods stands for."""
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        return self.eval_dataset[given] if isinstance(given, str) else given

    def predict(self: Any, *args: Any, **others: Any) -> Any:
        """Predict as the trainer does, with another attention than that of plans."""
        if self.model.config._attn_implementation == NAME:
            raise RunError(
                "DCPTrainerMixin: predict returns the logits of whole sequences, and each rank "
                "holds some tokens of them; predict rows with another implementation: "
                "trainer.model.set_attn_implementation('sdpa')"
            )
        return super().predict(*args, **others)  # type: ignore[misc]

    @contextmanager
    def _executor_for(self: Any, loader: DCPDataloader) -> Iterator[None]:
        """Keep an executor open for the ranks that share the batches of a loader."""
        if self.dcp_executor is not None:  # evaluation between steps of training
            yield
            return
        self._dcp_checks_model = True
        self._dcp_group = _group_of(loader, self.args.device.type)
        try:
            with self.create_executor(self._dcp_group) as self.dcp_executor:
                yield
        finally:
            self.dcp_executor = None

    def get_train_dataloader(self: Any) -> DataLoader[Any]:
        """Return the loader's batches as inputs of `compute_loss`; they are packed already."""
        return DataLoader(self.train_dataset, batch_size=None, collate_fn=_inputs)

    def get_eval_dataloader(self: Any, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the batches of an evaluation, the same each time."""
        given = self._given(eval_dataset)
        if not isinstance(given, DCPDataloader):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc, no-any-return]
        given.set_epoch(0)
        return DataLoader(given, batch_size=None, collate_fn=_evaluated)

    def set_initial_training_values(self: Any, args: Any, dataloader: Any) -> Any:
        """Return what the trainer counts before a run, with the steps of each epoch counted."""
        found = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        epochs, *others, steps = found
        loader = self.train_dataset
        if not is_sized(loader):
            return found
        counts = steps_of_epochs(loader, args.gradient_accumulation_steps)
        if args.max_steps <= 0:
            whole = int(args.num_train_epochs)
            steps = sum(islice(counts, whole))
            if args.num_train_epochs > whole:
                steps += math.ceil((args.num_train_epochs - whole) * next(counts))
        elif loader.screening.policy == "skip":  # epochs may be shorter; each has a step
            epochs = steps
        else:
            epochs = next(n for n, done in enumerate(accumulate(counts), 1) if done >= steps)
        return epochs, *others, steps

    def _init_training_state(
        self: Any, max_steps: int, per_epoch: int, epochs: int, resumed: str | None, trial: Any
    ) -> tuple[int, int]:
        """Return the epoch in which the run begins, and how many batches of it are done."""
        guessed, _ = super()._init_training_state(max_steps, per_epoch, epochs, resumed, trial)  # type: ignore[misc]
        self._dcp_begin = TrainingPlace()
        if resumed is not None:
            self._dcp_begin = saved_place(self.state, resumed)
            if self.args.ignore_data_skip:  # the epoch begins anew, as the trainer has it
                known = self._dcp_begin
                self._dcp_begin = TrainingPlace(guessed if known is None else known.epoch)
        begin = self._dcp_begin
        if begin is None:
            raise RunError(
                f"DCPTrainerMixin: {resumed} holds no state of the loader for its step "
                f"{self.state.global_step}, as an older version or another trainer saved it; "
                "resume from a checkpoint of DCPTrainerMixin, or begin the epoch anew with "
                "TrainingArguments(ignore_data_skip=True)"
            )
        return begin.epoch, begin.steps * self.args.gradient_accumulation_steps

    def _run_epoch(self: Any, **given: Any) -> None:
        """Run an epoch to its own end, from where a checkpoint may have left it."""
        epoch, loader = given["epoch"], self.train_dataset
        size, begin = self.args.gradient_accumulation_steps, self._dcp_begin
        begin = begin if begin.epoch == epoch else TrainingPlace(epoch)
        if begin.loader is None:
            loader.set_epoch(epoch)
        elif not begin.is_over:
            loader.load_state_dict(begin.loader)
        # The trainer passes over the batches that are done, so that it counts on behind them.
        passed, steps = begin.steps * size, given["num_update_steps_per_epoch"]
        if begin.is_over or is_sized(loader):
            rest = 0 if begin.is_over else len(loader) - begin.batches
            # At least one: the loader says why an epoch has no batch when it is asked for one.
            steps = max(1, begin.steps + math.ceil(rest / size))
            batches = max(1, passed + rest)
            given["num_update_steps_per_epoch"], given["steps_in_epoch"] = steps, batches
        self._dcp_places, self._dcp_steps = {self.state.global_step: begin}, steps
        left = EpochBatches(passed, None if begin.is_over else loader)
        given["train_dataloader"] = DataLoader(left, batch_size=None, collate_fn=_inputs)
        with left:
            super()._run_epoch(**given)  # type: ignore[misc]

    def get_batch_samples(
        self: Any, batches: Iterator[Inputs], count: int, device: torch.device
    ) -> tuple[list[Inputs], int]:
        """Return the batches of a step, and how many targets all ranks have in them.

        The trainer steps after `count` batches. Where an epoch ends before, empty batches stand in
        front of the others, and `training_step` passes over them.
        """
        found = list(islice(batches, count))
        # `num_targets` counts those of a whole global batch, so each counts once.
        targets = sum(each["data"].num_targets for each in found if each["data"].ends_step)
        if found:
            done = self.state.global_step
            before = self._dcp_places[done]
            after = before._replace(
                steps=before.steps + 1, batches=before.batches + len(found),
                loader=self.train_dataset.state_dict(),
            )  # fmt: skip
            # Both: a checkpoint may be saved before the step is done, and after.
            self._dcp_places = {done: before, done + 1: after}
            first = found[0]
            empty = {
                "input_ids": first["input_ids"][:, :0],
                "data": replace(first["data"], rows=()), "plan": None,
            }  # fmt: skip
            found = [empty] * (count - len(found)) + found
        return found, targets

    def training_step(self: Any, model: Any, inputs: Inputs, *args: Any, **others: Any) -> Tensor:
        """Return the loss of a batch, the same on every rank, after its backward pass."""
        if "data" in inputs and inputs["plan"] is None:
            return torch.zeros((), device=self.args.device)
        loss = super().training_step(model, inputs, *args, **others)  # type: ignore[misc]
        return self.accelerator.reduce(loss, "mean")  # type: ignore[no-any-return]

    def compute_loss(
        self: Any,
        model: torch.nn.Module,
        inputs: Inputs,
        return_outputs: bool = False,
        num_items_in_batch: int | None = None,
    ) -> Any:
        """Return this rank's share of the loss, times the number of ranks."""
        if "data" not in inputs:  # a batch of evaluation with another attention
            others = return_outputs, num_items_in_batch
            return super().compute_loss(model, inputs, *others)  # type: ignore[misc]
        data: LocalData = inputs["data"].to(inputs["input_ids"].device)
        targets = data.num_targets if num_items_in_batch is None else num_items_in_batch
        smoothing = 0.0 if self.label_smoother is None else self.label_smoother.epsilon
        base = base_model(self)
        factor = 0.0 if smoothing else setting(base, *COEFFICIENTS) or 0.0
        outputs = self._outputs(model, base, inputs, data, factor)
        if self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, data, num_items_in_batch=max(1, targets))
        else:
            loss = next_token_loss(outputs.logits, data, targets, label_smoothing=smoothing)
            if factor and getattr(outputs, "aux_loss", None) is not None:
                loss = loss + factor * outputs.aux_loss
        loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _outputs(
        self: Any, model: Any, base: Any, inputs: Inputs, data: LocalData, factor: float
    ) -> Any:
        """Run the model on this rank's tokens; `aux_loss` becomes this rank's share of it."""
        plan, tokens = inputs["plan"], len(data.tokens)
        layers = LayerPlans.prepare(self.dcp_executor, plan)
        checks = self._dcp_checks_model and self.compute_loss_func is None and tokens > 0
        with without_token_loss(base) if checks else nullcontext():
            outputs = model(
                input_ids=inputs["input_ids"], position_ids=data.position_ids[None],
                use_cache=False, labels=inputs["input_ids"] if checks else None, dcp=layers,
            )  # fmt: skip
        known: Tensor | float = 0.0
        if isinstance(getattr(outputs, "aux_loss", None), Tensor):
            top_k, group = setting(base, *EXPERTS_PER_TOKEN) or 1, process_group(self._dcp_group)
            share, own = router_loss(outputs.router_logits, top_k, tokens, group)
            known = factor * own
            if not model.training:  # an evaluation is a mean over batches, a step is a sum
                share = share / (data.micro_batches * dist.get_world_size() / plan.num_devices)
            outputs.aux_loss = share
        if checks:
            self._dcp_checks_model = False
            check_added_terms(base, outputs.loss, known)
        return outputs

    def evaluation_loop(
        self: Any, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **others: Any
    ) -> Any:
        """Run the trainer's loop; the loss is the mean over all targets, not over batches."""
        self._dcp_losses: list[tuple[Tensor, int]] = []
        others["metric_key_prefix"] = metric_key_prefix
        output = super().evaluation_loop(dataloader, *args, **others)  # type: ignore[misc]
        if self._dcp_losses:
            losses = torch.stack([loss for loss, _ in self._dcp_losses]).double().cpu()
            targets = torch.tensor([count for _, count in self._dcp_losses], device="cpu")
            finite = losses.isfinite()
            if self.args.logging_nan_inf_filter and finite.any():
                losses, targets = losses[finite], targets[finite]
            mean = (losses * targets).sum() / targets.sum()
            output.metrics[f"{metric_key_prefix}_loss"] = mean.item()
        return output

    def prediction_step(
        self: Any, model: Any, inputs: Inputs, *args: Any, **others: Any
    ) -> tuple[Tensor | None, Any, Any]:
        """Return the loss of a batch, the same on every rank, and no logits."""
        if "data" not in inputs:
            return super().prediction_step(model, inputs, *args, **others)  # type: ignore[misc, no-any-return]
        inputs = self._prepare_inputs(inputs)
        data = inputs["data"]
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=data.num_targets)
            loss = self.accelerator.reduce(loss, "mean")
        # Shares of the micro-batches of a global batch add up.
        whole = loss if data.micro_batch == 0 else self._dcp_losses.pop()[0] + loss
        self._dcp_losses.append((whole, data.num_targets))
        return loss, None, None

    def _end_epoch(self: Any, is_stopping: bool) -> None:
        """Note that an epoch is over, unless training stops inside it."""
        done = self.state.global_step
        place = self._dcp_places[done]
        if not is_stopping or place.is_over or place.steps >= self._dcp_steps:
            self._dcp_places = {done: TrainingPlace(place.epoch + 1)}

    def _progress(self: Any) -> dict[str, Any]:  # Any: JSON
        """Return how far training has come, for a checkpoint."""
        done = self.state.global_step
        place = self._dcp_places.get(done)
        return {} if place is None else {"global_step": done, **place._asdict()}


def _group_of(loader: DCPDataloader, device: str) -> Group | None:
    """Return the ranks that share a batch of this rank; ``None`` for all. Collective."""
    of = loader.replicas
    if num_ranks(loader) > of.context_ranks:  # those of all replicas
        return None
    if of.count == 1 or of.group is not None:
        return of.group
    sizes = of.count, of.context_ranks
    return init_device_mesh(device, sizes, mesh_dim_names=("dp", "cp"))["cp"]


def _inputs(batch: Any) -> Inputs:  # Any: torch expects a list; without a batch size it is one item
    if batch is None:
        return {}
    data, plan = batch
    return {"input_ids": data.tokens[None], "data": data, "plan": plan}


def _evaluated(batch: Any) -> Inputs:
    inputs = _inputs(batch)
    note = batch_note(inputs["plan"])
    note_batch(inputs["plan"], replace(note, name=f"evaluation, {note.name}"))
    return inputs
