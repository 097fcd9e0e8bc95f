"""One rank of the losses of docs/losses.md: ``losses_ranks.py OUT``; saves summed gradients."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from loader_options import make_loader
from losses_model import Model, documents, pairs, shown

from dcp_dsl import Spec
from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans, next_token_loss

STEP = 5  # leaves out one of three layers
COLUMNS = ("answer", "reference", "old", "advantages", "is_last")
SPEC = Spec.from_text('for "*" use causal')


def batches(rows, mask, budget, **options):
    return make_loader(
        rows, SPEC.mask(mask), token_budget=budget, shape=ModelShape(2, 2, 8, 8), block_size=4,
        config=PlanConfig("static:zigzag"), **options,
    )  # fmt: skip


def gradients(loader, executor, loss_of, kept=(True, True, True)):
    """Return the loss and the gradients of all ranks and batches, added."""
    model, total, counts = Model(), torch.zeros((), dtype=torch.float64), []
    for data, plan in loader:
        layers = LayerPlans.prepare(executor, plan)
        outputs = model(
            data.tokens, data.position_ids,
            lambda n, q, kv, own=layers: DCPAttn.apply(own.of(n), q, kv), kept,
        )  # fmt: skip
        loss = loss_of(*outputs, data, plan)
        loss.backward()
        total += loss.detach()
        counts.append(len(data.tokens))
    dist.all_reduce(total)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        dist.all_reduce(weight.grad)
    summed = {name: weight.grad for name, weight in model.named_parameters()}
    return {"loss": total, "gradients": summed, "tokens": counts}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    page, rank = shown(), dist.get_rank()
    kept = page["kept_layers"](3, step=STEP)
    losses = {
        "dpo": lambda logits, _, __, data, ___: page["dpo_loss"](logits, data),
        "gspo": lambda logits, _, __, data, ___: page["gspo_loss"](logits, data, 2),
        "reward": lambda _, rewards, __, data, ___: page["reward_loss"](rewards, data),
    }
    with DCPExecutor() as executor:
        found = {
            name: gradients(
                batches(pairs(), "dpo", 60, loss_column="is_answer", extra_columns=COLUMNS),
                executor, loss,
            )
            for name, loss in losses.items()
        }  # fmt: skip

        def with_routers(logits, _, routers, data, plan):
            added = page["router_loss"](routers, 2) - page["entropy_bonus"](logits, plan)
            return next_token_loss(logits, data) + 0.1 * added

        loader = batches(documents(), "causal", 30)
        found["routers"] = gradients(loader, executor, with_routers, kept)
    torch.save({**found, "drawn": kept}, Path(sys.argv[1]) / f"found-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
