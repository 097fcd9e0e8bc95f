"""The token map that trainers take: their own layouts agree with it, and so do gradients."""

import contextlib
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from trainer_stand_ins import (
    ContextParallelismSharder,
    CPShardResult,
    Engine,
    ShardLayout,
    gather,
    prepare_forward,
    shard,
)

from dcp_dsl import Spec
from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import BatchSharder, DCPAttn, DCPExecutor, RunError, register_dcp

SPEC = Spec.from_text("""
segment doc = branch [seq_lens]*
mask docs = paths
mask near = paths and q.path - k.path < 5
stack both = docs, near
mask tree = prompt_tree
""")
LENGTHS = ([9, 4, 8], [2, 19])
PARENTS = ([-1, 0, 0], [-1, 0])
CASES = {
    "documents": ("mask", "docs", lambda _, row: {"seq_lens": LENGTHS[row]}),
    "layers": ("stack", "both", lambda _, row: {"seq_lens": LENGTHS[row]}),
    "tree": (
        "mask", "tree", lambda _, row: {"node_lens": LENGTHS[row], "node_parents": PARENTS[row]},
    ),
}  # fmt: skip


def batch_of():
    """Return a batch of two rows, with labels that are shifted and weights of losses."""
    draw = torch.Generator().manual_seed(3)
    ids, labels = torch.randint(3, 67, (2, 2, 21), generator=draw)
    labels[:, ::5] = -100
    return {"input_ids": ids, "labels": labels, "weights": torch.rand(2, 21, generator=draw)}


def model_of(attention):
    import transformers

    config = transformers.GPTNeoXConfig(  # its norms stay in float64
        vocab_size=67, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, attention_dropout=0.0,
        hidden_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.double().eval()


def loss_of(logits, labels, weights):
    """Return the sum over the labels that count."""
    losses = functional.cross_entropy(logits[0], labels[0], ignore_index=-100, reduction="none")
    return (losses * weights[0]).sum()


def connect(model, sharder, places):
    """Hook into a model, as a user adds it to the trainer."""

    def shard_batch(cp_mesh, tp_mesh, batch, *, loss_mask=None, padding_token_id=0):
        part, place = sharder.shard(batch, padding_token_id)
        places.append(place)
        layout = ShardLayout(
            place.local_token_global_indices, place.plan.num_tokens, place.padded_tokens
        )
        return CPShardResult(contextlib.nullcontext(), part, layout)

    model.prepare_model_inputs_for_cp = lambda batch, num_chunks=1: ContextParallelismSharder(
        shard_batch, local_token_global_indices=None
    )


def trained(case, executor, mesh):
    kind, name, columns = CASES[case]
    model = model_of("dcp")
    config = PlanConfig("static:zigzag")
    mask = getattr(SPEC, kind)(name)
    sharder, places = (
        BatchSharder(mask, executor, ModelShape(4, 4, 8, 8), columns, mesh, config),
        [],
    )
    connect(model, sharder, places)
    batch = batch_of()
    ready = prepare_forward(model, batch, mesh, padding_token_id=1)
    part = ready.batch
    with ready.context:
        logits = model(
            part["input_ids"], position_ids=part["position_ids"], dcp=part["dcp"], use_cache=False
        ).logits
    loss = loss_of(logits, part["labels"], part["weights"].double())
    loss.backward()
    local = part["weights"].double().requires_grad_()
    joined = places[0].undispatch(local, mesh)
    (joined * torch.arange(1.0, joined.shape[1] + 1)).sum().backward()
    total = loss.detach()
    dist.all_reduce(total)
    for weight in model.parameters():
        dist.all_reduce(weight.grad)
    whole = batch["input_ids"].reshape(1, -1)
    return {
        "loss": total, "gradients": {name: each.grad for name, each in model.named_parameters()},
        "indices": ready.layout.local_token_global_indices, "own": part["dcp"].own,
        "ids": part["input_ids"], "shard": shard(ready.layout, whole, 1),
        "joined": joined.detach(), "joined_gradient": local.grad,
        "logits": gather(ready.layout, logits.detach(), dist.get_world_size()),
    }  # fmt: skip


class PlacedEngine(Engine):
    """verl's engine with our placement: what a user writes."""

    sharder: BatchSharder

    def prepare_model_inputs(self, micro_batch):
        self.use_ulysses_sp = False  # whole and in order: the sharder cuts
        inputs, args = super().prepare_model_inputs(micro_batch)
        names = ("input_ids_rmpad_rolled", "temperature_rmpad")
        self.lengths = [len(each) for each in micro_batch["input_ids"]]
        whole = {**inputs, **{name: args[name][None] for name in names}}
        part, self.place = self.sharder.shard(whole)
        args |= {name: part.pop(name)[0] for name in names}
        args["temperature_rmpad"][self.place.own :] = 1
        return part, args

    def _gather_and_unpad_packed(self, values, pad_size):
        return self.place.undispatch(values, self.sharder.group, dim=0)


def rollouts_of():
    """Return a micro-batch of verl, and the advantages of its sequences."""
    draw = torch.Generator().manual_seed(4)
    ids = [torch.randint(3, 67, (n,), generator=draw) for n in (13, 5, 17, 2)]
    return {"input_ids": ids, "temperature": 0.7}, [1.5, -0.25, 0.5, 2.0]


def policy_loss(log_probs, advantages):
    """Return the loss of whole sequences, without the last token, whose target is rolled in."""
    terms = [
        -(own[:-1].mean().exp() * advantage)
        for own, advantage in zip(log_probs, advantages, strict=True)
    ]
    return torch.stack(terms).mean()


def trained_by_verl(executor, mesh):
    engine = PlacedEngine(model_of("dcp"))
    engine.sharder = BatchSharder(
        SPEC.mask("docs"), executor, ModelShape(4, 4, 8, 8),
        lambda _, __: {"seq_lens": engine.lengths}, mesh, PlanConfig("static:zigzag"),
    )  # fmt: skip
    micro_batch, advantages = rollouts_of()
    out = engine.forward_step(micro_batch)
    policy_loss(out.log_probs, advantages).backward()
    for weight in engine.module.parameters():  # FSDP averages over its ranks
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
    gradients = {name: each.grad for name, each in engine.module.named_parameters()}
    return {"log_probs": [each.detach() for each in out.log_probs], "gradients": gradients}


def main():
    """Be one rank that trains through hooks of Automodel and verl: ``test_placement.py OUT``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    register_dcp()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    with DCPExecutor(mesh) as executor:
        found = {case: trained(case, executor, mesh) for case in CASES}
        found["verl"] = trained_by_verl(executor, mesh)
    torch.save(found, Path(sys.argv[1]) / f"found-{dist.get_rank()}.pt")
    dist.destroy_process_group()


RANKS = 3
MASK = Spec.from_text("mask own = causal").mask("own")


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    folder = tmp_path_factory.mktemp("placement")
    start_ranks(RANKS, Path(__file__), folder, folder)
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


@pytest.mark.usefixtures("lone_group")
def test_batches_without_tokens_or_with_padding_are_refused():
    hides = batch_of() | {"attention_mask": torch.tensor([[1] * 21, [1] * 20 + [0]])}
    refused(hides, "the attention_mask hides tokens")
    refused({"labels": torch.zeros(2, 2)}, r"expected input_ids \[B, S\] in the batch, got None")
    refused({"input_ids": torch.zeros(4)}, r"got \[4\]")


if __name__ == "__main__":
    main()
