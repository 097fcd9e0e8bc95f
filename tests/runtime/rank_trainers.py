"""Trainers over loaders for the runs of test_trainer.py, on ranks."""

from pathlib import Path

import torch
from loader_options import Stream, make_loader
from trainer_rows import evaluated_rows, trained_rows
from trainer_runs import ALONE, SPEC, OwnLoss, model_of, rank_loss
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import DCPExecutor, DCPTrainerMixin, RunLog


class MaskTrainer(DCPTrainerMixin, Trainer):
    """Notes the rows of every step, by epoch."""

    def get_batch_samples(self, batches, count, device):
        found, targets = super().get_batch_samples(batches, count, device)
        if getattr(self, "iterated", None) is not batches:
            self.iterated = batches
            self.__dict__.setdefault("trained", []).append([])
        if found:
            self.trained[-1].append([each["data"].rows for each in found if each["plan"]])
        return found, targets


class OwnLossTrainer(OwnLoss, MaskTrainer):
    pass


class LoggedTrainer(MaskTrainer):
    """Chooses the options of its executor."""

    def create_executor(self, group):
        log = RunLog(Path(self.args.output_dir) / "log")
        return DCPExecutor(group, "reference", 33.0, run_log=log)


TRAINERS = {"own_loss": OwnLossTrainer, "logged": LoggedTrainer}


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
