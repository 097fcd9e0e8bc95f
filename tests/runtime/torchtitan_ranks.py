"""One rank of torchtitan's trainer under the recipe: ``torchtitan_ranks.py FOLDER [CHECK ...]``.

FOLDER holds torchtitan, or what stands in for it. The checks that train compare the gradients of
all parameters after a step with those of one process: it runs each document alone, under masks
evaluated pair by pair, and clips by its own norm. Prints the name of each check that has passed.
"""

import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, sys.argv[1])
try:
    import torchtitan_on_cpu as real
except ImportError:  # something stands in for torchtitan
    real = None
import torchtitan_recipe as recipe
from torchtitan.models.common.attention import FlexAttention
from torchtitan.models.llama3 import config_registry, model_registry

from dcp_dsl import Sample, dense_mask, load
from dcp_runtime import LayerPlans, RunError

SPEC = """
segment document = doc[doc_lens]*
segment part = question[question_len] branch answer[answer_lens]*
mask packed = causal per doc
mask local = causal per doc and q - k < 100
mask plain = causal
mask own = paths
"""
# Batches of an epoch have 39, 2 and 40 tokens; that of 2 lies on one rank.
LENGTHS = (30, 9, 2, 40)
MAX_NORM, BUDGET = 0.05, 40


def drawn(*sizes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 2048, (n,), generator=generator) for n in sizes]


def config_of(kind, *, context=2, accumulated=1, rows=(), mask="plain", length=BUDGET * 2):
    """The config of a trainer of two layers."""
    base = config_registry.llama3_debugmodel()
    base.model_spec = model_registry("debugmodel", attn_backend="flex")
    model, sizes = base.model_spec.model, base.training
    model.layers = model.layers[:2]
    base.parallelism.context_parallel_degree, sizes.max_norm = context, MAX_NORM
    batches = accumulated * (2 // context)
    setattr(sizes, recipe.CONTEXT, length)
    if recipe.TOKENS:
        sizes.local_batch_size, sizes.global_batch_size = 1, batches
    else:
        sizes.num_tokens_per_microbatch_per_dp_rank = length
        sizes.num_tokens_per_train_step = length * batches
    path = Path(f"masks-{os.environ['RANK']}.dcpm")
    path.write_text(SPEC + f'for "*" use {mask}\n')
    if kind is recipe.DCPTrainer:
        recipe.use_dcp(model)
        pq.write_table(pa.Table.from_pylist(list(rows)), path.with_suffix(".parquet"))
        heads = getattr(model.layers[0].attention, "n_heads", 4)
        base.dataloader = recipe.DCPBatches.Config(
            rows=str(path.with_suffix(".parquet")), spec=str(path), token_budget=BUDGET,
            heads=(heads, heads, 16),
        )  # fmt: skip
        sizes.disable_cuda_graphs = True
    if real is not None:
        real.configure(base, context)
    config = recipe._as(kind.Config, base)
    if kind is recipe.FlexTrainer:
        config.spec = str(path)
    return config


def trainer_of(kind, config=None, **options):
    trainer = kind(config or config_of(kind, **options))
    if real is not None:
        real.complete(trainer)
    return trainer


def whole(value):
    value = value.detach()
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def parameters_of(model):
    return {
        name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", ""): weight
        for name, weight in model.named_parameters()
    }


def one_process(trainer):
    """A model of one process with the weights that the trainer has now."""
    config = model_registry("debugmodel", attn_backend="flex").model
    config.layers = config.layers[:2]
    if hasattr(config, "update_from_config"):  # positions are those of the trainer's config
        for layer in config.layers:
            own = trainer.model_config.layers[0].attention.rope
            layer.attention.rope = own
    model = config.build()
    model.init_states()
    weights = {
        name: whole(weight) for name, weight in parameters_of(trainer.model_parts[0]).items()
    }
    with torch.no_grad():
        for name, weight in parameters_of(model).items():
            weight.copy_(weights[name])
    return model


def logits_of(model, tokens, positions, dense):
    """Logits [T, V] of a row of tokens under a dense mask."""
    seen = flex.create_block_mask(
        lambda b, h, q, k: dense[q, k], 1, None, len(tokens), len(tokens), device="cpu"
    )
    if recipe.TOKENS:
        return model(tokens[None], positions=positions[None], attention_masks=seen)[0]
    return model(tokens, positions=positions, attention_masks=seen)


def losses_of(model, tokens, labels=None, positions=None, dense=None):
    """The loss of each token but the last, alone and causal where nothing else is said."""
    n = len(tokens)
    dense = torch.ones(n, n).tril().bool() if dense is None else dense
    logits = logits_of(model, tokens, torch.arange(n) if positions is None else positions, dense)
    if labels is not None:
        return functional.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
    return functional.cross_entropy(logits[:-1], tokens[1:], reduction="none")


def compare(trainer, model, losses):
    """Compare the trainer's gradients with those of summed losses over their number, clipped."""
    total = torch.cat(losses)
    count = int((total != 0).sum())  # labels that are left out have none
    (total.sum() / count).backward()
    wanted = {name: weight.grad for name, weight in parameters_of(model).items()}
    norm = torch.stack([gradient.norm() for gradient in wanted.values()]).norm()
    assert norm > MAX_NORM
    for name, weight in parameters_of(trainer.model_parts[0]).items():
        value, found = wanted[name] * MAX_NORM / norm, whole(weight.grad)
        assert (found - value).norm() <= 1e-4 * value.norm() + 1e-9, name
    return count


def epochs_of_unequal_batches():
    """Accumulated over the end of an epoch; a rank without tokens; resumed."""
    rows = [{"tokens": own.tolist()} for own in drawn(*LENGTHS)]
    trainer = trainer_of(recipe.DCPTrainer, accumulated=2, rows=rows)
    batches, seen, states = trainer.batch_generator(trainer.dataloader), 0, []
    for taken in ((0, 1, 2), (3, 0, 1)):
        model = one_process(trainer)
        trainer.train_step(batches)
        states.append(trainer.dataloader.state_dict())
        compare(trainer, model, [losses_of(model, torch.tensor(rows[n]["tokens"])) for n in taken])
        seen += sum(LENGTHS[n] for n in taken)
        of_all_ranks = torch.tensor(float(trainer.ntokens_seen))
        dist.all_reduce(of_all_ranks)
        assert of_all_ranks == seen
    if real is None:  # torchtitan sets it back when it logs
        assert trainer.metrics_processor.ntokens_since_last_log == seen
        counts = sum(b for name, b in trainer.model_parts[0].named_buffers() if "expert" in name)
        dist.all_reduce(counts)
        assert counts == 2 * 2 * seen  # of two layers, which are computed again
    resumed = recipe.DCPBatches(
        trainer.config.dataloader, dp_world_size=1, dp_rank=0, **{recipe.CONTEXT: BUDGET}
    )
    resumed.load_state_dict(states[0])
    coming = iter(resumed)
    assert [next(coming)[0]["data"].rows for _ in range(3)] == [(3,), (0, 1), (2,)]
    resumed.close()
    trainer.close()


def branches():
    """A token that predicts the first of each answer has several targets."""
    question, *answers = drawn(8, 9, 7)
    row = {"tokens": torch.cat([question, *answers]).tolist(), "question_len": 8}
    trainer = trainer_of(recipe.DCPTrainer, rows=[row | {"answer_lens": [9, 7]}], mask="own")
    model = one_process(trainer)
    trainer.train_step(trainer.batch_generator(trainer.dataloader))
    losses = [losses_of(model, torch.cat([question, answer])) for answer in answers]
    assert compare(trainer, model, [losses[0], losses[1][len(question) - 1 :]]) == 23
    trainer.close()


def replicas():
    rows = [{"tokens": own.tolist()} for own in drawn(*LENGTHS)]
    trainer = trainer_of(recipe.DCPTrainer, context=1, accumulated=2, rows=rows)
    model = one_process(trainer)
    trainer.train_step(trainer.batch_generator(trainer.dataloader))
    compare(trainer, model, [losses_of(model, torch.tensor(row["tokens"])) for row in rows])
    trainer.close()


def compiled_layers():
    """Each in one graph, which takes batches of other lengths."""
    rows = [{"tokens": own.tolist()} for own in drawn(*LENGTHS)]
    config = config_of(recipe.DCPTrainer, accumulated=2, rows=rows)
    config.compile.enable, config.compile.components = True, ["model"]
    config.compile.backend = "eager" if real is None else "aot_eager"
    trainer = trainer_of(recipe.DCPTrainer, config)
    batches = trainer.batch_generator(trainer.dataloader)
    for taken in ((0, 1, 2), (3, 0, 1), (2, 3)):
        model = one_process(trainer)
        trainer.train_step(batches)
        compare(trainer, model, [losses_of(model, torch.tensor(rows[n]["tokens"])) for n in taken])
    trainer.close()


def balanced_shares():
    """FlexAttention; the batch begins inside a document."""
    n, lengths = 512, ((200, 40, 272), (512,))
    trainer = trainer_of(recipe.FlexTrainer, length=n)
    rows = lengths if recipe.TOKENS else lengths[:1]
    tokens = torch.stack(drawn(*[n] * len(rows)))
    positions = torch.stack([torch.cat([torch.arange(k) for k in row]) for row in rows])
    positions[0, : lengths[0][0]] += 5
    labels = tokens.roll(-1, 1)
    labels[:, -1] = labels[positions.roll(-1, 1) == 0] = -100
    model, losses = one_process(trainer), []
    mask = load(trainer.config.spec).mask("packed")
    for own, row, wanted, at in zip(tokens, rows, labels, positions, strict=True):
        dense = torch.from_numpy(dense_mask(mask, Sample({"doc_lens": list(row)}, n)))
        losses.append(losses_of(model, own, wanted, at, dense))
    batch = (tokens, positions, labels) if recipe.TOKENS else (tokens[0], positions[0], labels[0])
    inputs = {"input": batch[0], "positions": batch[1]}
    trainer.train_step(trainer.batch_generator([(dict(inputs), batch[2])]))
    compare(trainer, model, losses)
    assert trainer.ntokens_seen == tokens.numel() // 2
    # As GPT-OSS names them.
    trainer.config.masks = {"basic_mask": "packed", "sliding_window_mask": "local"}
    masks = trainer.post_dataloading_process(inputs, batch[2])[2]["attention_masks"]
    assert list(masks) == list(trainer.config.masks)
    blocks = [m.kv_num_blocks.sum() + m.full_kv_num_blocks.sum() for m in masks.values()]
    dist.all_reduce(found := torch.stack(blocks))
    assert found[0] > found[1]


class WithSinks:
    """GPT-OSS hands its attention a method that rescales the output by its sinks."""

    def __init__(self, heads):
        self.sinks = torch.linspace(-1, 2, heads)

    def rescale(self, out, lse):
        return out * torch.sigmoid(lse - self.sinks)[..., None]


def sinks_of_gpt_oss():
    """And what no plan computes."""
    trainer = trainer_of(recipe.DCPTrainer, rows=[{"tokens": list(range(BUDGET))}])
    executor, heads = recipe.DCPExecutor(), trainer.config.dataloader.heads[0]
    _, plan = next(iter(trainer.dataloader.loader))
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(BUDGET, heads, 16, generator=generator) for _ in range(3))
    scores = torch.einsum("qnh,knh->qkn", q, k) / 4
    scores = scores.masked_fill(~torch.ones(BUDGET, BUDGET).tril().bool()[..., None], -torch.inf)
    wanted = torch.einsum("qkn,knh->qnh", scores.softmax(1), v)
    wanted = WithSinks(heads).rescale(wanted, scores.logsumexp(1))
    own = torch.from_numpy(plan.local_tokens(executor.rank).copy())
    plans = recipe.Plans(LayerPlans.prepare(executor, plan), False)
    attention = recipe.DCPAttention.Config(layer=0).build()
    mine = [x[own][None] if recipe.TOKENS else x[own] for x in (q, k, v)]
    found = attention(*mine, attention_masks=plans, out_transform=WithSinks(heads).rescale)
    torch.testing.assert_close(found.reshape(-1, heads, 16), wanted[own], rtol=1e-4, atol=1e-5)
    for others in ({"out_transform": lambda out, lse: out}, {"score_mod": lambda *_: 0}):
        with pytest.raises(RunError, match="layer 0: no plan computes <function"):
            attention(*mine, attention_masks=plans, **others)
    with pytest.raises(RunError, match=r"layer 0: expected the plans of a batch .* got NoneType"):
        attention(*mine, attention_masks=None)
    executor.close()
    trainer.close()


def settings_that_are_refused():
    """By their names on the command line; with what the message says they are taken."""
    rows = [{"tokens": list(range(9))}]
    for kind in (recipe.DCPTrainer, recipe.FlexTrainer):
        names = {"validator.enable": True}
        if kind is recipe.DCPTrainer:
            names |= {
                f"parallelism.{n}_parallel_degree": 2 for n in ("pipeline", "tensor", "expert")
            }
            names |= {"training.disable_cuda_graphs": False, "debug.spmd_typechecking": True}
        for name, value in names.items():
            config = config_of(kind, rows=rows, length=512)
            part, field = name.split(".")
            wanted = getattr(getattr(config, part), field)
            setattr(getattr(config, part), field, value)
            with pytest.raises(RunError, match=rf"expected --{name} {wanted}, got {value}; "):
                kind(config)
    config = config_of(recipe.DCPTrainer, rows=rows)
    said = rf"expected at most --training\.{recipe.CONTEXT}, 39, .*, got 40; set both"
    with pytest.raises(RunError, match=said):
        config.dataloader.build(dp_world_size=1, dp_rank=0, **{recipe.CONTEXT: 39})


class OwnGate(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).cumsum(-2)


def configs_of_the_recipe():
    """Both are ready to run, but for a path of rows."""
    for make, kind in (
        (recipe.llama3_flex, recipe.FlexTrainer), (recipe.llama3_dcp, recipe.DCPTrainer)
    ):  # fmt: skip
        config = make()
        assert type(config) is kind.Config
        attention = config.model_spec.model.layers[1].attention.inner_attention
        is_ours = kind is recipe.DCPTrainer
        assert isinstance(attention, recipe.DCPAttention.Config) == is_ours
        assert isinstance(attention, FlexAttention.Config)
        if is_ours:
            assert attention.layer == 1
            assert config.training.disable_cuda_graphs
            assert getattr(config.training, recipe.CONTEXT) == config.dataloader.token_budget
        else:
            assert config.masks == {"": "packed"}


def modules_that_may_mix_tokens():
    model = config_of(recipe.DCPTrainer, rows=[{"tokens": [1]}]).model_spec.model.build()
    recipe.check_model(model)
    mixers = {"Conv1d": torch.nn.Conv1d(2, 2, 3), "_BatchNorm": torch.nn.BatchNorm1d(2)}
    for name, mixer in (mixers | {"OwnGate": OwnGate(2, 2)}).items():
        model.layers["1"].attention.mixer = mixer
        with pytest.raises(RunError, match=rf"^layers.1.attention.mixer: .* got {name}; "):
            recipe.check_model(model)
    recipe.TOKEN_WISE[OwnGate.__module__] = "OwnGate"
    recipe.check_model(model)
    model.layers["1"].attention.mixer = recipe.DCPAttention.Config(layer=3).build()
    recipe.check_model(model)
    layers = [SimpleNamespace(attention=None)]
    with pytest.raises(RunError, match="layer 0: expected attention, got SimpleNamespace"):
        recipe.use_dcp(SimpleNamespace(layers=layers))


CHECKS = {
    check.__name__: check
    for check in (
        epochs_of_unequal_batches, branches, replicas, compiled_layers, balanced_shares,
        sinks_of_gpt_oss,
        settings_that_are_refused, configs_of_the_recipe, modules_that_may_mix_tokens,
    )
}  # fmt: skip


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    flex._validate_device = lambda *_: None  # its backward on the CPU is there, and works
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # the same formula, not traced
    FlexAttention._compiled_flex_attn = staticmethod(flex.flex_attention)
    dist.init_process_group("gloo")
    for name in sys.argv[2:] or CHECKS:
        CHECKS[name]()
        print(f"{name} passed", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
