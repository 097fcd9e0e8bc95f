"""The trainings of test_trainer.py, on ranks and alone: ``trainer_ranks.py FOLDER``.

Four processes: first all are ranks of two replicas, then two are the ranks of the other runs and
two train alone. What they find lies in the folder. With names of runs behind it, two ranks run
these, and two processes the same alone.
"""

import gc
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import trainer_dense
from accelerate.state import AcceleratorState, GradientState
from rank_trainers import trainer_of
from trainer_dense import evaluated_loss, result_of
from trainer_refusals import REFUSALS
from trainer_rows import evaluated_rows, packed, trained_rows
from trainer_runs import LOOPS, RUNS, SLOW, SMALL, model_of
from transformers import TrainerCallback
from transformers.utils import logging

from dcp_runtime import RunError

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
