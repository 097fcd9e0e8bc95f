"""One rank that trains through hooks of AReaL, torchtitan and Megatron: ``engine_ranks.py OUT``."""

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import areal_stand_in
import torch
import torch.distributed as dist
from areal_stand_in import FSDPEngine, FSDPTrainContext
from megatron_packing import PackingSchedulerEnum, new_map, wrap_data_iterator
from placement_ranks import model_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_gather
from torch.nn import functional
from torch.nn.attention import flex_attention as flex
from torchtitan_balancers import Configurable, ContextParallelLoadBalancer, cp_shard

from dcp_dsl import Sample, Spec
from dcp_dsl.interchange import ExportConfig
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.step import StepMesh, StepSetting, step_model
from dcp_runtime import BatchSharder, DCPExecutor, balanced_order, flex_block_mask, register_dcp
from dcp_runtime.adapters.megatron import planned_packing

SPEC = Spec.from_text("""
segment doc = branch [seq_lens]*
mask docs = paths
mask near = paths and q.path - k.path < 20
""")
SHAPE, ZIGZAG = ModelShape(4, 4, 8, 8), PlanConfig("static:zigzag")
PACKS = [(13, 5, 17, 2), (21, 9)]
PADDING = 6
SAMPLES = (9, 30, 4, 12, 7, 25, 16, 11)
ROOM = 20  # tokens of a micro-batch on a rank
DOCS, BLOCK = [50, 3, 75, 64], 16


def drawn(seed, lengths):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 67, (n,), generator=draw) for n in lengths]


def rollout_loss(logprobs, mb_input):
    """Return a loss of whole sequences, without the last token, whose target is rolled in."""
    borders = mb_input["cu_seqlens"].tolist()
    parts = [logprobs[a : b - 1] for a, b in pairwise(borders)]
    return torch.stack([-own.mean().exp() * (at + 0.5) for at, own in enumerate(parts)]).sum()


class PlacedEngine(FSDPEngine):
    """AReaL's engine with our placement: what a user writes."""

    def _create_llm_actor_or_critic(self):
        model = super()._create_llm_actor_or_critic()
        model.set_attn_implementation("dcp")
        return model

    def _prepare_mb_inputs(self, mb_item):
        mb = mb_item.padded_mb
        self.lengths = mb["cu_seqlens"].diff().tolist()
        whole = {name: mb[name] for name in ("input_ids", "position_ids", "use_cache")}
        whole["rolled_input_ids"] = mb["input_ids"].roll(-1)
        inputs, self.place = self.sharder.shard(whole)
        return inputs, FSDPTrainContext(inputs, mb_item.orig_mb, mb_item.padding_length)

    def _sp_all_gather(self, tensor):
        return self.place.undispatch(tensor, self.sharder.group, dim=0)


def trained_by_areal(executor, mesh):
    engine = PlacedEngine(model_of, dist.get_world_size())
    engine.sharder = BatchSharder(
        SPEC.mask("docs"), executor, SHAPE, lambda _, __: {"seq_lens": engine.lengths}, mesh, ZIGZAG
    )
    logprobs, places = [], []

    def loss(found, mb_input):
        logprobs.append(found.detach())
        places.append(engine.place.local_token_global_indices[: engine.place.own])
        return rollout_loss(found, mb_input)

    items = [areal_stand_in.packed(drawn(n, own), PADDING) for n, own in enumerate(PACKS)]
    engine.train_batch(items, loss)
    for weight in engine.model.parameters():  # FSDP averages over its ranks
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
    gradients = {name: each.grad for name, each in engine.model.named_parameters()}
    return {"logprobs": logprobs, "gradients": gradients, "places": places}


class Tiny(nn.Module):
    """A model of two layers; `attend` gets q, k, v ``[T, 2, 8]`` of a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions = nn.Embedding(67, 16), nn.Embedding(256, 16)
        self.qkv = nn.ModuleList([nn.Linear(16, 48) for _ in range(2)])
        self.head = nn.Linear(16, 67)
        self.double()

    def forward(self, tokens, positions, attend):
        x = self.tokens(tokens) + self.positions(positions)
        for number, layer in enumerate(self.qkv):
            q, k, v = layer(x).view(-1, 3, 2, 8).unbind(1)
            x = x + attend(number, q, k, v).reshape(-1, 16).tanh()
        return self.head(x)


MASKS = ("docs", "near")  # of the two layers


def titan_batch():
    tokens, labels = drawn(9, [sum(DOCS)] * 2)
    return tokens, labels, torch.cat([torch.arange(n) for n in DOCS])


class PlacedBalancer(ContextParallelLoadBalancer):
    """torchtitan's balancer with our shares: what a user writes."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    def __init__(self, config, *, seq_len, attention_metadata):
        self.masks = attention_metadata

    def generate_permutation(self):
        return balanced_order(self.masks, dist.get_world_size())


def trained_by_torchtitan(mesh):
    group, model, sample = mesh.get_group(), Tiny(), Sample({"seq_lens": DOCS}, sum(DOCS))
    masks = {
        name: flex_block_mask(SPEC.mask(name).bind(sample), ExportConfig(BLOCK, BLOCK))
        for name in MASKS
    }
    (tokens, labels, positions), local, order = cp_shard(
        PlacedBalancer.Config(), titan_batch(), masks, group
    )

    def attend(number, q, k, v):
        k, v = (torch.cat(all_gather(x.contiguous(), group)) for x in (k, v))
        heads = (x.transpose(0, 1)[None] for x in (q, k, v))
        return flex.flex_attention(*heads, block_mask=local[MASKS[number]])[0].transpose(0, 1)

    loss = functional.cross_entropy(model(tokens, positions, attend), labels, reduction="sum")
    loss.backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad)
    blocks = {name: int(mask.to_dense().sum()) for name, mask in local.items()}
    gradients = {name: each.grad for name, each in model.named_parameters()}
    return {"order": order, "gradients": gradients, "blocks": blocks}


def packed_by_megatron(executor, mesh):
    """Train on the packs of a global batch, cut over the ranks of one group."""
    ranks, scheduler_map = dist.get_world_size(), new_map()
    setting = StepSetting(StepMesh(1, ranks), step_model("llama-8b"), Cluster(1, ranks), 0)
    base = scheduler_map[PackingSchedulerEnum.DP_BALANCED]
    scheduler_map[PackingSchedulerEnum.DP_BALANCED] = planned_packing(base, setting)
    groups = wrap_data_iterator(scheduler_map, "dp_balanced", SAMPLES, ROOM, ranks, 1)
    model, samples, lengths = model_of("dcp"), drawn(5, SAMPLES), []
    sharder = BatchSharder(
        SPEC.mask("docs"), executor, SHAPE, lambda _, __: {"seq_lens": lengths[-1]}, mesh, ZIGZAG
    )
    for group in groups:
        own = [samples[number] for number in group[dist.get_rank()]]
        lengths.append([len(sample) for sample in own])
        labels = [functional.pad(sample[1:], (0, 1), value=-100) for sample in own]
        whole = {"input_ids": torch.cat(own)[None], "labels": torch.cat(labels)[None]}
        part, _ = sharder.shard(whole)
        labels = part.pop("labels")[0]
        logits = model(**part, use_cache=False).logits[0]
        functional.cross_entropy(logits, labels, reduction="sum", ignore_index=-100).backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad)
    gradients = {name: each.grad for name, each in model.named_parameters()}
    return {"gradients": gradients, "groups": groups}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    flex._validate_device = lambda *_: None  # it has a backward on the CPU, but refuses it
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    register_dcp()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    with DCPExecutor(mesh) as executor:
        found = {
            "areal": trained_by_areal(executor, mesh), "torchtitan": trained_by_torchtitan(mesh),
            "megatron": packed_by_megatron(executor, mesh),
        }  # fmt: skip
    torch.save(found, Path(sys.argv[1]) / f"found-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
