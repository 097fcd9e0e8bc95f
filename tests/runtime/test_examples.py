"""The training examples: their losses are those of dense attention, their runs go on."""

import argparse
import copy
import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import emulated_training
import grpo
import loss_parity
import pytest
import rollouts
import torch
import train_gpt

from dcp_planner import ModelShape, PlanConfig, build_plan, preset, read_plan
from dcp_runtime import DCPExecutor

EXAMPLES = Path(train_gpt.__file__).parent
ARGUMENTS = argparse.Namespace(
    spec=EXAMPLES / "train.dcpm", mask="local_global", attention="dcp", parallel="replicate",
    steps=2, tokens=600, learning_rate=1e-3, dtype="float32", seed=0, planners=0,
    replicas=1, micro_batches=1, balance="work", device="cpu",
)  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "way_out"), [(0, "use --device cpu"), (2, "start at most 2 processes")]
)
def test_a_process_without_a_gpu_of_its_own_is_told(monkeypatch, gpus, way_out):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_RANK", str(gpus))
    with pytest.raises(SystemExit, match=rf"process {gpus} .* sees {gpus}; {way_out}"):
        train_gpt.take_device("cuda")
    if gpus:
        taken = []
        monkeypatch.setattr(torch.cuda, "set_device", taken.append)
        monkeypatch.setenv("LOCAL_RANK", "1")
        assert train_gpt.take_device("cuda") == "cpu:gloo,cuda:nccl"
        assert taken == [1]


@pytest.mark.usefixtures("lone_group")
def test_a_stack_trains_as_dense_masks_do_and_its_masks_matter(monkeypatch):
    """By SGD: AdamW would not notice doubled gradients and makes steps of what is only rounding."""
    monkeypatch.setattr(
        torch.optim, "AdamW", lambda parameters, lr, foreach: torch.optim.SGD(parameters, lr)
    )
    gradients = []
    monkeypatch.setattr(
        train_gpt, "sum_gradients",
        lambda model: gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()])),
    )  # fmt: skip
    with DCPExecutor() as executor:
        documents = list(islice(train_gpt.read_documents(ARGUMENTS.tokens), 12))
        losses, found = {}, {}
        for name in ("local_global", "shared_question"):
            arguments = argparse.Namespace(**{**vars(ARGUMENTS), "mask": name})
            masks = train_gpt.find_masks(arguments)
            makers = {
                order: train_gpt.dense_attention(documents, masks, keys)
                for order, keys in train_gpt.KEY_ORDERS.items()
            }
            for kind, maker in {"dcp": train_gpt.dcp_attention(executor), **makers}.items():
                loader = train_gpt.make_loader(arguments, documents, masks, train_gpt.make_mesh(1))
                losses[name, kind] = train_gpt.train(arguments, loader, maker)
                found[name, kind], gradients[:] = list(gradients), []
                if name == "shared_question":
                    break
        wanted, dense = losses["local_global", "dense"], found["local_global", "dense"]
        for kind in ("dcp", *train_gpt.KEY_ORDERS):
            assert losses["local_global", kind] == pytest.approx(wanted, rel=1e-5)
            for one, other in zip(found["local_global", kind], dense, strict=True):
                assert (one - other).norm() <= 1e-6 * other.norm()
        assert losses["shared_question", "dcp"] != pytest.approx(wanted, rel=1e-5)


@pytest.mark.usefixtures("lone_group")
def test_the_loss_of_a_step_counts_the_first_token_of_every_answer(monkeypatch):
    """By a model that looks at single tokens, so that its loss is written down pair by pair."""
    torch.manual_seed(0)
    model, document = torch.nn.Embedding(256, 256), b"Q?onetwothree"
    table = model.weight.detach().log_softmax(-1)
    model.forward = lambda tokens, positions, attend: model.weight[tokens]
    monkeypatch.setattr(train_gpt, "make_model", lambda *_, **__: model)
    arguments = argparse.Namespace(**{**vars(ARGUMENTS), "mask": "shared_question", "steps": 1})
    rows = [{"tokens": document, "question_len": 2, "answer_lens": [3, 3, 5]}]
    pairs = [b"Q?", b"?o", b"on", b"ne", b"?t", b"tw", b"wo", b"?t", b"th", b"hr", b"re", b"ee"]
    masks, mesh = train_gpt.find_masks(arguments), train_gpt.make_mesh(1)
    loader = train_gpt.make_loader(arguments, rows, masks, mesh)
    (loss,) = train_gpt.train(arguments, loader, train_gpt.dense_attention(rows, masks, None))
    assert loss == pytest.approx(-sum(table[q, k].item() for q, k in pairs) / len(pairs), rel=1e-6)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("ranks", [2, 4])
def test_losses_do_not_depend_on_the_number_of_ranks(tmp_path, ranks):
    found = []
    for attention, count in (("dense", 1), ("dcp", ranks)):
        out = tmp_path / f"{attention}.json"
        done = subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count),
                str(EXAMPLES / "train_gpt.py"), "--mask", "local_global", "--steps", "3",
                "--tokens", "1024", "--attention", attention, "--losses", str(out),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(out.read_text(encoding="utf-8")))
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.fixture
def measure(monkeypatch, tmp_path):
    """Call the program with runs that cost nothing; gives the runs it made and the document."""
    made, out = [], tmp_path / "parity.json"

    def run(mask, steps, ranks, attention, dtype):
        made.append((mask, ranks, attention, dtype))
        offset = {"dense-reversed": 0.1, "dense-rotated": -0.2, "dcp": 0.05}.get(attention, 0)
        return [2.0 + offset * step for step in range(steps)]

    monkeypatch.setattr(loss_parity, "run", run)
    monkeypatch.setattr(loss_parity, "draw", lambda document, path: None)

    def call(*arguments):
        made.clear()
        command = ["loss_parity.py", "--steps", "2", "--out", str(out), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        loss_parity.main()
        return list(made), json.loads(out.read_text(encoding="utf-8"))

    return call


def test_loss_parity_makes_the_missing_runs_only_and_keeps_the_others(measure):
    made, first = measure("--masks", "causal", "--skip-bfloat16")
    assert made == [("causal", 1, "dense", "float32"), ("causal", 4, "dcp", "float32")]
    assert first["max_relative_difference"] == {"causal": pytest.approx(0.05 / 2)}
    assert first["bfloat16"] == {}
    made, second = measure("--masks", "causal,own")
    assert [run[1:] for run in made if run[0] == "causal"] == [
        (1, "dense", "bfloat16"), (1, "dense-reversed", "bfloat16"),
        (1, "dense-rotated", "bfloat16"), (4, "dcp", "bfloat16"),
    ]  # fmt: skip
    assert len(made) == 4 + 6
    assert second["losses"]["causal"]["dense"] == first["losses"]["causal"]["dense"]
    assert second["bfloat16"]["causal"] == {  # 2, 2.1 and 1.8 dense, 2.05 with DCP; equal in step 0
        "dense_runs": pytest.approx(0.3 / 2.1), "dense_runs_median": pytest.approx(0.15 / 2.1),
        "dcp": pytest.approx(0.25 / 1.8), "dcp_median": pytest.approx(0.125 / 1.8),
    }  # fmt: skip
    assert measure("--masks", "causal,own")[0] == []


def test_loss_parity_adds_nothing_to_a_measurement_of_other_steps(measure):
    measure("--masks", "causal", "--skip-bfloat16")
    with pytest.raises(SystemExit, match="expected a measurement of 2 steps on 3 ranks, got"):
        measure("--ranks", "3")


@pytest.mark.dist
@pytest.mark.usefixtures("lone_group")
def test_packed_groups_train_as_their_separate_sequences_do(tmp_path, start_ranks):
    first, _ = start_ranks(2, EXAMPLES / "grpo.py", tmp_path, "--steps", "2")
    saved, *steps = first.splitlines()
    groups, policy = grpo.sampled_groups()
    packed = sum(len(group["tokens"]) for group in groups)
    apart = sum(group["prompt_len"] + n for group in groups for n in group["rollout_lens"])
    assert f"{packed:,} tokens packed, {apart:,} in separate" in saved
    gradients = []
    for train in (grpo.train_packed, grpo.train_separate):
        model = copy.deepcopy(policy)
        train(model, groups, 1)
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    wanted = grpo.train_separate(policy, groups, 2)
    found = [tuple(map(float, re.findall(r"-?\d+\.\d+", line))) for line in steps]
    assert found == [pytest.approx(each, rel=1e-3, abs=2e-6) for each in wanted]
    for name, gradient in gradients[0].items():
        apart = gradients[1][name]
        assert (gradient - apart).norm() <= 1e-5 * apart.norm(), name


@pytest.mark.dist
@pytest.mark.usefixtures("lone_group")
def test_trees_of_rollouts_train_as_the_rollouts_do_alone(tmp_path, start_ranks):
    first, _ = start_ranks(2, EXAMPLES / "rollouts.py", tmp_path, "--steps", "2")
    saved, *steps = first.splitlines()
    given, policy = rollouts.sampled_rollouts()
    paths = {bytes(run["tokens"][: n + 1]) for run in given for n in range(len(run["tokens"]))}
    assert f"trees of {len(paths):,}," in saved
    wanted = rollouts.train_separate(policy, given, 2)
    found = [tuple(map(float, re.findall(r"-?\d+\.\d+", line))) for line in steps]
    assert found == [pytest.approx(each, rel=1e-3, abs=2e-6) for each in wanted]


@pytest.mark.dist
def test_prompts_that_are_prefilled_together_are_decoded_as_alone(tmp_path, start_ranks):
    """The script compares keys, values and tokens; here: every prompt was, on its own rank."""
    out = start_ranks(2, EXAMPLES / "prefill.py", tmp_path)
    assert [re.findall(r"prompt (\d), (\d+) tokens, rank (\d)", text) for text in out] == [
        [("0", "301", "0"), ("2", "130", "0")], [("1", "40", "1")]
    ]  # fmt: skip


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
    texts = [bytes(range(40)), bytes(range(30, 60))]
    sparsity = lab.sparsity_of([lab.MASKS["causal"](len(text)) for text in texts], 8)
    cluster = preset("a100-p4de", 1, 4)
    plan = build_plan(sparsity, ModelShape(), cluster, PlanConfig("static:zigzag"))
    model = emulated_training.TinyModel()
    loss, _ = emulated_training.step_of(model, texts, plan, 20)
    tokens = torch.tensor([*texts[0], *texts[1]])
    x = 2 * model.embedding(tokens)
    logits = model.logits(model.layer(x) + x)
    labels = torch.tensor([*texts[0][1:], -100, *texts[1][1:], -100])
    expected = torch.nn.functional.cross_entropy(logits, labels)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
