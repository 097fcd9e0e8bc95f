"""One process that packs and labels with its own code and trains under dense masks."""

from functools import partial

import torch
from test_trainer import evaluated_rows, packed, trained_rows
from torch.nn import functional
from trainer_runs import (
    ALONE,
    NORM,
    RATE,
    SPEC,
    OwnLoss,
    dense_loss,
    model_of,
)
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from dcp_dsl import Sample, dense_mask


class OwnLossTrainer(OwnLoss, Trainer):
    pass


def train(run, folder):
    """Train with Hugging Face's trainer itself, a packed batch under a dense mask at a time."""
    options = ALONE | run.options
    for name in list(options):
        if name.startswith(("ddp_", "fsdp", "dataloader_")):
            del options[name]
    shared = run.packing.get("replicas", 1)
    options["gradient_accumulation_steps"] *= shared
    args = TrainingArguments(
        str(folder), use_cpu=True, report_to=[], disable_tqdm=True,
        train_sampling_strategy="sequential",
        **options | {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1},
    )  # fmt: skip
    packs = packed(trained_rows(run.data), run.budget)
    packs = packs[:-1] if run.packing.get("drop_last") else packs
    kind = OwnLossTrainer if run.trainer == "own_loss" else Trainer
    make = partial(dense_batch, stack=run.stack, is_masked=run.model != "mixtral")
    trainer = kind(
        model_of(run, "eager"), args, data_collator=lambda items: items[0],
        train_dataset=[make(pack) for pack in packs],
        eval_dataset={
            name: [make(pack) for pack in packed(evaluated_rows(name), run.budget)]
            for name in run.evaluated
        },
        compute_loss_func=dense_loss if run.has_loss_func else None,
        callbacks=[EarlyStoppingCallback(2)] if run.trainer == "stopping" else [],
    )  # fmt: skip
    return result_of(trainer, trainer.train())


def result_of(trainer, output):
    """Return what two trainings are compared by."""
    kept = ("loss", "grad_norm", "learning_rate", "epoch")
    return {
        "logs": [
            {key: log[key] for key in log if key in kept or key.endswith("_loss")}
            for log in trainer.state.log_history
        ],
        "loss": output.training_loss,
        "steps": (trainer.state.global_step, trainer.state.max_steps),
        "tokens": trainer.state.num_input_tokens_seen,
        "weights": {
            name: getattr(weight, "full_tensor", lambda same=weight: same)()
            for name, weight in trainer.model.state_dict().items()
        },
    }


def dense_batch(pack, stack, is_masked=True):
    """Return a packed batch as a model takes it, ``[1, T]``, masks evaluated pair by pair."""
    masks = SPEC.stack(stack).masks
    labels = []
    for row in pack:
        sees = torch.stack([dense(mask, row).diagonal(-1) for mask in masks]).any(0).tolist()
        counted = [
            label if seen else -100 for label, seen in zip(row["labels"][1:], sees, strict=True)
        ]
        labels += [-100, *counted]
    positions = torch.cat([torch.arange(len(row["tokens"])) for row in pack])
    batch = {
        "input_ids": torch.tensor([[token for row in pack for token in row["tokens"]]]),
        "position_ids": positions[None], "labels": torch.tensor([labels]),
    }  # fmt: skip
    if is_masked:
        first, *rest = [bias(mask, pack) for mask in masks]
        two = {"sliding_attention": first, "full_attention": rest[0]} if rest else first
        batch["attention_mask"] = two
    return batch


def bias(mask, pack):
    seen = torch.block_diag(*(dense(mask, row).int() for row in pack)).bool()
    return torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None]


def dense(mask, row):
    sample = Sample({name: row[name] for name in mask.columns}, len(row["tokens"]))
    return torch.from_numpy(dense_mask(mask, sample))


def train_epochs(run, epochs, max_steps):
    """Train a list of epochs, each a list of packs, with a loop written out.

    An epoch's last step takes the batches that are left; the rate falls to 0 over `max_steps`.
    """
    model, size = model_of(run, "eager"), run.options["gradient_accumulation_steps"]
    logs, steps, speeds = [], 0, [torch.zeros_like(weight) for weight in model.parameters()]
    for packs in epochs:
        for begin in range(0, len(packs), size):
            taken = [dense_batch(pack, run.stack) for pack in packs[begin : begin + size]]
            loss = mean_loss(model, taken)
            loss.backward()
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), NORM))
            rate = RATE * (1 - steps / max_steps)
            with torch.no_grad():
                for weight, speed in zip(model.parameters(), speeds, strict=True):
                    speed.mul_(run.momentum).add_(weight.grad)
                    weight -= rate * speed
                    weight.grad = None
            logs.append({"loss": loss.item(), "grad_norm": norm, "learning_rate": rate})
            steps += 1
            if steps % run.options.get("eval_steps", 1) == 0 or steps == max_steps:
                logs += [{f"eval_{n}_loss": evaluated_loss(model, run, n)} for n in run.evaluated]
            if steps == max_steps:
                return {"logs": logs, "weights": model.state_dict()}
    return {"logs": logs, "weights": model.state_dict()}


def mean_loss(model, batches):
    total, count = 0.0, 0
    for batch in batches:
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        logits, wanted = model(**inputs, use_cache=False).logits[0, :-1], batch["labels"][0, 1:]
        counted = wanted != -100
        total = total + functional.cross_entropy(logits[counted], wanted[counted], reduction="sum")
        count += int(counted.sum())
    return total / count


@torch.no_grad()
def evaluated_loss(model, run, name):
    packs = packed(evaluated_rows(name), run.budget)
    return mean_loss(model, [dense_batch(pack, run.stack) for pack in packs]).item()
