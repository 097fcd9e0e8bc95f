"""Hugging Face's trainer on two ranks trains as one process with dense masks does."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional
from trainer_ranks import ACCUMULATED, CONFIGS, NORM, RATE, SPEC, STEPS, loader_of, model_of, rows

from dcp_dsl import Sample, dense_mask
from dcp_runtime import DCPTrainerMixin, RunError


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    """Train on two ranks, once."""
    folder = tmp_path_factory.mktemp("trainer")
    start_ranks(2, Path(__file__).with_name("trainer_ranks.py"), folder, folder)
    return torch.load(folder / "found.pt")


@pytest.mark.dist
@pytest.mark.parametrize("name", CONFIGS)
def test_steps_on_two_ranks_are_those_of_one_process(found, name):
    logs, weights = found[name]
    losses, norms, wanted = dense_training(name)
    assert [log["loss"] for log in logs] == pytest.approx(losses, rel=2e-4)
    assert [log["grad_norm"] for log in logs] == pytest.approx(norms, rel=2e-4)
    assert max(norms) > NORM  # gradients were clipped
    torch.testing.assert_close(dict(weights), dict(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.dist
def test_a_run_goes_on_from_its_checkpoint(found):
    (logs, weights), (again, resumed) = found["llama"], found["resumed"]
    assert again[-2:] == [pytest.approx(log, rel=1e-5) for log in logs[3:]]
    torch.testing.assert_close(dict(resumed), dict(weights), rtol=1e-5, atol=1e-6)


def dense_training(name):
    """Train one process under masks evaluated pair by pair, loss and steps written out."""
    stack = CONFIGS[name][0]
    model, data = model_of(name, "eager"), rows()
    loader = loader_of(stack, 1, rank=0)
    batches = [batch for _ in range(3) for batch in loader]  # of three epochs
    assert len(loader) == 2 * ACCUMULATED
    losses, norms = [], []
    for step in range(STEPS[name]):
        taken = batches[step * ACCUMULATED : (step + 1) * ACCUMULATED]
        packed = [[data[row] for row in part.rows] for part, _ in taken]
        total = sum(terms(model, stack, batch) for batch in packed)
        loss = total / sum(len(targets(stack, batch)) for batch in packed)
        loss.backward()
        losses.append(loss.item())
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)))
        with torch.no_grad():
            for weight in model.parameters():
                weight -= RATE * weight.grad
                weight.grad = None
    return losses, norms, model.state_dict()


def terms(model, stack, batch):
    """Add up the cross entropy of the targets of a batch."""
    tokens = torch.tensor([token for row in batch for token in row["tokens"]])[None]
    positions = torch.cat([torch.arange(len(row["tokens"])) for row in batch])[None]
    first, *rest = [bias(mask, batch) for mask in SPEC.stack(stack).masks]
    mask = {"sliding_attention": first, "full_attention": rest[0]} if rest else first
    logits = model(tokens, position_ids=positions, attention_mask=mask, use_cache=False).logits[0]
    at = torch.tensor(targets(stack, batch))
    return functional.cross_entropy(logits[at - 1], tokens[0, at], reduction="sum")


def bias(mask, batch):
    seen = torch.block_diag(*(dense(mask, row).int() for row in batch)).bool()
    return torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None]


def dense(mask, row):
    sample = Sample({name: row[name] for name in mask.columns}, len(row["tokens"]))
    return torch.from_numpy(dense_mask(mask, sample))


def targets(stack, batch):
    """Positions of the tokens that see, in any layer, the token which is to predict them."""
    found, begin = [], 0
    for row in batch:
        seen = torch.stack([dense(mask, row).diagonal(-1) for mask in SPEC.stack(stack).masks])
        found += [begin + 1 + at for at in seen.any(0).nonzero()[:, 0].tolist()]
        begin += len(row["tokens"])
    return found


def test_what_cannot_be_trained_is_refused():
    for name in ("eager", "dcp"):
        trainer = SimpleNamespace(model=model_of("llama", name), train_dataset=rows())
        with pytest.raises(RunError, match=rf"to be a DCPDataloader.* got list and '{name}'"):
            DCPTrainerMixin.train(trainer)
    batches = iter([{"data": data} for data, _ in loader_of("one", 1, rank=0, micro_batches=3)])
    with pytest.raises(RunError, match="a step of 2 batches ends within a global batch of 3"):
        DCPTrainerMixin.get_batch_samples(trainer, batches, 2, "cpu")
