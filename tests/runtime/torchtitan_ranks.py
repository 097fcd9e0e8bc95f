"""One rank of a torchtitan Llama under the recipe of the examples: ``torchtitan_ranks.py FOLDER``.

FOLDER holds torchtitan with the patch of the examples. Rank 0 also runs the whole batch on the
model without context parallelism, under masks evaluated pair by pair.
"""

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, sys.argv[1])
from loader_options import make_loader
from torchtitan.distributed.context_parallel import apply_cp_to_forward
from torchtitan.models.common.attention import FlexAttention
from torchtitan.models.llama3 import model_registry
from torchtitan_recipe import DCPAttention, DCPTrainer, FlexTrainer, use_dcp

from dcp_dsl import Sample, Spec, dense_mask, load
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import LayerPlans, RunError

TOKENS, LENGTHS = 512, ((200, 40, 272), (512,))
SPEC = """
segment document = doc[doc_lens]*
mask packed = causal per doc
mask local = causal per doc and q - k < 100
"""
BRANCHES = """
segment part = question[question_len] branch answer[answer_lens]*
mask own = paths
"""


def model_of(is_dcp):
    """Two layers; the weights are the same for every caller."""
    torch.manual_seed(0)
    config = model_registry("debugmodel", attn_backend="flex").model
    config.layers = config.layers[:2]
    model = (use_dcp(config) if is_dcp else config).build()
    model.init_states()
    return model


def batch():
    """Tokens, labels within documents, and positions, [rows, TOKENS] each."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 2048, (len(LENGTHS), TOKENS), generator=generator)
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in LENGTHS])
    labels = tokens.roll(-1, 1)
    labels[positions.roll(-1, 1) == 0] = -100
    return tokens, labels, positions


def loss_of(logits, labels):
    return functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100
    )


def alone(mask, rows):
    """Loss and gradients of the first rows, on one process."""
    tokens, labels, positions = (x[:rows] for x in batch())
    dense = torch.stack([
        torch.from_numpy(dense_mask(mask, Sample({"doc_lens": list(row)}, TOKENS)))
        for row in LENGTHS[:rows]
    ])  # fmt: skip
    seen = flex.create_block_mask(
        lambda b, h, q, k: dense[b, q, k], rows, None, TOKENS, TOKENS, device="cpu"
    )
    model = model_of(False)
    loss = loss_of(model(tokens, positions=positions, attention_masks=seen), labels)
    loss.backward()
    return loss.detach(), gradients_of(model)


def gradients_of(model):
    return {
        name.replace("inner_attention.", ""): weight.grad
        for name, weight in model.named_parameters()
    }


def compare(loss, model, mask, rows, targets=1):
    """Sum over ranks; rank 0 compares with what one process gives for the first rows."""
    found = {"loss": loss.detach()} | gradients_of(model)
    for value in found.values():
        dist.all_reduce(value)
    if dist.get_rank() == 0:
        wanted, gradients = alone(mask, rows)
        for name, value in ({"loss": wanted} | gradients).items():
            value = value / targets
            assert (found[name] - value).norm() <= 1e-4 * value.norm(), name


def parallel(is_dcp, mesh):
    model = model_of(is_dcp)
    apply_cp_to_forward([b.attention.inner_attention for b in model.layers.values()], mesh)
    return model


def trainer_of(kind, mesh, **attributes):
    """A trainer without what torchtitan's makes around its steps."""
    trainer = object.__new__(kind)
    trainer.parallel_dims, trainer.ntokens_seen = SimpleNamespace(get_mesh=lambda _: mesh), 0
    vars(trainer).update(attributes)
    return trainer


def flex_attention(path, mesh):
    config = SimpleNamespace(spec=path, masks={"": "packed"})
    trainer, model = trainer_of(FlexTrainer, mesh, config=config), parallel(False, mesh)
    tokens, labels, positions = batch()
    inputs = {"input": tokens, "positions": positions}
    tokens, labels, passed = trainer.post_dataloading_process(inputs, labels)
    assert tokens.shape == (len(LENGTHS), TOKENS // mesh.size())
    loss = loss_of(model(tokens, **passed), labels)
    loss.backward()
    compare(loss, model, load(path).mask("packed"), len(LENGTHS))
    config.masks = {"basic_mask": "packed", "sliding_window_mask": "local"}  # as GPT-OSS names them
    masks = trainer.post_dataloading_process(inputs, batch()[1])[2]["attention_masks"]
    assert list(masks) == list(config.masks)
    pairs = [int(m.kv_num_blocks.sum() + m.full_kv_num_blocks.sum()) for m in masks.values()]
    assert pairs[0] > pairs[1]


def dcp_attention(path, mesh):
    model = parallel(True, mesh)
    heads = 16 if len(model.lm_head.weight[0]) == 256 else 4  # of torchtitan's model, or ours

    def run(tokens, labels, targets, passed):
        loss = loss_of(model(tokens, **passed), labels) / targets
        loss.backward()
        return loss

    trainer = trainer_of(DCPTrainer, mesh, fwd_bwd_fn=run)
    rows = [{"tokens": own.tolist()} for own in batch()[0][0].split(LENGTHS[0])]
    loader = make_loader(
        rows, load(path).mask("causal"), shape=ModelShape(heads, heads, 16, 4), mesh=mesh,
        cluster=Cluster(1, mesh.size()), config=PlanConfig("static:zigzag"), block_size=32,
    )  # fmt: skip
    ((data, plan),) = loader
    inputs = {"input": data.tokens[None], "data": data, "plan": plan}
    accumulated = 2 * (data.labels != -100).sum()
    loss = sum(
        trainer.forward_backward_step(
            input_dict=inputs, labels=data.labels[None], global_valid_tokens=accumulated
        )
        for _ in range(2)
    )
    sinks_are_those_of_gpt_oss(trainer.executor, plan, heads)
    branches_are_refused(trainer, mesh)
    trainer.executor.close()
    compare(loss, model, load(path).mask("packed"), 1, TOKENS - len(LENGTHS[0]))


def branches_are_refused(trainer, mesh):
    """On every rank, though one alone holds the token that has two targets."""
    trainer.fwd_bwd_fn = lambda *_: pytest.fail("the step of a batch with branches ran")
    rows = [{"tokens": list(range(24)), "question_len": 8, "answer_lens": [9, 7]}]
    ((data, plan),) = make_loader(
        rows, Spec.from_text(BRANCHES).mask("own"), shape=ModelShape(4, 4, 16, 4), mesh=mesh,
        cluster=Cluster(1, mesh.size()), config=PlanConfig("static:zigzag"), block_size=4,
    )  # fmt: skip
    inputs = {"input": data.tokens[None], "data": data, "plan": plan}
    with pytest.raises(RunError, match=r"one target per token, .* 1 more targets in .*bran"):
        trainer.forward_backward_step(
            input_dict=inputs, labels=data.labels[None],
            global_valid_tokens=data.loss_mask.sum(),
        )  # fmt: skip


class WithSinks:
    """GPT-OSS hands its attention a method that rescales the output by its sinks."""

    def __init__(self, heads):
        self.sinks = torch.linspace(-1, 2, heads)

    def rescale(self, out, lse):
        return out * torch.sigmoid(lse - self.sinks)[..., None]


def sinks_are_those_of_gpt_oss(executor, plan, heads):
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, TOKENS, heads, 16, generator=generator) for _ in range(3))
    own = torch.from_numpy(plan.local_tokens(executor.rank).copy())
    document = torch.arange(len(LENGTHS[0])).repeat_interleave(torch.tensor(LENGTHS[0]))
    seen = torch.tril(document[:, None] == document)
    scores = (torch.einsum("bqnh,bknh->bqkn", q, k) / 4).masked_fill(~seen[..., None], -torch.inf)
    wanted = torch.einsum("bqkn,bknh->bqnh", scores.softmax(2), v)
    wanted = WithSinks(heads).rescale(wanted, scores.logsumexp(2))
    layers, attention = LayerPlans.prepare(executor, plan), DCPAttention.Config(layer=0).build()
    mine = [x[:, own] for x in (q, k, v)]
    found = attention(*mine, attention_masks=layers, out_transform=WithSinks(heads).rescale)
    torch.testing.assert_close(found, wanted[:, own], rtol=1e-4, atol=1e-5)
    with pytest.raises(RunError, match="layer 0: no plan computes <function"):
        attention(*mine, attention_masks=layers, out_transform=lambda out, lse: out)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    flex._validate_device = lambda *_: None  # its backward on the CPU is there, and works
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # the same formula, not traced
    FlexAttention._compiled_flex_attn = staticmethod(flex.flex_attention)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    path = Path(sys.argv[1]) / f"masks-{dist.get_rank()}.dcpm"
    path.write_text(SPEC)
    flex_attention(path, mesh)
    dcp_attention(path, mesh)
    print("equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
