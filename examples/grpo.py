"""Train with GRPO on groups that share a prompt: a group is a row, its rollouts are branches.

```
torchrun --nproc-per-node 2 examples/grpo.py --steps 3
python examples/grpo.py --steps 3 --separate
```

Both print the same losses. The first packs each group once, as the prompt and its rollouts, and
spreads the batch over the ranks. With ``--separate`` one process computes each prompt with each
rollout, with plain causal attention. Advantages and the log-probs of the sampling policy and of
the reference are columns with a value per token.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from documents import read_documents
from gpt import GPT, GPTConfig
from torch.nn import functional

from dcp_dsl import Mask, Sample, Spec
from dcp_planner import ModelShape
from dcp_runtime import (
    DCPAttn,
    DCPDataloader,
    DCPExecutor,
    LocalData,
    LookAhead,
    Packing,
    Planning,
    RowRules,
    sum_gradients,
)

SPEC = Spec.from_text(
    "segment grp = prompt[prompt_len] branch rollout[rollout_lens]*  mask group = paths"
)
COLUMNS = ("advantages", "old_log_probs", "reference_log_probs")
CLIP, KL_WEIGHT, CONFIG = 0.2, 0.05, GPTConfig(layers=2, width=64)
GROUPS, PROMPT, ROLLOUTS, LONGEST = 8, 96, 6, 48

Row: TypeAlias = dict[str, Any]  # Any: numbers and lists of them
Train: TypeAlias = Callable[[GPT, list[Row], int], list[tuple[float, float]]]
"""Trains a policy for some steps; returns loss and gradient norm of each."""


def main() -> None:
    """Train some steps on one batch of groups; print what packing saves, and every loss."""
    start(__doc__, sampled_groups, savings, train_packed, train_separate)


def start(
    about: str,
    sample: Callable[[], tuple[list[Row], GPT]],
    saves: Callable[[list[Row]], str],
    together: Train,
    alone: Train,
) -> None:
    """Train on what is sampled, together or each rollout alone, as the command line says."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--separate", action="store_true", help="rollouts alone, on one process")
    arguments = parser.parse_args()
    if "RANK" in os.environ:  # torchrun sets it
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        rows, policy = sample()
        says = dist.get_rank() == 0
        if says:
            print(saves(rows))
        train = alone if arguments.separate else together
        for step, (loss, norm) in enumerate(train(policy, rows, arguments.steps)):
            if says:
                print(f"step {step}: loss {loss:.6f}, gradient norm {norm:.4f}", flush=True)
    finally:
        dist.destroy_process_group()


def sampled_groups() -> tuple[list[Row], GPT]:
    """Return groups with their columns, and the policy that sampled them.

    Documents serve as rollouts; the reward of a rollout is its share of the letter e.
    """
    torch.manual_seed(0)
    policy = GPT(CONFIG)
    documents = (row for row in read_documents(4096) if len(row["answer_lens"]) >= ROLLOUTS)
    groups = [group_of(row) for row in islice(documents, GROUPS)]
    with torch.no_grad():
        for group in groups:
            group["reference_log_probs"] = scored(policy, group)
        for weight in policy.parameters():
            weight += 0.02 * torch.randn(weight.shape)  # as if trained since then
        for group in groups:
            group["old_log_probs"] = scored(policy, group)
    return groups, policy


def group_of(row: Row) -> Row:
    """Return a group: a prompt, its rollouts, and the advantage of each over their mean."""
    ends = np.cumsum([row["question_len"], *row["answer_lens"]])[: ROLLOUTS + 1].tolist()
    parts = [bytes(row["tokens"])[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    prompt, rollouts = parts[0][:PROMPT], [part[:LONGEST] for part in parts[1:]]
    rewards = np.array([part.count(b"e") / len(part) for part in rollouts])
    scores = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    lengths = [len(part) for part in rollouts]
    return {
        "tokens": list(b"".join([prompt, *rollouts])),
        "prompt_len": len(prompt),
        "rollout_lens": lengths,
        "is_rollout": [0] * len(prompt) + [1] * sum(lengths),
        "advantages": [0.0] * len(prompt) + np.repeat(scores, lengths).tolist(),
    }


def separate(group: Row) -> list[list[int]]:
    """Return for each rollout the positions of the prompt and of the rollout in the row."""
    begin, found = group["prompt_len"], []
    for length in group["rollout_lens"]:
        found.append([*range(group["prompt_len"]), *range(begin, begin + length)])
        begin += length
    return found


def log_probs_of(model: GPT, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-prob of each token but the first, ``[T - 1]``, of one causal sequence."""

    def attend(_: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, kv[:, 0], kv[:, 1]))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)

    logits = model(tokens, torch.arange(len(tokens)), attend)
    return logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


def scored(model: GPT, group: Row) -> list[float]:
    """Return the log-prob of each token of a group as inference engines report it: 0 in prompts."""
    tokens, found = torch.tensor(group["tokens"]), torch.zeros(len(group["tokens"]))
    for path in separate(group):
        found[path[1:]] = log_probs_of(model, tokens[path])
    found[: group["prompt_len"]] = 0.0
    return found.tolist()


def policy_terms(
    log_probs: torch.Tensor, advantages: torch.Tensor, old: torch.Tensor, reference: torch.Tensor
) -> torch.Tensor:
    """Return the loss of every token: the clipped objective and the distance from the reference."""
    ratio = (log_probs - old).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    away = reference - log_probs
    return KL_WEIGHT * (away.exp() - away - 1) - gain


def train_packed(model: GPT, groups: list[Row], steps: int) -> list[tuple[float, float]]:
    """Train on packed groups over all ranks."""
    rules = RowRules(loss_column="is_rollout", extra_columns=COLUMNS)
    budget = sum(len(group["tokens"]) for group in groups)
    found = train_on(model, groups, SPEC.mask("group"), rules, budget, steps)
    return [figures for _, _, figures in found]


def train_on(
    model: GPT, rows: Sequence[Row], mask: Mask, rules: RowRules, budget: int, steps: int
) -> Iterator[tuple[LocalData, torch.Tensor, tuple[float, float]]]:
    """Yield data, log-probs of its targets, loss and gradient norm of every step, on all ranks."""
    shape = ModelShape(CONFIG.q_heads, CONFIG.kv_heads, CONFIG.head_dim, dtype_bytes=4)
    packing, ahead = Packing(token_budget=budget), LookAhead(processes=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with (
        DCPExecutor() as executor,
        DCPDataloader(rows, mask, packing, rows=rules, planning=Planning(shape),
                      look_ahead=ahead) as loader,
    ):  # fmt: skip
        for _ in range(steps):
            for data, plan in loader:
                prepared = executor.prepare(plan)
                logits = model(
                    data.tokens,
                    data.position_ids,
                    lambda _, q, kv, prepared=prepared: DCPAttn.apply(prepared, q, kv),
                )
                log_probs = logits.log_softmax(-1)[data.target_rows, data.target_ids]
                columns = (data.target_extra[name] for name in COLUMNS)
                terms = policy_terms(log_probs, *columns) * data.target_weights
                figures = update(model, optimizer, terms.sum() / data.num_targets)
                yield data, log_probs.detach(), figures


def train_separate(model: GPT, groups: list[Row], steps: int) -> list[tuple[float, float]]:
    """Train on one process on every prompt with every rollout."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    targets = sum(sum(group["rollout_lens"]) for group in groups)
    for _ in range(steps):
        terms = []
        for group in groups:
            tokens = torch.tensor(group["tokens"])
            for path in separate(group):
                own = path[group["prompt_len"] :]
                log_probs = log_probs_of(model, tokens[path])[-len(own) :]
                columns = (torch.tensor(group[name])[own] for name in COLUMNS)
                terms.append(policy_terms(log_probs, *columns).sum())
        losses.append(update(model, optimizer, torch.stack(terms).sum() / targets))
    return losses


def update(model: GPT, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> tuple[float, float]:
    """Sum gradients and loss over the ranks and take a step; return loss and gradient norm."""
    optimizer.zero_grad()
    loss.backward()
    sum_gradients(model)
    whole = loss.detach().clone()
    dist.all_reduce(whole)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return whole.item(), float(norm)


def savings(groups: list[Row]) -> str:
    """Return how many tokens and floating point operations of a forward pass packing saves."""
    paths = [path for group in groups for path in separate(group)]
    packed = sum(len(group["tokens"]) for group in groups)
    pairs = sum(bound(group).num_pairs for group in groups)
    one = flops(packed, pairs)
    every = flops(sum(map(len, paths)), sum(len(path) * (len(path) + 1) // 2 for path in paths))
    return (
        f"{len(groups)} groups of {ROLLOUTS}: {packed:,} tokens packed, {sum(map(len, paths)):,} "
        f"in separate sequences; {one / 1e9:.2f} and {every / 1e9:.2f} GFLOP, "
        f"{every / one:.2f} times"
    )


def bound(group: Row) -> Any:  # Any: a form of the mask
    """Return the mask of a group."""
    sample = {name: group[name] for name in ("prompt_len", "rollout_lens")}
    return SPEC.mask("group").bind(Sample(sample, len(group["tokens"])))


def flops(tokens: int, pairs: int) -> float:
    """Count FLOPs of a forward pass: those of weights by tokens, those of attention by pairs."""
    weights = sum(weight.numel() for weight in GPT(CONFIG).parameters() if weight.ndim == 2)
    return 2.0 * weights * tokens + 4.0 * CONFIG.layers * CONFIG.width * pairs


if __name__ == "__main__":
    main()
