"""Gradients, parameter by parameter: every way to train in parallel against dense attention."""

import json
import re
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from dcp_runtime import RunError, sum_gradients

SCRIPT = Path(__file__).with_name("gradient_scenarios.py")
WAYS = ("replicate", "ddp", "fsdp", "fsdp, dp x cp", "fsdp blocks")
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
@pytest.mark.parametrize(
    ("step", "way"), [case for case in product(STEPS, WAYS) if case != (STEPS[-1], "fsdp blocks")]
)
def test_gradients_are_those_of_dense_attention_and_of_replicated_weights(result, step, way):
    found = result[f"{step}: {way}"]
    for kind in ("dense", *["replicated"] * (way in ("ddp", "fsdp", "fsdp blocks"))):
        assert len(found[kind]) == PARAMETERS
        for name, (ratio, error) in found[kind].items():
            assert ratio == pytest.approx(1, rel=EXACT), name
            assert error < EXACT, name
    assert ("norm" in found) == step.endswith("clipped")
    assert found.get("norm", 1) == pytest.approx(1, rel=EXACT)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("nothing", r"no rank has a gradient to sum: .* after loss\.backward\(\)"),
        ("twice", "called before, after the same backward: .* call it once a step"),
        ("twice, ranks without tokens", "called before, after the same backward"),
        ("late", "FSDP has taken the mean .* once after the last fully_shard, before the first"),
        ("part", r"DistributedDataParallel covers 2 of 4 ranks: .* sum_gradients\(model, group="),
    ],
)
def test_gradients_that_are_no_sums_afterwards_are_refused(result, case, says):
    assert re.search(says, result["refusals"][case])


@pytest.mark.dist
def test_gradients_of_some_ranks_are_summed_and_those_of_none_stay_none(result):
    assert "call it once a step" in result["odd"].pop("over a group, twice")
    # Ranks 0 and 3 have row 0: 1 + 4.
    assert result["odd"] == {
        "sparse": [5.0, 2.0, 3.0], "alone": [5.0, 5.0], "unused": None,
        "over a group": [10.0] * 4,
    }  # fmt: skip


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
