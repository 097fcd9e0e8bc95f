"""Every model family of the table trains as one process does, or is refused by name."""

import importlib
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import transformers
from loader_options import make_loader
from model_families import MASKS, REFUSED, SIZES, SUPPORTED
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import (
    DCPExecutor,
    LayerPlans,
    RunError,
    check_model,
    next_token_loss,
    register_dcp,
)

LENGTHS, BUDGET, BLOCK = (23, 7, 5), 30, 8
SPEC = Spec.from_text(MASKS)


def rows():
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(3, 67, (length,), generator=draw).tolist() for length in LENGTHS]


def model_of(family, attention):
    config = getattr(transformers, family.config)(**{**SIZES, **family.options})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    if "num_experts" in family.options:
        model.set_experts_implementation("eager")  # the default knows no float64
    return model.double().eval()


def loader_of(family, ranks):
    return make_loader(
        [{"tokens": row} for row in rows()], SPEC.stack(family.stack), token_budget=BUDGET,
        shape=ModelShape(*family.heads, family.head_dim), cluster=Cluster(1, ranks),
        config=PlanConfig("static:zigzag"), block_size=BLOCK,
    )  # fmt: skip


def train(family, model, executor, ranks):
    owned = []
    for data, plan in loader_of(family, ranks):
        layers = LayerPlans.prepare(executor, plan)
        out = model(
            data.tokens[None], position_ids=data.position_ids[None], dcp=layers, use_cache=False
        )
        assert out.logits.shape[1] == len(data.tokens)
        next_token_loss(out.logits, data).backward()
        owned.append(len(data.tokens))
    return owned


def main():
    """Be one of two ranks: ``test_model_families.py OUT`` saves gradients, summed over ranks.

    The second global batch has fewer tokens than a block, so that a rank has none.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    register_dcp()
    found = {}
    with DCPExecutor() as executor:
        for family in SUPPORTED:
            model = model_of(family, "dcp")
            owned = train(family, model, executor, 2)
            gradients = {}
            for name, weight in model.named_parameters():
                gradients[name] = torch.zeros_like(weight) if weight.grad is None else weight.grad
                dist.all_reduce(gradients[name])
            found[family.name] = gradients
            assert owned[1] in (0, 5), owned
        # The check of a sharded model is collective, too.
        model = model_of(SUPPORTED[0], "dcp")
        for part in (*model.model.layers, model):
            fully_shard(part)
        train(SUPPORTED[0], model, executor, 2)
        # FSDP2 averages over ranks.
        found["sharded"] = {n: 2 * w.grad.full_tensor() for n, w in model.named_parameters()}
    if dist.get_rank() == 0:
        torch.save(found, Path(sys.argv[1]) / "found.pt")
    dist.destroy_process_group()


def by_name(families):
    return pytest.mark.parametrize("family", families, ids=[each.name for each in families])


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    """Train all supported families on two ranks, once."""
    folder = tmp_path_factory.mktemp("families")
    start_ranks(2, Path(__file__), folder, folder)
    return torch.load(folder / "found.pt")


@pytest.mark.dist
@by_name(SUPPORTED)
def test_gradients_of_two_ranks_are_those_of_separate_rows(found, family):
    model = model_of(family, "eager")
    for batch in (rows()[:2], rows()[2:]):
        assert sum(map(len, batch)) <= BUDGET
        count = sum(len(row) - 1 for row in batch)
        for row in batch:
            tokens = torch.tensor(row)
            logits = model(tokens[None], use_cache=False).logits[0]
            (functional.cross_entropy(logits[:-1], tokens[1:], reduction="sum") / count).backward()
    for name, weight in model.named_parameters():
        own = found[family.name][name]
        wanted = torch.zeros_like(weight) if weight.grad is None else weight.grad
        # transformers takes its softmax in float32: 3e-7 seen.
        assert (own - wanted).norm() <= 2e-6 * wanted.norm() + 1e-7, name


@pytest.mark.dist
def test_a_sharded_model_is_checked_and_trains_as_a_whole_one(found):
    torch.testing.assert_close(found["sharded"], found[SUPPORTED[0].name])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, about its own traces
@pytest.mark.usefixtures("lone_group")
@by_name(SUPPORTED)
def test_a_compiled_model_gives_the_logits_of_the_model(family):
    torch._dynamo.reset()
    register_dcp()
    model = model_of(family, "dcp").float()
    compiled = torch.compile(model, backend="aot_eager")
    with DCPExecutor() as executor:
        for data, plan in loader_of(family, 1):
            layers = LayerPlans.prepare(executor, plan)
            inputs = {"position_ids": data.position_ids[None], "use_cache": False}
            logits = compiled(input_ids=data.tokens[None], dcp=layers, **inputs).logits
            plain = model(input_ids=data.tokens[None], dcp=layers, **inputs).logits
            torch.testing.assert_close(logits, plain)
            logits.sum().backward()


@by_name(REFUSED)
def test_models_that_mix_tokens_outside_attention_are_refused(family):
    transformers = importlib.import_module("transformers")
    register_dcp()
    config = getattr(transformers, family.config)(**{**SIZES, **family.options})
    with pytest.raises(RunError, match=family.refused):
        check_model(
            transformers.AutoModelForCausalLM.from_config(config, attn_implementation="dcp")
        )


if __name__ == "__main__":
    main()
