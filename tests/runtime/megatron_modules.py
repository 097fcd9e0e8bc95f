"""What we take from Megatron-Core or replace of it, beside its real classes, without ranks."""

import sys
from types import SimpleNamespace

import pytest
import torch
from megatron.core.models.common.embeddings.relative_pos_embedding import RelativePositionEmbedding
from megatron.core.models.common.embeddings.rotary_pos_embedding import (
    MultimodalRotaryEmbedding,
    RotaryEmbedding,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.mamba import MambaModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler
from megatron.core.ssm.gated_delta_net import GatedDeltaNet
from megatron.core.ssm.mamba_block import MambaStack
from megatron.core.ssm.mamba_layer import MambaLayer
from megatron.core.ssm.mamba_mixer import MambaMixer
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.experimental_attention_variant.dsa import DSAttention
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_layer import TransformerLayer
from test_megatron import RANKS, ROOM, drawn, planned, work_of

from dcp_runtime import RunError
from dcp_runtime.adapters.megatron import (
    DCPCoreAttention,
    PlannedSequences,
    use_plans,
)
from dcp_runtime.adapters.megatron.model import TOKEN_WISE


def bare(kind, **parts):
    """A module that was not built, with others inside."""
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def layer_with(core_attention=None, **parts):
    core = core_attention or bare(DCPCoreAttention)
    attention = bare(SelfAttention, core_attention=core)
    return bare(TransformerLayer, self_attention=attention, **parts)


def model_with(*cores, **parts):
    block = bare(TransformerBlock, layers=torch.nn.ModuleList([layer_with(*cores, **parts)]))
    return bare(GPTModel, config=SimpleNamespace(), decoder=block)


class OwnGate(torch.nn.Module):
    def forward(self, x):
        return x.sigmoid()


class OwnRotary(RotaryEmbedding):
    def get_emb(self, max_seq_len, offset=0):
        return super().get_emb(max_seq_len, offset) * max_seq_len


class Renamed(MLP):
    """Runs the code of its base."""


def modules_that_may_mix_tokens():
    """Real classes of Megatron, each in the place of a part of a layer."""
    mixers = (
        MambaMixer, GatedDeltaNet, DSAttention, MultiTokenPredictionBlock, torch.nn.Conv1d,
        torch.nn.BatchNorm1d, torch.nn.MultiheadAttention, MultimodalRotaryEmbedding,
        RelativePositionEmbedding, OwnGate, OwnRotary,
    )  # fmt: skip
    for kind in mixers:
        model = model_with(mlp=bare(MLP, part=bare(kind)))
        with pytest.raises(RunError, match=rf"^decoder.layers.0.mlp.part: .* got {kind.__name__}"):
            use_plans(model)
        use_plans(model, token_wise=(kind,))
    with pytest.raises(RunError, match=r"core_attention: .*\.core_attention = DCPCoreAttention"):
        use_plans(model_with(bare(DotProductAttention)))
    patched = model_with(mlp=bare(MLP))
    patched.decoder.layers[0].mlp.forward = lambda x: x.cumsum(0)
    with pytest.raises(RunError, match=r"^decoder.layers.0.mlp: .* got MLP; "):
        use_plans(patched)
    layers = [layer_with(mlp=bare(Renamed)), bare(MambaLayer, mixer=bare(MambaMixer))]
    stack = bare(MambaStack, layers=torch.nn.ModuleList(layers))
    hybrid = bare(MambaModel, config=SimpleNamespace(), decoder=stack)
    with pytest.raises(RunError, match=r"^decoder.layers.1.mixer: .* got MambaMixer; "):
        use_plans(hybrid)
    use_plans(bare(Float16Module, config=SimpleNamespace(), module=model_with(mlp=bare(Renamed))))


def names_of_token_wise_classes():
    """Each is a class of this Megatron, but for those of others and of Transformer Engine."""
    found = {
        name
        for module in list(sys.modules.values())
        if module.__name__.startswith("megatron.core")
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, torch.nn.Module)
    }
    names = set(TOKEN_WISE["megatron"].split())
    needs_engine = {"TEFusedMLP", "TELinear", "TELayerNormColumnParallelLinear", "TEGroupedLinear"}
    behind = {"HybridModel", "HybridStack"}  # in the place of MambaModel after 0.16
    assert names - found <= needs_engine | behind, names - found


def fields_of_packed_sequences():
    assert set(PackedSeqParams.__annotations__) <= set(PlannedSequences.__dataclass_fields__)


def groups_are_shorter_than_by_the_squares_of_lengths():
    theirs = BalancedCPScheduler(ROOM, SimpleNamespace(size=lambda: RANKS))
    for window in (None, 512):
        for seed in range(3):
            samples = list(enumerate(drawn(seed)))
            ours, other = (
                work_of(
                    scheduler.get_groups_and_subsamples(samples, None)[1], dict(samples), window
                )
                for scheduler in (planned(window), theirs)
            )
            assert ours < 0.95 * other


CHECKS = {
    run.__name__: run
    for run in (
        modules_that_may_mix_tokens,
        names_of_token_wise_classes,
        fields_of_packed_sequences,
        groups_are_shorter_than_by_the_squares_of_lengths,
    )
}
