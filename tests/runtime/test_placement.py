"""The token map that trainers take: their own layouts agree with it, and so do gradients."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from placement_ranks import (
    CASES,
    LENGTHS,
    PARENTS,
    batch_of,
    loss_of,
    model_of,
    policy_loss,
    rollouts_of,
)

from dcp_dsl import Spec
from dcp_planner import ModelShape
from dcp_runtime import BatchSharder, DCPAttn, DCPExecutor, RunError

RANKS = 3
MASK = Spec.from_text("mask own = causal").mask("own")


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    folder = tmp_path_factory.mktemp("placement")
    start_ranks(RANKS, Path(__file__).with_name("placement_ranks.py"), folder, folder)
    return [torch.load(folder / f"found-{rank}.pt") for rank in range(RANKS)]


def sequences(case):
    """Return the tokens of each sequence that is trained alone, in the batch row after row."""
    found, begin = [], 0
    for lengths, parents in zip(LENGTHS, PARENTS, strict=True):
        ends = [begin + sum(lengths[: n + 1]) for n in range(len(lengths))]
        parts = [list(range(end - n, end)) for end, n in zip(ends, lengths, strict=True)]
        if case == "tree":
            found += [parts[parent] + parts[n] for n, parent in enumerate(parents) if parent >= 0]
        else:
            found += parts
        begin = ends[-1]
    return found


def alone(case):
    """Return loss and gradients of a process that runs each sequence alone, under a dense mask."""
    model, batch, counted, total = model_of("sdpa"), batch_of(), set(), 0.0
    ids, labels, weights = (batch[n].flatten() for n in ("input_ids", "labels", "weights"))
    logits = torch.zeros(1, len(ids), 67, dtype=torch.float64)
    for tokens in sequences(case):
        n = len(tokens)
        near = torch.ones(n, n).tril().bool()
        masks = [near, near.triu(-4)] if case == "layers" else [near, near]
        hooks = [
            layer.register_forward_pre_hook(with_mask(mask), with_kwargs=True)
            for layer, mask in zip(model.gpt_neox.layers, masks, strict=True)
        ]
        out = model(ids[None, tokens], use_cache=False).logits
        for hook in hooks:
            hook.remove()
        new = [k for k, token in enumerate(tokens) if token not in counted]
        counted |= set(tokens)
        chosen = [tokens[k] for k in new]
        total = total + loss_of(out[:, new], labels[None, chosen], weights[None, chosen].double())
        logits[:, tokens] = out.detach()
    total.backward()
    return total.item(), {name: each.grad for name, each in model.named_parameters()}, logits


def with_mask(mask):
    hidden = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)

    def give(_, args, kwargs):
        return args, {**kwargs, "attention_mask": hidden[None, None]}

    return give


@pytest.mark.dist
@pytest.mark.parametrize("case", CASES)
def test_a_trainer_with_our_placement_has_the_gradients_of_one_process(found, case):
    loss, gradients, logits = alone(case)
    for rank in found:
        assert float(rank[case]["loss"]) == pytest.approx(loss, rel=1e-12)
        torch.testing.assert_close(rank[case]["logits"], logits, rtol=1e-10, atol=1e-12)
        for name, wanted in gradients.items():
            torch.testing.assert_close(
                rank[case]["gradients"][name], wanted, rtol=1e-10, atol=1e-12, msg=name
            )


@pytest.mark.dist
@pytest.mark.parametrize("case", CASES)
def test_the_maps_of_all_ranks_hold_every_token_once(found, case):
    own = [rank[case] for rank in found]
    tokens = sum(rank["own"] for rank in own)
    assert tokens == batch_of()["input_ids"].numel()
    if case == "tree":
        assert len({rank["own"] for rank in own}) > 1, "no rank has padding"
    every = torch.cat([rank["indices"] for rank in own])
    assert sorted(every.tolist()) == list(range(len(every)))
    assert all(int(rank["indices"][rank["own"] - 1]) < tokens for rank in own)
    for rank in own:
        assert torch.equal(rank["ids"], rank["shard"])
        assert torch.equal(rank["joined"], batch_of()["weights"].reshape(1, -1).double())
        # Each rank made the same of the joined tensor, and padding is not part of it.
        wanted = torch.where(rank["indices"] < tokens, RANKS * (rank["indices"] + 1.0), 0.0)
        assert torch.equal(rank["joined_gradient"], wanted[None].double())


@pytest.mark.dist
def test_the_engine_of_verl_has_the_log_probs_and_gradients_of_one_process(found):
    model, log_probs = model_of("sdpa"), []
    micro_batch, advantages = rollouts_of()
    temperature = float(torch.tensor(micro_batch["temperature"]))  # a float32
    for ids in micro_batch["input_ids"]:
        logits = model(ids[None], use_cache=False).logits[0] / temperature
        log_probs.append(logits.log_softmax(-1)[torch.arange(len(ids)), torch.roll(ids, -1)])
    policy_loss(log_probs, advantages).backward()
    for rank in (each["verl"] for each in found):
        for got, wanted in zip(rank["log_probs"], log_probs, strict=True):
            torch.testing.assert_close(got[:-1], wanted.detach()[:-1], rtol=1e-10, atol=1e-12)
        for name, weight in model.named_parameters():
            torch.testing.assert_close(
                rank["gradients"][name], weight.grad, rtol=1e-10, atol=1e-12, msg=name
            )


def refused(batch, message, **options):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with DCPExecutor() as executor:
            sharder = BatchSharder(MASK, executor, ModelShape(1, 1, 8, 8), **options)
            with pytest.raises(RunError, match=message):
                sharder.shard(batch)
            batch = batch_of() | {"attention_mask": torch.ones(2, 21), "step": 3}
            part, place = sharder.shard(batch)
            DCPAttn.apply(part["dcp"].of(0), torch.zeros(42, 1, 8), torch.zeros(42, 2, 1, 8))
            assert "attention_mask" not in part
            assert part["step"] == 3
            assert part["position_ids"].tolist() == [[*range(21), *range(21)]]
            with pytest.raises(RunError, match=r"expected 42 tokens in dim 1, got shape \[1, 40\]"):
                place.dispatch(torch.zeros(1, 40))
            with pytest.raises(RunError, match="expected 42 tokens in dim 0"):
                place.undispatch(torch.zeros(40), dim=0)
    finally:
        dist.destroy_process_group()


def test_batches_without_tokens_or_with_padding_are_refused():
    hides = batch_of() | {"attention_mask": torch.tensor([[1] * 21, [1] * 20 + [0]])}
    refused(hides, "the attention_mask hides tokens")
    refused({"labels": torch.zeros(2, 2)}, r"expected input_ids \[B, S\] in the batch, got None")
    refused({"input_ids": torch.zeros(4)}, r"got \[4\]")
