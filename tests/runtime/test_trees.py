"""Trees of rollouts hold as few tokens as a trie, and train as the separate rollouts do."""

from pathlib import Path

import pytest
import torch
from losses_model import Model, attend_causally
from tree_rollouts import agent_log, nodes_of_trie, shares
from trees_ranks import CASES, of_sequences, policy_terms

from dcp_runtime import group_rows


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    saved = {}
    for ranks in (1, 4):
        folder = tmp_path_factory.mktemp("trees")
        start_ranks(ranks, Path(__file__).with_name("trees_ranks.py"), folder, folder)
        saved[ranks] = [torch.load(folder / f"found-{rank}.pt") for rank in range(ranks)]
    return saved


def separate(model, rows, *, once):
    """Return the loss and the log-probabilities of rollouts that are run one by one."""
    total, targets, log_probs = 0.0, 0.0, {}
    for number, (row, share) in enumerate(zip(rows, shares(rows), strict=True)):
        tokens = torch.tensor(row["tokens"])
        places = torch.arange(len(tokens))
        logits, _, _ = model(tokens, places, attend_causally([len(tokens)]))
        own = logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        counted = torch.tensor(row["response_mask"])[1:]
        weights = counted.double()
        if once:  # a weight is a float32
            weights = torch.where(counted > 0, 1 / torch.tensor(share[1:]), 0.0).double()
            targets += sum(1 / n for n, is_own in zip(share[1:], counted, strict=True) if is_own)
        else:
            targets += int(counted.sum())
        columns = (
            torch.tensor(row[name], dtype=torch.float64)[1:] for name in ("advantages", "old")
        )
        total = total + (policy_terms(own, *columns) * weights).sum()
        log_probs[number] = torch.cat([torch.zeros(1).double(), own * counted])
    return total / round(targets), log_probs


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_trees_train_as_separate_rollouts_do(found, name, ranks):
    model, rows = Model(), agent_log(3)
    loss, log_probs = separate(model, rows, once=name == "once")
    if name == "sequence":
        loss = of_sequences(log_probs, rows)
    loss.backward()
    for rank in found[ranks]:
        assert (rank[name]["trees"] > 1) == (name == "budget")
        assert float(rank[name]["loss"]) == pytest.approx(loss.item(), rel=1e-12)
        for weight_name, weight in model.named_parameters():
            wanted = torch.zeros_like(weight) if weight.grad is None else weight.grad
            got = rank[name]["gradients"][weight_name]
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14, msg=weight_name)
        assert rank[name]["log_probs"].keys() == log_probs.keys()
        for number, wanted in log_probs.items():
            got = rank[name]["log_probs"][number]
            torch.testing.assert_close(got, wanted.detach(), rtol=1e-12, atol=1e-14)


def test_trees_hold_as_few_tokens_as_a_trie():
    for seed in range(1000):
        rows = agent_log(seed, rollouts=1 + seed % 12, words=4)
        trees = group_rows(rows)
        assert trees.tokens == sum(len(row["tokens"]) for row in trees) == nodes_of_trie(rows)
