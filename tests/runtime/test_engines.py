"""Hooks of AReaL, torchtitan and Megatron's packing have the gradients of one process."""

from pathlib import Path

import numpy as np
import pytest
import torch
from areal_stand_in import FSDPEngine, packed
from engine_ranks import (
    BLOCK,
    DOCS,
    MASKS,
    PACKS,
    PADDING,
    ROOM,
    SAMPLES,
    SPEC,
    Tiny,
    drawn,
    rollout_loss,
    titan_batch,
)  # fmt: skip
from megatron_packing import DpBalancedScheduler, PackingSchedulerEnum, wrap_data_iterator
from placement_ranks import model_of
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask

from dcp_dsl import Sample, dense_mask
from dcp_dsl.interchange import ExportConfig
from dcp_planner import Cluster
from dcp_planner.step import StepMesh, StepSetting, step_model
from dcp_runtime import RunError, balanced_order, flex_block_mask
from dcp_runtime.adapters.megatron import planned_packing

RANKS = 3


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    folder = tmp_path_factory.mktemp("engines")
    start_ranks(RANKS, Path(__file__).with_name("engine_ranks.py"), folder, folder)
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
