"""Every model family of the table trains as one process does, or is refused by name."""

import importlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from family_ranks import BUDGET, loader_of, model_of, rows
from model_families import REFUSED, SIZES, SUPPORTED
from torch.nn import functional

from dcp_runtime import DCPExecutor, LayerPlans, RunError, check_model, register_dcp


def by_name(families):
    return pytest.mark.parametrize("family", families, ids=[each.name for each in families])


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    """Train all supported families on two ranks, once."""
    folder = tmp_path_factory.mktemp("families")
    start_ranks(2, Path(__file__).with_name("family_ranks.py"), folder, folder)
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
@by_name(SUPPORTED)
def test_a_compiled_model_gives_the_logits_of_the_model(family):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch._dynamo.reset()
    register_dcp()
    model = model_of(family, "dcp").float()
    compiled = torch.compile(model, backend="aot_eager")
    try:
        with DCPExecutor() as executor:
            for data, plan in loader_of(family, 1):
                layers = LayerPlans.prepare(executor, plan)
                inputs = {"position_ids": data.position_ids[None], "use_cache": False}
                logits = compiled(input_ids=data.tokens[None], dcp=layers, **inputs).logits
                plain = model(input_ids=data.tokens[None], dcp=layers, **inputs).logits
                torch.testing.assert_close(logits, plain)
                logits.sum().backward()
    finally:
        dist.destroy_process_group()


@by_name(REFUSED)
def test_models_that_mix_tokens_outside_attention_are_refused(family):
    transformers = importlib.import_module("transformers")
    register_dcp()
    config = getattr(transformers, family.config)(**{**SIZES, **family.options})
    with pytest.raises(RunError, match=family.refused):
        check_model(
            transformers.AutoModelForCausalLM.from_config(config, attn_implementation="dcp")
        )
