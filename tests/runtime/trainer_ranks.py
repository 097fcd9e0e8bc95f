"""The trainings of test_trainer.py, on ranks and alone: ``trainer_ranks.py FOLDER``.

Four processes: first all are ranks of two replicas, then two are the ranks of the other runs and
two train alone. What they find lies in the folder. With names of runs behind it, two ranks run
these, and two processes the same alone.
"""

import gc
import json
import os
import re
import shutil
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import trainer_dense
from accelerate.state import AcceleratorState, GradientState
from loader_options import Stream, make_loader
from test_trainer import evaluated_rows, packed, rows, trained_rows
from trainer_dense import evaluated_loss, result_of
from trainer_runs import (
    ALONE,
    EVERY_STEP,
    LOOPS,
    ROUTER,
    RUNS,
    SLOW,
    SMALL,
    SPEC,
    AddedTermForCausalLM,
    OwnLoss,
    Run,
    model_of,
    rank_loss,
)
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import DCPDataloader, DCPTrainerMixin, Planning, RunError

PAGE = Path(__file__).parents[2] / "docs" / "adoption-huggingface.md"


class Noted:
    """Notes the rows of every step, by epoch."""

    def get_batch_samples(self, batches, count, device):
        found, targets = super().get_batch_samples(batches, count, device)
        if getattr(self, "iterated", None) is not batches:
            self.iterated = batches
            self.__dict__.setdefault("trained", []).append([])
        if found:
            self.trained[-1].append([each["data"].rows for each in found if each["plan"]])
        return found, targets


class MaskTrainer(Noted, DCPTrainerMixin, Trainer):
    pass


class OwnLossTrainer(OwnLoss, MaskTrainer):
    pass


def shown_trainer():
    """Return the trainer that the page shows, which chooses the options of its executor."""
    text, names = PAGE.read_text(encoding="utf-8"), {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "create_executor" in block]
    exec(block, names)
    return type("ShownTrainer", (Noted, names["MaskTrainer"]), {})


TRAINERS = {"own_loss": OwnLossTrainer, "shown": shown_trainer()}


def loader_of(run, data, **options):
    return make_loader(
        data, SPEC.stack(run.stack), token_budget=run.budget, shape=ModelShape(4, 2, 8, 4),
        block_size=8, config=PlanConfig("static:zigzag"), hidden_targets="leave_out", **options,
    )  # fmt: skip


def trainer_of(run, folder, **options):
    """Return a trainer that is ready to run; `options` are more of its arguments."""
    args = TrainingArguments(
        str(folder), use_cpu=True, ddp_backend="gloo", report_to=[], disable_tqdm=True,
        **ALONE | run.options | options,
    )  # fmt: skip
    data = trained_rows(run.data)
    data = Stream(data) if run.data == "stream" else data
    sharing = {key: run.packing[key] for key in ("replicas", "group") if key in run.packing}
    kind = (torch.optim.SGD, {"lr": args.learning_rate, "momentum": run.momentum})
    return TRAINERS.get(run.trainer, MaskTrainer)(
        model_of(run, "dcp"), args, train_dataset=loader_of(run, data, **run.packing),
        eval_dataset={n: loader_of(run, evaluated_rows(n), **sharing) for n in run.evaluated},
        compute_loss_func=rank_loss if run.has_loss_func else None,
        callbacks=[EarlyStoppingCallback(2)] if run.trainer == "stopping" else [],
        optimizer_cls_and_kwargs=kind if run.momentum else None,
    )  # fmt: skip


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


WAIT_S = 250
ALL = {**LOOPS, **RUNS, **SLOW}


class SavesWithin(TrainerCallback):
    """Saves a checkpoint inside the second step, as the one at SIGTERM may be saved."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, **others):
        if state.global_step == 1:
            self.trainer._save_checkpoint(self.trainer.model, trial=None)


class OneStep(TrainerCallback):
    """Ends a training behind its first step."""

    def on_step_end(self, args, state, control, **others):
        control.should_training_stop = True


def train(name, folder):
    trainer = trainer_of(ALL[name], folder / name)
    found = result_of(trainer, trainer.train())
    keep(found | {"rows": trainer.trained}, folder, name)
    return found["steps"][0]


def resume(name, folder, step, **options):
    """Train one step behind a checkpoint."""
    kind = "-".join([name, str(step), *options])
    trainer = trainer_of(ALL[name], folder / kind, **options)
    trainer.add_callback(OneStep)
    trainer.train(resume_from_checkpoint=str(folder / name / f"checkpoint-{step}"))
    keep({"rows": trainer.trained, "plans": trainer.train_dataset.metrics.plans}, folder, kind)


def save_within(folder, name, **options):
    """Save a checkpoint inside an epoch of two steps, or of a step; resume from it."""
    trainer = trainer_of(SMALL, folder / name, **options)
    if not options:
        trainer.add_callback(SavesWithin(trainer))
    trainer.train()
    again = trainer_of(SMALL, folder / f"{name}-again")
    again.train(resume_from_checkpoint=str(folder / name / "checkpoint-1"))
    keep({"rows": again.trained}, folder, name)


def resume_next_epoch(folder):
    """Resume from a checkpoint that was saved at the end of an epoch."""
    options = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    logs = []
    for name, checkpoint in (("next", None), ("next-again", str(folder / "next" / "checkpoint-2"))):
        trainer = trainer_of(SMALL, folder / name, **options)
        logs.append(result_of(trainer, trainer.train(resume_from_checkpoint=checkpoint))["logs"])
    keep({"logs": logs}, folder, "next")


def call_twice(folder):
    """Evaluate, train, train again and evaluate with one trainer."""
    trainer = trainer_of(SMALL, folder / "twice")
    dense = model_of(SMALL, "eager")
    losses = [(trainer.evaluate()["eval_a_loss"], evaluated_loss(dense, SMALL, "a"))]
    trainer.train()
    trainer.train()
    dense.load_state_dict(trainer.model.state_dict())
    found = trainer.evaluate(trainer.eval_dataset["a"], metric_key_prefix="test")
    losses.append((found["test_loss"], evaluated_loss(dense, SMALL, "a")))
    epoch = trainer.eval_dataset["a"].state_dict()["epoch"]
    keep({"losses": losses, "rows": trainer.trained, "next epoch": epoch}, folder, "twice")


def evaluate_rows(folder):
    """Evaluate and predict rows under another attention, as refusals of evaluation advise."""
    trainer = trainer_of(SMALL, folder / "rows", per_device_eval_batch_size=1)
    trainer.model.set_attn_implementation("sdpa")
    trainer.data_collator = lambda items: items[0]
    trainer.compute_metrics = lambda found: {"targets": int((found.label_ids != -100).sum())}
    packs = packed(evaluated_rows("a"), SMALL.budget)
    batches = [trainer_dense.dense_batch(pack, SMALL.stack) for pack in packs]
    trainer.eval_dataset = batches
    metrics = trainer.evaluate()
    logits = torch.from_numpy(trainer.predict(batches).predictions)
    dense = model_of(SMALL, "eager")
    with torch.no_grad():
        wanted = torch.cat([dense(**batch).logits for batch in batches])
    loss = evaluated_loss(dense, SMALL, "a")
    targets = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    pairs = [(metrics["eval_loss"], loss), (metrics["eval_targets"], targets)]
    keep({"numbers": pairs, "logits": (logits, wanted)}, folder, "rows")


def refuse(folder):
    """Keep the words of every refusal."""
    words = dict.fromkeys(REFUSALS, "")
    for number, (name, meet) in enumerate(REFUSALS.items()):
        try:
            meet(folder / f"refused-{number}")
        except RunError as error:
            words[name] = str(error)
    keep(words, folder, "refusals")


def train_alone(name, folder):
    """Train in one process; the epochs of a loop are those that the ranks have noted."""
    run = ALL[name]
    if name not in LOOPS:
        found = trainer_dense.train(run, folder / f"{name}-alone")
    else:
        noted, data = load(folder / f"{name}-0.pt"), trained_rows(run.data)
        epochs = [
            [[data[row] for row in rows] for step in epoch for rows in step]
            for epoch in noted["rows"]
        ]
        found = trainer_dense.train_epochs(run, epochs, noted["steps"][1])
    save(found, folder / f"{name}-alone.pt")


def keep(found, folder, name):
    save(found, folder / f"{name}-{dist.get_rank()}.pt")


def save(found, path):
    torch.save(found, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def load(path):
    limit = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < limit, f"no {path}"
        time.sleep(0.1)
    return torch.load(path)


def join(folder, ranks):
    """Make a world of the first ranks."""
    os.environ.update(WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    rank, store = int(os.environ["RANK"]), f"file://{folder}/world-{ranks}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)


def leave():
    dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def run_on_two(names, folder):
    """Run what two ranks run."""
    for name in names:
        steps = train(name, folder)
        if name in LOOPS:
            for step in range(1, 3 if name == "stream" else steps):  # its epochs are alike
                resume(name, folder, step)
    if "epochs" in names:
        resume("epochs", folder, 4, ignore_data_skip=True)
        resume("epochs", folder, 4, gradient_accumulation_steps=1)
        save_within(folder, "step")
        save_within(folder, "stopped", max_steps=1, save_strategy="epoch")
        resume_next_epoch(folder)
        call_twice(folder)
        evaluate_rows(folder)
        refuse(folder)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    gc.freeze()  # a trainer looks for garbage at its start
    folder, rank, names = Path(sys.argv[1]), int(os.environ["RANK"]), sys.argv[2:]
    if not names:
        join(folder, 4)
        for name in (name for name in RUNS if RUNS[name].ranks == 4):
            train(name, folder)
        leave()
    if rank < 2:
        join(folder, 2)
        both = [*LOOPS, *(name for name in RUNS if RUNS[name].ranks == 2)]
        run_on_two(names or both, folder)
        leave()
    else:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            del os.environ[name]
        for name in (names or [*RUNS, *LOOPS])[rank - 2 :: 2]:
            train_alone(name, folder)


if __name__ == "__main__":
    main()
