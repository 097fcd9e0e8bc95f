"""Trainers over loaders for the runs of test_trainer.py, on ranks."""

import re
from pathlib import Path

import torch
from loader_options import Stream, make_loader
from trainer_rows import evaluated_rows, trained_rows
from trainer_runs import ALONE, SPEC, OwnLoss, model_of, rank_loss
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import DCPTrainerMixin

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
