"""The loss of next tokens; the losses of docs/losses.md, on ranks and in one process."""

import math
import random
import sys
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from loader_options import SPEC, data_of, loader_of, make_loader, oracle, random_row
from losses_model import Model, attend_causally, documents, pairs, shown
from torch.nn import functional

from dcp_dsl import Spec
from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans, RunError, next_token_loss

STEP = 5  # leaves out one of three layers
COLUMNS = ("answer", "reference", "old", "advantages", "is_last")
PAGE_SPEC = Spec.from_text('for "*" use causal')


def batches(rows, mask, budget, **options):
    return make_loader(
        rows, PAGE_SPEC.mask(mask), token_budget=budget, shape=ModelShape(2, 2, 8, 8), block_size=4,
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
    """Be one rank: ``test_losses.py OUT`` saves losses and summed gradients."""
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


RANKS = 3


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    folder = tmp_path_factory.mktemp("losses")
    start_ranks(RANKS, Path(__file__), folder, folder)
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


def tensors_of(data):
    """Every tensor of a LocalData by name, however deep."""
    found = {}
    for field in fields(data):
        value = getattr(data, field.name)
        if isinstance(value, torch.Tensor):
            found[field.name] = value
        elif isinstance(value, dict):
            found |= {f"{field.name}.{name}": tensor for name, tensor in value.items()}
    return found


def test_all_tensors_move_together(monkeypatch):
    data = data_of([{"tokens": [1, 2, 3], "x": [0.5, 1, 2]}], "plain", extra_columns=("x",))
    names = set(tensors_of(data))
    assert names >= {"tokens", "labels", "target_rows", "extra.x", "target_extra.x"}
    asked, to = [], torch.Tensor.to

    def moved_to(self, *args, **options):
        asked.append(options)
        return to(self, *args, **options)

    monkeypatch.setattr(torch.Tensor, "to", moved_to)
    moved = data.to("meta", non_blocking=True)
    assert asked == [{"non_blocking": True}] * len(names)
    found = {name: tensor.device.type for name, tensor in tensors_of(moved).items()}
    assert found == dict.fromkeys(names, "meta")
    assert (moved.rows, moved.num_targets) == (data.rows, data.num_targets)
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    assert tensors_of(data.pin_memory()).keys() == names
    assert {id(tensor) for tensor in pinned} == {id(tensor) for tensor in tensors_of(data).values()}


def cross_entropy(row, target):
    """The loss of one target, number by number."""
    most = max(row)
    return most + math.log(sum(math.exp(value - most) for value in row)) - row[target]


def made(target_rows, target_ids, weights, num_targets, tokens=3):
    """A LocalData with targets of one's own."""
    data = data_of([{"tokens": list(range(tokens))}], "plain")
    return replace(
        data,
        target_rows=torch.tensor(target_rows, dtype=torch.int64),
        target_ids=torch.tensor(target_ids, dtype=torch.int64),
        target_weights=torch.tensor(weights, dtype=torch.float32),
        num_targets=num_targets,
    )


def test_the_loss_adds_all_targets_of_a_token_by_their_weights():
    logits = torch.tensor([[0.0, 1, 2, -1], [3, 0.5, 0, 0], [-2, 0, 1, 4]], requires_grad=True)
    rows, ids, weights = [1, 1, 0, 1], [0, 3, 2, 3], [1.0, 0.5, 2.0, 0.25]
    data = made(rows, ids, weights, num_targets=7)
    table, targets = logits.tolist(), list(zip(rows, ids, weights, strict=True))
    want = sum(weight * cross_entropy(table[row], target) for row, target, weight in targets)
    loss = next_token_loss(logits, data)
    assert loss.item() == pytest.approx(want / 7, rel=1e-6)
    assert next_token_loss(logits[None], data, num_targets=2).item() == pytest.approx(want / 2)
    loss.backward()
    for r, v in product(range(3), range(4)):
        share = math.exp(table[r][v]) / sum(map(math.exp, table[r]))
        gradient = sum(w * (share - (v == target)) / 7 for row, target, w in targets if row == r)
        assert logits.grad[r, v].item() == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_loss_is_summed_in_float32_or_better(dtype):
    logits = torch.tensor([[0.5, 1.5], [2, 0.25], [1, 1]], dtype=dtype)
    loss = next_token_loss(logits, made([0, 2], [1, 0], [1, 1], 2))
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    want = (cross_entropy([0.5, 1.5], 1) + cross_entropy([1, 1], 0)) / 2
    assert loss.item() == pytest.approx(want, rel=1e-6)


def test_losses_of_all_ranks_add_up_to_the_mean_over_the_batch():
    rng = random.Random(1)
    rows = [random_row(rng) for _ in range(5)]
    table = [[rng.uniform(-2, 2) for _ in range(100)] for _ in range(100)]
    loaders = [loader_of(rows, rank=rank, hidden_targets="leave_out") for rank in range(3)]
    for parts in zip(*loaders, strict=True):
        losses = [next_token_loss(torch.tensor(table)[data.tokens], data) for data, _ in parts]
        want = []
        for row in parts[0][0].rows:
            targets = oracle(rows[row], [SPEC.mask("shared")], (), keep=False)
            for token, target in zip(rows[row]["tokens"], targets, strict=True):
                if target is not None:
                    want.append(cross_entropy(table[token], target))
        assert sum(loss.item() for loss in losses) == pytest.approx(sum(want) / len(want), rel=1e-5)


@pytest.mark.parametrize("num_targets", [0, 5])
def test_a_rank_without_targets_has_loss_zero_and_gradients(num_targets):
    logits = torch.randn(3, 4, requires_grad=True)
    loss = next_token_loss(logits, made([], [], [], num_targets))
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros(3, 4))


def test_logits_of_other_tokens_are_refused():
    data = made([0], [1], [1], 1)
    says = r"expected logits \[3, V\] or \[1, 3, V\], one row per l"
    for shape in ([2, 4], [3], [2, 3, 4], [1, 2, 4]):
        with pytest.raises(RunError, match=says):
            next_token_loss(torch.zeros(shape), data)
    with pytest.raises(RunError, match=r"are on meta, the targets on cpu; give local_data.to\(log"):
        next_token_loss(torch.zeros(3, 4, device="meta"), data)


def test_targets_that_are_no_token_of_the_vocabulary_are_refused():
    rows = [{"tokens": [4, 49, 3]}, {"tokens": [1, 2, 50, 3]}]
    data, logits = data_of(rows, "plain"), torch.zeros(7, 50)
    match = r"expected targets from 0 to 49, .*, got 50 in row 1; .*loss_column with 0"
    with pytest.raises(RunError, match=match):
        next_token_loss(logits, data)
    labelled = data_of([*rows[:1], {**rows[1], "labels": [1, 2, -100, 3]}], "plain")
    assert next_token_loss(logits, labelled) > 0
    for wrong in (-100, -1):  # -100: the loss would ignore it without a word
        changed = replace(labelled, target_ids=labelled.target_ids.clone().fill_(wrong))
        with pytest.raises(RunError, match=rf"from 0 to 49, .*, got {wrong} in row 0"):
            next_token_loss(logits, changed)


if __name__ == "__main__":
    main()
