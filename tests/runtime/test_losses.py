"""The losses of docs/losses.md, on three ranks, are those of separate sequences in one process."""

from pathlib import Path

import pytest
import torch
from losses_model import Model, attend_causally, documents, pairs
from torch.nn import functional

RANKS = 3


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    folder = tmp_path_factory.mktemp("losses")
    start_ranks(RANKS, Path(__file__).with_name("losses_ranks.py"), folder, folder)
    return [torch.load(folder / f"found-{rank}.pt") for rank in range(RANKS)]


def answers_of(model, row):
    """Return log-probabilities, rewards at the end and columns of both answers, one by one."""
    ends = [row["prompt_len"], row["chosen_len"], row["rejected_len"]]
    prompt, chosen, rejected = torch.arange(sum(ends)).split(ends)
    for answer in (chosen, rejected):
        taken = torch.cat([prompt, answer])
        tokens = torch.tensor(row["tokens"])[taken]
        places = torch.arange(len(taken))
        logits, rewards, _ = model(tokens, places, attend_causally([len(taken)]))
        own = logits.log_softmax(-1)[places[len(prompt) :] - 1, tokens[len(prompt) :]]
        columns = {
            name: torch.tensor(row[name], dtype=torch.float64)[answer]
            for name in ("reference", "old", "advantages")
        }
        yield own, rewards[-1], columns


def dpo(model):
    terms = []
    for row in pairs():
        (chosen, _, first), (rejected, _, second) = answers_of(model, row)
        ratio = (chosen - first["reference"]).sum() - (rejected - second["reference"]).sum()
        terms.append(-functional.logsigmoid(0.1 * ratio))
    return torch.stack(terms).mean()


def gspo(model):
    terms = []
    for row in pairs():
        for own, _, columns in answers_of(model, row):
            ratio, advantage = (own - columns["old"]).mean().exp(), columns["advantages"][0]
            terms.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    return torch.stack(terms).mean()


def reward(model):
    terms = []
    for row in pairs():
        (_, chosen, _), (_, rejected, _) = answers_of(model, row)
        terms.append(-functional.logsigmoid(chosen - rejected))
    return torch.stack(terms).mean()


def routers(model, kept):
    """Add up the batches, with the layers that are kept."""
    total = 0.0
    for first, last in ((0, 1), (1, 2), (2, 4)):
        rows = [row["tokens"] for row in documents()[first:last]]
        lengths = list(map(len, rows))
        tokens = torch.tensor([token for row in rows for token in row])
        places = torch.cat([torch.arange(n) for n in lengths])
        logits, _, layers = model(tokens, places, attend_causally(lengths), kept)
        predicted = places[1:] > 0
        loss = functional.cross_entropy(logits[:-1][predicted], tokens[1:][predicted])
        weights = torch.cat([layer.softmax(-1) for layer in layers])
        chosen = functional.one_hot(weights.topk(2).indices, 3).sum(1).double()
        balance = 3 * (chosen.mean(0) * weights.mean(0)).sum()
        probabilities = logits.softmax(-1)
        entropy = -(probabilities * probabilities.log()).sum(-1).mean()
        total = total + loss + 0.1 * (balance - entropy)
    return total


@pytest.mark.dist
@pytest.mark.parametrize("name", ["dpo", "gspo", "reward", "routers"])
def test_a_loss_of_the_page_has_the_gradients_of_one_process(found, name):
    kept = found[0]["drawn"]
    losses = {
        "dpo": dpo, "gspo": gspo, "reward": reward, "routers": lambda model: routers(model, kept)
    }  # fmt: skip
    model = Model()
    loss = losses[name](model)
    loss.backward()
    for rank in found:
        assert rank["drawn"] == kept
        assert float(rank[name]["loss"]) == pytest.approx(loss.item(), rel=1e-12)
        for weight_name, weight in model.named_parameters():
            wanted = torch.zeros_like(weight) if weight.grad is None else weight.grad
            got = rank[name]["gradients"][weight_name]
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-13, msg=weight_name)


@pytest.mark.dist
def test_the_page_was_run_with_what_it_speaks_of(found):
    """Answers lie on several ranks, a rank has no tokens, and a layer is left out."""
    assert all(rank["dpo"]["tokens"][0] for rank in found)
    assert not all(rank["routers"]["tokens"][0] for rank in found)
    assert sorted(found[0]["drawn"]) == [False, True, True]
