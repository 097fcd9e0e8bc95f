"""Hooks of AReaL, torchtitan and Megatron's packing have the gradients of one process."""

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_placement import model_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_gather
from torch.nn import functional
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask
from trainer_stand_ins import (
    Configurable,
    ContextParallelLoadBalancer,
    DpBalancedScheduler,
    FSDPEngine,
    FSDPTrainContext,
    PackingSchedulerEnum,
    cp_shard,
    new_map,
    packed,
    wrap_data_iterator,
)

from dcp_dsl import Sample, Spec, dense_mask
from dcp_dsl.interchange import ExportConfig
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.step import StepMesh, StepSetting, step_model
from dcp_runtime import (
    BatchSharder,
    DCPExecutor,
    RunError,
    balanced_order,
    flex_block_mask,
    register_dcp,
)
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

    items = [packed(drawn(n, own), PADDING) for n, own in enumerate(PACKS)]
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
    """Be one rank that trains through hooks of all three: ``test_engines.py OUT``."""
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


RANKS = 3


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    folder = tmp_path_factory.mktemp("engines")
    start_ranks(RANKS, Path(__file__), folder, folder)
    return [torch.load(folder / f"found-{rank}.pt") for rank in range(RANKS)]


def compare(gradients, model):
    for name, weight in model.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.dist
def test_the_engine_of_areal_has_the_log_probs_and_gradients_of_one_process(found):
    model, logprobs = model_of("sdpa"), []
    for number, lengths in enumerate(PACKS):
        own = []
        for ids in drawn(number, lengths):
            logits = model(ids[None], use_cache=False).logits[0].log_softmax(-1)
            own.append(logits[torch.arange(len(ids)), torch.roll(ids, -1)])
        logprobs.append(own)
        borders = torch.tensor([0, *lengths]).cumsum(0)
        rollout_loss(torch.cat(own), {"cu_seqlens": borders}).backward()
    for rank in (each["areal"] for each in found):
        for got, wanted in zip(rank["logprobs"], logprobs, strict=True):
            parts = got.split([len(own) for own in wanted])
            for part, own in zip(parts, wanted, strict=True):
                torch.testing.assert_close(part[:-1], own.detach()[:-1], rtol=1e-10, atol=1e-12)
        compare(rank["gradients"], model)
    for number, lengths in enumerate(PACKS):
        every = torch.cat([rank["areal"]["places"][number] for rank in found])
        assert sorted(every.tolist()) == list(range(sum(lengths) + PADDING))


def test_the_engine_of_areal_alone_is_what_the_hook_is_compared_with():
    """The stand-in on one rank, without a hook, packs and pads as the hook expects."""
    item = packed(drawn(0, [4, 3]), 2)
    engine = FSDPEngine(lambda attention: None, 1)
    inputs, context = engine._prepare_mb_inputs(item)
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 0, 1]]
    assert context.pad_length == 2
    with pytest.raises(AssertionError, match="cannot cut"):
        FSDPEngine(lambda attention: None, 2)._prepare_mb_inputs(item)


@pytest.mark.dist
def test_shares_of_torchtitans_balancer_have_the_gradients_of_one_process(found):
    model, (tokens, labels, positions) = Tiny(), titan_batch()
    sample = Sample({"seq_lens": DOCS}, sum(DOCS))
    dense = [torch.from_numpy(dense_mask(SPEC.mask(name), sample)) for name in MASKS]

    def attend(number, q, k, v):
        heads = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = functional.scaled_dot_product_attention(*heads, attn_mask=dense[number])
        return out[0].transpose(0, 1)

    logits = model(tokens, positions, attend)
    functional.cross_entropy(logits, labels, reduction="sum").backward()
    for rank in (each["torchtitan"] for each in found):
        compare(rank["gradients"], model)
        assert torch.equal(rank["order"], found[0]["torchtitan"]["order"])
        assert sorted(rank["order"][0].tolist()) == list(range(sum(DOCS)))
    for name in MASKS:
        blocks = [rank["torchtitan"]["blocks"][name] for rank in found]
        assert max(blocks) - min(blocks) <= 2, "no rank waits long for others under any mask"


@pytest.mark.dist
def test_packs_of_megatron_have_the_gradients_of_separate_samples(found):
    model = model_of("sdpa")
    for sample in drawn(5, SAMPLES):
        logits = model(sample[None], use_cache=False).logits[0]
        functional.cross_entropy(logits[:-1], sample[1:], reduction="sum").backward()
    for rank in (each["megatron"] for each in found):
        compare(rank["gradients"], model)
        assert rank["groups"] == found[0]["megatron"]["groups"]
    for group in found[0]["megatron"]["groups"]:
        assert group == [group[0]] * RANKS
        assert sum(SAMPLES[number] for number in group[0]) <= ROOM * RANKS


def scheduler_of(replicas, context, pairs=None, devices=None):
    cluster = Cluster(1, devices or replicas * context)
    setting = StepSetting(StepMesh(1, 1), step_model("llama-8b"), cluster, 0)
    return {PackingSchedulerEnum.DP_BALANCED: planned_packing(DpBalancedScheduler, setting, pairs)}


@pytest.mark.parametrize(("replicas", "context", "stages"), [(1, 2, None), (4, 2, None), (2, 4, 3)])
def test_packs_hold_every_sample_once_within_their_room(replicas, context, stages):
    for seed in range(5):
        lengths = np.exp(np.random.default_rng(seed).normal(6, 1.2, 48)).clip(8, 4096).astype(int)
        room = 4096 // context
        groups = wrap_data_iterator(
            scheduler_of(replicas, context), "dp_balanced", lengths.tolist(), room, context,
            replicas, stages,
        )  # fmt: skip
        assert len(groups) % (stages or 1) == 0
        for group in groups:
            packs = group[::context]
            assert group == [pack for pack in packs for _ in range(context)]
            assert all(packs)
            assert max(lengths[pack].sum() for pack in packs) <= room * context
        every = [number for group in groups for pack in group[::context] for number in pack]
        assert sorted(every) == list(range(len(lengths)))


@pytest.mark.parametrize("window", [None, 256])
def test_packs_take_less_time_than_those_in_order(window):
    """FLOPs of an 8B model; a micro-batch takes as long as its fullest pack."""
    gains = []
    for seed in range(6):
        lengths = (
            np.exp(np.random.default_rng(seed).normal(7, 1.3, 40)).clip(64, 32_768).astype(int)
        )
        pairs = np.array([sum(min(at, window or n) for at in range(1, n + 1)) for n in lengths])
        work = 1.8e6 * pairs + 4.8e10 * lengths
        by_length = dict(zip(lengths.tolist(), pairs.astype(float).tolist(), strict=True))
        ours = scheduler_of(4, 2, lambda own, of=by_length: np.array([of[n] for n in own.tolist()]))
        plain = {PackingSchedulerEnum.DP_BALANCED: DpBalancedScheduler}
        times = [
            sum(max(work[pack].sum() for pack in group) for group in wrap_data_iterator(
                scheduler_map, "dp_balanced", lengths.tolist(), 16_384, 2, 4))
            for scheduler_map in (plain, ours)
        ]  # fmt: skip
        gains.append(times[0] / times[1])
    assert min(gains) > 1
    assert np.median(gains) > 1.1


def test_packing_that_cannot_be_is_refused_with_a_way_out():
    with pytest.raises(RunError, match=r"expected 2 x 2 devices.*got 2; give Cluster\(1, 4\)"):
        wrap_data_iterator(scheduler_of(2, 2, devices=2), "dp_balanced", [5, 5], 10, 2, 2)
    wrap_data_iterator(scheduler_of(2, 2, devices=4), "dp_balanced", [5, 5], 10, 2, 2)
    with pytest.raises(RunError, match="3 samples of 15 tokens do not fill 4 ranks"):
        wrap_data_iterator(scheduler_of(4, 1), "dp_balanced", [5] * 3, 10, 1, 4)
    wrap_data_iterator(scheduler_of(4, 1), "dp_balanced", [5] * 4, 10, 1, 4)


def test_an_order_from_masks_of_torch_is_that_of_the_balancer_and_refuses_other_blocks():
    sample = Sample({"seq_lens": DOCS}, sum(DOCS))
    mask = flex_block_mask(SPEC.mask("docs").bind(sample), ExportConfig(BLOCK, BLOCK))
    made = create_block_mask(mask.mask_mod, None, None, 192, 192, "cpu", BLOCK_SIZE=BLOCK)
    assert torch.equal(balanced_order(mask, 3), balanced_order({"a": made}, 3))
    with pytest.raises(
        RunError, match=r"a multiple of 5 ranks times a block.*\(16, 16, 192, 192\)"
    ):
        balanced_order(mask, 5)
    odd = create_block_mask(mask.mask_mod, None, None, 192, 192, "cpu", BLOCK_SIZE=(16, 32))
    with pytest.raises(RunError, match="give BLOCK_SIZE to create_block_mask"):
        balanced_order({"a": mask, "b": odd}, 3)
    with pytest.raises(RunError, match="expected masks with the same square blocks"):
        balanced_order({}, 3)


if __name__ == "__main__":
    main()
