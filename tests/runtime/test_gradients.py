"""Gradients, parameter by parameter: every way to train in parallel against dense attention."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from dcp_runtime import RunError, sum_gradients

SCRIPT = Path(__file__).with_name("gradient_scenarios.py")
WAYS = ("replicate", "ddp", "fsdp", "fsdp, dp x cp")
STEPS = ("one batch", "two batches, synchronised once", "two batches, clipped")
PARAMETERS = 2 * 7 + 3
EXACT = 1e-12
"""Relative; the gradients are float64, and sums over ranks round in another order."""


@pytest.fixture(scope="module")
def result(tmp_path_factory, start_python):
    """Run all scenarios once, on four processes of one world."""
    folder = tmp_path_factory.mktemp("gradients")
    fork = start_python(SCRIPT, folder, folder=folder, PYTHONWARNINGS="error")
    assert fork.wait(280) == 0, fork.err.read_text()[-3000:]
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


@pytest.mark.dist
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", STEPS)
def test_gradients_are_those_of_dense_attention_and_of_replicated_weights(result, step, way):
    found = result[f"{step}: {way}"]
    for kind in ("dense", *["replicated"] * (way in ("ddp", "fsdp"))):
        assert len(found[kind]) == PARAMETERS
        for name, (ratio, error) in found[kind].items():
            assert ratio == pytest.approx(1, rel=EXACT), name
            assert error < EXACT, name
    assert ("norm" in found) == step.endswith("clipped")
    assert found.get("norm", 1) == pytest.approx(1, rel=EXACT)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("plain", r"fully_shard was called on, got GPT without any FSDP module; call fully_shard"),
        ("ddp", r"got DistributedDataParallel without any FSDP module; .*multiply the loss by"),
        (
            "half",
            r"no FSDP module holds embedding\.weight, norm\.weight, to_logits\.weight: .*call "
            r"fully_shard on the model itself as well, and sum_gradients after it",
        ),
    ],
)
def test_a_model_whose_gradients_would_not_be_summed_is_refused(result, model, says):
    assert re.search(says, result["refusals"][model])


def test_every_fsdp_module_gets_both_switches_if_torch_has_them(monkeypatch):
    """With gloo the first alone makes sums; reduce-scatter of other backends needs the second."""
    given = []

    class FSDPLinear(FSDPModule, torch.nn.Linear):
        def set_gradient_divide_factor(self, factor):
            given.append((self, "divide by", factor))

        def set_force_sum_reduction_for_comms(self, enable):
            given.append((self, "sum", enable))

    modules = [torch.nn.Linear(2, 2).requires_grad_(False) for _ in range(2)]
    for module in modules:
        module.__class__ = FSDPLinear
    sum_gradients(torch.nn.Sequential(modules[0], torch.nn.ReLU(), torch.nn.Sequential(modules[1])))
    assert given == [
        call for module in modules for call in ((module, "divide by", 1.0), (module, "sum", True))
    ]
    modules[0].__class__ = type("FSDPLinear", (FSDPModule, torch.nn.Linear), {})
    monkeypatch.delattr(FSDPModule, "set_force_sum_reduction_for_comms")
    with pytest.raises(RunError, match=r"have set_force_sum_reduction_for_comms, got torch 2\."):
        sum_gradients(modules[0])
    with pytest.raises(RunError, match="expected a model, got list"):
        sum_gradients([])
