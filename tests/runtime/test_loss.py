"""The loss of next tokens, and all tensors of a rank's data moved together."""

import math
import random
from dataclasses import fields, replace
from itertools import product

import pytest
import torch
from target_rows import SPEC, data_of, loader_of, oracle, random_row

from dcp_runtime import RunError, next_token_loss


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
