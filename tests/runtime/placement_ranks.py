"""One rank that trains through the hooks of Automodel and verl: ``placement_ranks.py OUT``."""

import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from automodel_stand_in import (
    ContextParallelismSharder,
    CPShardResult,
    ShardLayout,
    gather,
    prepare_forward,
    shard,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from verl_stand_in import Engine

from dcp_dsl import Spec
from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import BatchSharder, DCPExecutor, register_dcp

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
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    register_dcp()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    with DCPExecutor(mesh) as executor:
        found = {case: trained(case, executor, mesh) for case in CASES}
        found["verl"] = trained_by_verl(executor, mesh)
    torch.save(found, Path(sys.argv[1]) / f"found-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
