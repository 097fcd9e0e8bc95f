"""One rank of a GPT of Megatron-Core under DCP, compared with Megatron's own attention.

Each rank also runs every document alone through a model without context parallelism, under a dense
mask: its logits, and the gradients of all weights, added over the ranks.
"""

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from loader_options import make_loader
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.utils import sharded_state_dict_default
from torch.utils.checkpoint import checkpoint

from dcp_dsl import Sample, Spec, dense_mask
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import DCPExecutor, Planning
from dcp_runtime.adapters.megatron import (
    DCPCoreAttention,
    PlannedBatches,
    PlannedRotary,
    PlannedSequences,
)

warnings.simplefilter("ignore")
# What Megatron does on the current CUDA device, also with weights on the CPU.
torch.cuda.current_device = lambda: "cpu"
tensor_parallel.get_cuda_rng_tracker = lambda: SimpleNamespace(fork=nullcontext)
tensor_parallel.checkpoint = lambda run, _, *inputs: checkpoint(run, *inputs, use_reentrant=False)

SPEC = Spec.from_text(
    "segment s = question[question] answer[answers]*\n"
    "mask shared = causal and (k in question or same(answer))\n"
    "mask local = causal and q - k < 8\n"
    "stack two = local, shared\n"
)
ROWS = [{"question": 5, "answers": [9, 7, 4]}, {"question": 3, "answers": [6, 5]}]
LENGTHS = [row["question"] + sum(row["answers"]) for row in ROWS]
SHAPE, VOCABULARY = ModelShape(4, 2, 8, 4), 64


def model_of(context_ranks, **options):
    """A Llama-like GPT."""
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, kv_channels=8,
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True,
        context_parallel_size=context_ranks, normalization="RMSNorm", init_method_std=0.2,
        **options,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    if context_ranks > 1:
        spec.submodules.self_attention.submodules.core_attention = DCPCoreAttention
    model = GPTModel(config, spec, VOCABULARY, 128, position_embedding_type="rope")
    if context_ranks > 1:
        model.rotary_pos_emb = PlannedRotary(model.rotary_pos_emb)
    else:
        model.rotary_pos_emb.cp_group = None
    return model


def documents():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in LENGTHS]


def alone(model, masks):
    """Logits of every document, and gradients of all weights."""
    logits = []
    for row, tokens in zip(ROWS, documents(), strict=True):
        hidden = [~torch.from_numpy(dense_mask(m, Sample(row, len(tokens)))) for m in masks]
        hooks = [
            layer.self_attention.core_attention.register_forward_pre_hook(
                lambda _, given, own=own: (*given[:3], own[None, None], *given[4:])
            )
            for layer, own in zip(model.decoder.layers, hidden, strict=True)
        ]
        found = model(tokens[None], torch.arange(len(tokens))[None], None)
        found.square().sum().backward()
        logits.append(found.detach()[0])
        for hook in hooks:
            hook.remove()
    return torch.cat(logits), gradients_of(model)


def gradients_of(model):
    return {name: p.grad for name, p in model.named_parameters()}


def check(batches, masks, ranks, **options):
    """Compare logits of this rank's tokens, and the gradients of all ranks."""
    torch.manual_seed(0)
    dense = model_of(1, **options)
    options |= {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    model = model_of(ranks, **options)
    model.load_state_dict(dense.state_dict())
    found = [
        model(tokens[None], positions[None], None, packed_seq_params=sequences)[0]
        for tokens, positions, sequences, _ in batches
    ]  # all open, when the first recomputes its attention
    for (*_, rows), out, of_layers in zip(batches, found, masks, strict=True):
        dense.zero_grad()
        logits, gradients = alone(dense, of_layers)
        torch.testing.assert_close(out.detach(), logits[rows], rtol=1e-4, atol=1e-4)
        model.zero_grad()
        out.square().sum().backward()
        for name, gradient in gradients_of(model).items():
            dist.all_reduce(gradient)
            assert (gradient - gradients[name]).norm() <= 1e-5 * gradients[name].norm(), name


def from_our_loader(executor, planning):
    """A batch of our loader, with a mask for each layer."""
    rows = [{**row, "tokens": own.tolist()} for row, own in zip(ROWS, documents(), strict=True)]
    names = ("shape", "cluster", "config", "block_size")
    options = {name: getattr(planning, name) for name in names}
    ((data, plan),) = make_loader(
        rows, SPEC.stack("two"), hidden_targets="keep", mesh=planning.group, **options
    )
    sequences = PlannedSequences.prepare(executor, plan, data.position_ids)
    own = torch.from_numpy(plan.local_tokens(executor.rank).copy())
    return data.tokens, data.position_ids, sequences, own


def from_their_data(executor, planning):
    """A packed batch as Megatron's data gives it, padded."""
    first, second = documents()
    padded = torch.full((1, 64), -1)
    padded[0, : len(first)], padded[0, 32 : 32 + len(second)] = first, second
    batch = {"tokens": padded, "labels": padded + 1, "attention_mask": None, "max_seqlen": None}
    ends = torch.tensor([0, len(first), len(first) + len(second)]), torch.tensor([0, 32, 64])
    split = PlannedBatches(executor, SPEC.mask("shared"), planning).split
    cut, sequences = split(batch, *ends, ROWS)
    own = torch.from_numpy(sequences.layers.of(0).part.plan.local_tokens(executor.rank).copy())
    assert torch.equal(cut["tokens"][0], torch.cat([first, second])[own])
    assert torch.equal(cut["labels"], cut["tokens"] + 1)
    return cut["tokens"][0], cut["position_ids"][0], sequences, own


def sinks_are_saved_by_head(group):
    """Of tensor-parallel ranks, in the place of which stand those of a group."""
    rank, alone = dist.get_rank(), parallel_state.get_tensor_model_parallel_group()
    for softmax_type, shards in (("learnable", [((8,), (4 * rank,))]), ("off-by-one", [])):
        config = SimpleNamespace(
            attention_dropout=0, softmax_type=softmax_type, num_attention_heads=8,
            tensor_model_parallel_size=2,
        )  # fmt: skip
        attention = DCPCoreAttention(config, 1, pg_collection=SimpleNamespace(tp=group))
        saved = sharded_state_dict_default(attention, "a.", metadata={"dp_cp_group": alone})
        assert [(one.global_shape, one.global_offset) for one in saved.values()] == shards
        own = [p.untyped_storage().data_ptr() for p in attention.parameters()]
        assert [one.data.untyped_storage().data_ptr() for one in saved.values()] == own
        assert all(one.data.requires_grad for one in saved.values())


def main():
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    parallel_state.initialize_model_parallel(context_parallel_size=ranks)
    group = parallel_state.get_context_parallel_group()
    sinks_are_saved_by_head(group)
    config = PlanConfig("static:zigzag")
    planning = Planning(SHAPE, cluster=Cluster(1, ranks), config=config, block_size=8, group=group)
    executor = DCPExecutor(group, micro_batches=2)
    shared = SPEC.mask("shared")
    for softmax_type in ("vanilla", "learnable"):
        batches = [make(executor, planning) for make in (from_our_loader, from_their_data)]
        masks = [SPEC.stack("two").masks, [shared, shared]]
        check(batches, masks, ranks, softmax_type=softmax_type)
    print("equal", flush=True)
    executor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
