"""Train with GRPO on logs of agents as they come: no layout, no lengths, a list of tokens each.

```
torchrun --nproc-per-node 2 examples/rollouts.py --steps 3
python examples/rollouts.py --steps 3 --separate
```

Both print the same losses. Agents talk for some turns and go back to an earlier turn now and then.
The first finds what their rollouts share, stores it once and spreads the trees over the ranks; with
``--separate`` one process computes every rollout alone. A turn that several rollouts share is
counted by each, with its own advantage.
"""

from itertools import islice

import numpy as np
import torch
from documents import read_documents
from gpt import GPT
from grpo import COLUMNS, CONFIG, Row, log_probs_of, policy_terms, start, train_on, update

from dcp_dsl import Spec
from dcp_runtime import RowRules, by_rollout, group_rows

MASK = Spec.from_text("mask tree = rollout_tree").mask("tree")
TASKS, RUNS, TURNS, LONGEST, BUDGET = 3, 6, 4, 40, 2048


def main() -> None:
    """Train some steps on one batch of rollouts; print what trees save, and every loss."""
    start(__doc__, sampled_rollouts, savings, train_trees, train_separate)


def savings(rollouts: list[Row]) -> str:
    """Return how many tokens and pairs trees save."""
    trees = group_rows(rollouts, token_budget=BUDGET)
    return (
        f"{trees.num_rollouts} rollouts of {trees.separate_tokens:,} tokens in {len(trees)} trees "
        f"of {trees.tokens:,}, {trees.separate_pairs / trees.pairs:.2f} times fewer pairs"
    )


def sampled_rollouts() -> tuple[list[Row], GPT]:
    """Return rollouts with their columns, and the policy that sampled them.

    Documents serve as turns. The reward of a rollout is its share of the letter e; advantages
    compare the rollouts of a task.
    """
    torch.manual_seed(0)
    policy, rng = GPT(CONFIG), np.random.default_rng(0)
    documents = (row for row in read_documents(4096) if len(row["answer_lens"]) >= RUNS * TURNS)
    rollouts = [run for row in islice(documents, TASKS) for run in runs_of(row, rng)]
    for name in ("reference_log_probs", "old_log_probs"):
        with torch.no_grad():
            for run in rollouts:
                run[name] = [0.0, *log_probs_of(policy, torch.tensor(run["tokens"])).tolist()]
            for weight in policy.parameters():
                weight += 0.01 * torch.randn(weight.shape)  # as if trained since then
    return rollouts, policy


def runs_of(row: Row, rng: np.random.Generator) -> list[Row]:
    """Return the rollouts of a task: each begins with some turns of an earlier one."""
    ends = np.cumsum([row["question_len"], *row["answer_lens"]]).tolist()
    texts = [bytes(row["tokens"])[a:b][:LONGEST] for a, b in zip([0, *ends], ends, strict=False)]
    question, *turns = texts
    runs: list[list[bytes]] = []
    for _ in range(RUNS):
        base = runs[rng.integers(len(runs))] if runs else []
        kept = base[: rng.integers(len(base) + 1)]
        runs.append([*kept, *(turns.pop() for _ in range(TURNS - len(kept)))])
    rewards = np.array([b"".join(run).count(b"e") / len(b"".join(run)) for run in runs])
    scores = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    return [
        {
            "tokens": list(question + b"".join(run)),
            "is_reply": [0] * len(question) + [1] * len(b"".join(run)),
            "advantages": [float(score)] * len(question + b"".join(run)),
        }
        for run, score in zip(runs, scores, strict=True)
    ]


def train_trees(model: GPT, rollouts: list[Row], steps: int) -> list[tuple[float, float]]:
    """Train on trees over all ranks."""
    trees = group_rows(rollouts, token_budget=BUDGET)
    rules = RowRules(
        loss_column="is_reply", extra_columns=COLUMNS, shared_targets="per_path"
    )  # a turn counts once for each rollout that holds it
    found = []
    for data, log_probs, figures in train_on(model, trees, MASK, rules, BUDGET, steps):
        # What a trainer logs: the log-probs of each rollout, on every rank.
        assert len(by_rollout(log_probs, data)) == len(rollouts)
        found.append(figures)
    return found


def train_separate(model: GPT, rollouts: list[Row], steps: int) -> list[tuple[float, float]]:
    """Train on one process on every rollout alone."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    targets = sum(sum(run["is_reply"]) for run in rollouts)
    for _ in range(steps):
        terms = []
        for run in rollouts:
            log_probs = log_probs_of(model, torch.tensor(run["tokens"]))
            columns = (torch.tensor(run[name])[1:] for name in COLUMNS)
            counted = torch.tensor(run["is_reply"])[1:]
            terms.append((policy_terms(log_probs, *columns) * counted).sum())
        losses.append(update(model, optimizer, torch.stack(terms).sum() / targets))
    return losses


if __name__ == "__main__":
    main()
