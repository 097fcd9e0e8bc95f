"""One rank that trains on trees of rollouts: ``trees_ranks.py OUT``; saves summed gradients."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from loader_options import make_loader
from losses_model import Model
from tree_rollouts import agent_log

from dcp_dsl import Spec
from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans, by_rollout, group_rows

SPEC = Spec.from_text("mask own = rollout_tree")
CASES = {
    "per_path": {"shared_targets": "per_path"},
    "once": {"shared_targets": "once"},
    "sequence": {"shared_targets": "per_path"},
    "budget": {"shared_targets": "per_path", "token_budget": 24, "micro_batches": 2},
}


def policy_terms(log_probs, advantages, old):
    """Return the clipped objective of each target."""
    ratio = (log_probs - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def of_sequences(log_probs, columns):
    """Return the mean over rollouts of a ratio for each whole rollout, clipped."""
    terms = []
    for number, own in log_probs.items():
        advantage, ratio = columns[number]["advantages"][0], (own.sum() / 50).exp()
        terms.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    return torch.stack(terms).mean()


def trained(name, executor):
    options = {"token_budget": 256, **CASES[name]}
    rows = agent_log(3)
    trees = group_rows(rows, token_budget=options["token_budget"])
    loader = make_loader(
        trees, SPEC.mask("own"), shape=ModelShape(2, 2, 8, 8), block_size=4,
        config=PlanConfig("static:zigzag"), loss_column="response_mask",
        extra_columns=("advantages", "old"), **options,
    )  # fmt: skip
    model, total, found = Model(), torch.zeros((), dtype=torch.float64), {}
    for data, plan in loader:
        layers = LayerPlans.prepare(executor, plan)
        logits, _, _ = model(
            data.tokens, data.position_ids,
            lambda n, q, kv, own=layers: DCPAttn.apply(own.of(n), q, kv),
        )  # fmt: skip
        log_probs = logits.log_softmax(-1)[data.target_rows, data.target_ids]
        terms = policy_terms(log_probs, data.target_extra["advantages"], data.target_extra["old"])
        loss = (terms * data.target_weights).sum() / data.num_targets
        if name == "sequence":
            loss = of_sequences(by_rollout(log_probs, data), rows) / dist.get_world_size()
        loss.backward()
        total += loss.detach()
        found |= {number: own.detach() for number, own in by_rollout(log_probs, data).items()}
    dist.all_reduce(total)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        dist.all_reduce(weight.grad)
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return {"loss": total, "gradients": gradients, "log_probs": found, "trees": len(trees)}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with DCPExecutor() as executor:
        found = {name: trained(name, executor) for name in CASES}
    torch.save(found, Path(sys.argv[1]) / f"found-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
