"""How to meet each refusal of the mixin, on ranks, which then find its words."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import torch.distributed as dist
from rank_trainers import loader_of, trainer_of
from trainer_rows import evaluated_rows, rows
from trainer_runs import EVERY_STEP, ROUTER, SMALL, AddedTermForCausalLM, OwnLoss, Run, model_of
from transformers import Trainer

from dcp_dsl import Spec
from dcp_planner import Cluster
from dcp_runtime import DCPDataloader, DCPTrainerMixin, Planning

RUN = Run({"max_steps": 1})
EVALUATED = replace(SMALL, options=EVERY_STEP)


class Behind(DCPTrainerMixin, OwnLoss, Trainer):
    """A class whose loss the mixin in front of it replaces."""


class Old(DCPTrainerMixin, SimpleNamespace):
    """A trainer without the parts of the loop that transformers has from 5.8 on."""


def options(run=RUN, **chosen):
    """Train with options of the trainer."""
    return lambda folder: trainer_of(run, folder, **chosen).train()


def packing(**chosen):
    return lambda folder: trainer_of(replace(RUN, packing=chosen), folder).train()


def changed(change, run=RUN, call="train"):
    """Train after a change of the trainer, its arguments or its data."""

    def meet(folder):
        trainer = trainer_of(run, folder)
        change(trainer)
        getattr(trainer, call)(*([None] if call == "predict" else []))

    return meet


def argument(**values):
    """Train with arguments that only other machines or packages would take."""
    return changed(lambda trainer: vars(trainer.args).update(values))


def attribute(run=RUN, call="train", **values):
    """Call a trainer with what its constructor would have kept."""
    return changed(lambda trainer: vars(trainer).update(values), run, call)


def first_fsdp(folder):
    trainer = trainer_of(RUN, folder)
    trainer.accelerator.state.fsdp_plugin = SimpleNamespace(fsdp_version=1)
    try:
        trainer.train()
    finally:
        trainer.accelerator.state.fsdp_plugin = None


def divided(trainer):
    trainer.accelerator.gradient_accumulation_steps = 3


def other_loss(trainer):
    trainer.model.loss_function = lambda logits, **_: logits.mean()


def own_term(trainer):
    config = model_of(RUN, "dcp").config
    trainer.model = trainer.model_wrapped = AddedTermForCausalLM(config)


def loader_for_one(trainer):
    trainer.train_dataset = DCPDataloader(
        rows(), Spec.from_text("mask m = causal").mask("m"),
        planning=Planning(cluster=Cluster(devices_per_node=1), rank=0),
    )  # fmt: skip


def same_loader(trainer):
    trainer.eval_dataset = {"a": trainer.train_dataset}


def other_ranks(trainer):
    trainer.eval_dataset = loader_of(RUN, evaluated_rows("a"), replicas=2)


def class_behind(folder):
    trainer = trainer_of(RUN, folder)
    Behind(trainer.model, trainer.args, train_dataset=trainer.train_dataset).train()


def resumed(change):
    """Resume from a checkpoint whose state was changed."""

    def meet(folder):
        checkpoint = folder / "changed"
        if dist.get_rank() == 0:
            shutil.copytree(folder.parent / "epochs" / "checkpoint-4", checkpoint)
            path = checkpoint / "trainer_state.json"
            state = json.loads(path.read_text())
            change(state["stateful_callbacks"])
            path.write_text(json.dumps(state))
        dist.barrier()
        trainer_of(RUN, folder).train(resume_from_checkpoint=str(checkpoint))

    return meet


REFUSALS = {
    "a loader for other ranks": changed(loader_for_one),
    "Packing(group='best')": packing(replicas=2, group="best"),
    "Packing.micro_batches": packing(micro_batches=2),
    "train_dataset of rows": attribute(train_dataset=[]),
    "dataloader_drop_last": options(dataloader_drop_last=True),
    "train_sampling_strategy": options(train_sampling_strategy="group_by_length"),
    "data_collator": attribute(data_collator=lambda items: items),
    "auto_find_batch_size": options(auto_find_batch_size=True),
    "checkpoints of others": resumed(lambda saved: saved.pop("DCPProgress")),
    "damaged checkpoints": resumed(
        lambda saved: saved["DCPProgress"]["attributes"].update(steps=-1)
    ),
    "compute_loss of a class behind": class_behind,
    "terms that a model adds": changed(own_term),
    "model.loss_function": changed(other_loss),
    "label_smoothing_factor with routers": options(Run(**ROUTER), label_smoothing_factor=0.1),
    "neftune_noise_alpha": options(neftune_noise_alpha=5.0),
    "use_liger_kernel": argument(use_liger_kernel=True),
    "FSDP version 1": first_fsdp,
    "deepspeed": attribute(is_deepspeed_enabled=True),
    "parallelism_config": attribute(get_cp_size=lambda: 2),
    "models sharded when they are loaded": attribute(is_distributed_loading_by_transformers=True),
    "DataParallel": argument(_n_gpu=2),
    "transformers before 5.8": lambda folder: Old().train(),
    "losses that accelerate divides": changed(divided),
    "eval_dataset of rows": attribute(EVALUATED, eval_dataset=[]),
    "eval_dataset of rows, evaluated": attribute(EVALUATED, "evaluate", eval_dataset={"a": []}),
    "eval_dataset is train_dataset": changed(same_loader, EVALUATED),
    "eval_dataset of other ranks": changed(other_ranks, EVALUATED),
    "compute_metrics": attribute(EVALUATED, "evaluate", compute_metrics=len),
    "predict": attribute(call="predict"),
}
