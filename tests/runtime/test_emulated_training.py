"""The example of emulated training: its loop runs, its loss falls, its steps can be looked at."""

import emulated_training
import pytest

from dcp_planner import read_plan


def test_a_tiny_model_trains_on_eight_emulated_ranks(tmp_path, capsys):
    arguments = emulated_training.parse_arguments(
        ["--steps", "3", "--tokens", "2048", "--dilation", "20", "--planners", "0",
         "--out", str(tmp_path / "runs")]
    )  # fmt: skip
    steps = emulated_training.train(arguments)
    assert [step.loss for step in steps] == sorted((s.loss for s in steps), reverse=True)
    assert all(step.attention_s > 0.9 * step.predicted_s for step in steps)
    assert capsys.readouterr().out.count("waited") == 3
    content = read_plan(tmp_path / "runs" / "step-2.dcpplan")
    assert content.plan.num_devices == 8
    assert [trace.source for trace in content.traces] == ["simulated", "measured"]


def test_gradients_are_those_of_all_tokens_together(lab):
    """Attention gives every token its own value back, so one rank can check eight."""
    import torch
    from torch.nn.functional import cross_entropy

    from dcp_planner import ModelShape, PlanConfig, build_plan, preset

    texts = [bytes(range(40)), bytes(range(30, 60))]
    sparsity = lab.sparsity_of([lab.masks["causal"](len(text)) for text in texts], 8)
    cluster = preset("a100-p4de", 1, 4)
    plan = build_plan(sparsity, ModelShape(), cluster, PlanConfig("static:zigzag"))
    model = emulated_training.TinyModel()
    loss, _ = emulated_training.step_of(model, texts, plan, 20)
    tokens = torch.tensor([*texts[0], *texts[1]])
    x = 2 * model.embedding(tokens)
    logits = model.logits(model.layer(x) + x)
    labels = torch.tensor([*texts[0][1:], -100, *texts[1][1:], -100])
    expected = cross_entropy(logits, labels)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
