"""Code and commands of the documents do what the documents say."""

import doctest
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import generate_tables
import pytest

from dcp_dsl import check
from dcp_planner import read_plan

Run = Callable[[str, Path], str]
ROOT = Path(__file__).resolve().parent.parent
ALONE = """
import torch, torch.distributed as dist
from dcp_dsl import Spec
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
spec = Spec.from_text('for "*" use causal')
"""


def blocks(path: str, language: str) -> list[str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [code for found, code in fences if found == language]


@pytest.fixture
def run(start_python: Callable[..., Any]) -> Run:
    """Run code in a folder and return what it prints; whoever asks is answered with Enter."""

    def run(code: str, folder: Path) -> str:
        script = folder / "shown.py"
        script.write_text(f"import io, sys; sys.stdin = io.StringIO('\\n')\n{code}", "utf-8")
        # No core is left for planner processes.
        fork = start_python(script, folder=folder, LOCAL_WORLD_SIZE="64")
        assert fork.wait(250) == 0, fork.err.read_text()
        return str(fork.out.read_text())

    return run


def test_ten_lines_of_the_first_page_run(tmp_path: Path, run: Run):
    (planning,) = blocks("docs/start.md", "python")
    imbalance, seconds = map(float, run(planning, tmp_path).split())
    assert 1 <= imbalance <= 1.4  # the tolerance of the wider search; no cap holds it lower
    assert 0 < seconds < 1


def test_first_picture_of_the_first_readme_is_a_plan_for_eight_devices(tmp_path: Path):
    (typed,) = [b for b in blocks("README.md", "") if b.startswith("python3 -m venv")]
    _, *commands, serving = typed.splitlines()
    assert commands.pop(0).startswith("pip install")
    assert serving == "dcpm dashboard runs"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)],
        cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "q question  a answer" in done.stdout
    assert "static:zigzag" in done.stdout
    assert read_plan(tmp_path / "runs" / "mine.dcpplan").plan.num_devices == 8


TRAINING_PAGE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
row = {"question_len": 300, "answer_lens": [200, 200]}
dataset = [{"tokens": [n % 50 for n in range(700)], **row} for _ in range(5)]
def project(tokens, positions):
    assert tokens.shape == positions.shape
    q = torch.randn(len(tokens), 8, 128, requires_grad=True)
    return q, torch.randn(len(tokens), 2, 2, 128, requires_grad=True)
def head(out):
    return out.flatten(1)[:, :50]
"""
GRADIENTS = """
from torch.nn import functional
from dcp_dsl import Sample, dense_mask
mask = load("train.dcpm").mask("shared_question")
seen = [torch.from_numpy(dense_mask(mask, Sample.of(dataset[n], mask))) for n in local_data.rows]
k, v = kv.repeat_interleave(4, dim=2).unbind(1)
dense = functional.scaled_dot_product_attention(
    *(x.transpose(0, 1)[None] for x in (q, k, v)), attn_mask=torch.block_diag(*seen).bool()
)[0].transpose(0, 1)
logits, targets = head(dense)[local_data.target_rows], local_data.target_ids
wanted = functional.cross_entropy(logits, targets, reduction="sum")
for found, one in zip((q, kv), torch.autograd.grad(wanted / local_data.num_targets, (q, kv))):
    assert (found.grad - one).norm() <= 1e-5 * one.norm()
for row in dataset:
    row["is_answer"] = [0] * 300 + [1] * 400
"""
TARGETS = """
for row in dataset:
    row["advantages"], row["old_log_probs"] = [0.5] * 700, [-3.9] * 700
def model(tokens, positions):
    return torch.zeros(len(tokens), 50)
"""
TARGETS_CHECK = """
assert local_data.num_targets == len(local_data.rows) * 699
assert abs(loss.item() + 0.5 * 50 ** -1 * 2.718281828 ** 3.9) < 1e-4
"""
LAYER = """
loader.close()
layer = 1
for row in dataset:
    del row["is_answer"]  # the loaders that follow do not read it
"""
RESUMING = """
def make_loader():
    return DCPDataloader(dataset, load("train.dcpm"), Packing(token_budget=2048))
loader = make_loader()
first = next(iter(loader))
"""
HUGGING_FACE = """
import copy
from transformers import AutoModelForCausalLM, LlamaConfig
config = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=50,
                     num_attention_heads=8, num_key_value_heads=2, head_dim=128)
loader = make_loader()
"""
DENSE_MODEL = """
mask = load("train.dcpm").mask("shared_question")
seen = [torch.from_numpy(dense_mask(mask, Sample.of(dataset[n], mask))) for n in local_data.rows]
hidden = ~torch.block_diag(*seen).bool()
bias = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)[None, None]
dense = copy.deepcopy(model)
dense.set_attn_implementation("eager")
wanted = dense(tokens, position_ids=positions, use_cache=False, attention_mask=bias).logits
assert (logits - wanted).norm() <= 1e-5 * wanted.norm()
next_token_loss(wanted, local_data).backward()
loss, optimizer = next_token_loss(logits, local_data), torch.optim.SGD(model.parameters(), lr=0.5)
"""
STEPPED = """
for one, found in zip(dense.parameters(), model.parameters(), strict=True):
    assert (found.grad - one.grad).norm() <= 1e-4 * one.grad.norm()
    assert torch.allclose(found, one - 0.5 * found.grad)  # one rank: the sum is its own
"""
WATCHED = """
from dcp_runtime import RunHistory
run = RunHistory("runs/today/run.dcprun.jsonl")
run.update()
assert run.last["tokens"] == len(local_data.tokens)
assert run.last["predicted_s"] > 0 and run.last["measured_s"] > 0
"""


def test_code_of_the_training_pages_runs(tmp_path: Path, run: Run):
    (spec,) = [b for b in blocks("docs/training.md", "") if b.startswith('for "*" having')]
    assert check(spec) == ()
    (tmp_path / "train.dcpm").write_text(spec, encoding="utf-8")
    training, watching = blocks("docs/training.md", "python")
    choices, resuming = blocks("docs/training-data.md", "python")
    (targets,) = blocks("docs/training-targets.md", "python")
    layers, again = blocks("docs/training-models.md", "python")
    hugging_face, _ = blocks("docs/adoption-huggingface.md", "python")
    stepping, _ = blocks("docs/training-parallel.md", "python")
    (saving,) = blocks("docs/reading-plans.md", "python")
    checks = f"assert loss.isfinite()\n{saving}"
    same = "assert torch.equal(out, DCPAttn.apply(layers.of(0), q, kv))\n"
    grads = "first = torch.autograd.grad(out.sum(), q)\n"
    same += f"{grads}{again}{grads.replace('first', 'second')}assert torch.equal(*first, *second)\n"
    rest = "assert [d.rows for d, _ in loader] == [(2, 3), (4,)]\n"
    logits = f"{DENSE_MODEL}{stepping}{STEPPED}executor.close()\n{WATCHED}"
    logits += "dist.destroy_process_group()\n"
    watching = f"executor.close()\n{watching}"
    first = [TRAINING_PAGE, training, checks, GRADIENTS, choices, LAYER, layers, same]
    first += [TARGETS, targets, TARGETS_CHECK]
    parts = [RESUMING, resuming, rest, watching, HUGGING_FACE, hugging_face, logits]
    run("\n".join(first + parts), tmp_path)
    traces = read_plan(tmp_path / "step.dcpplan").traces
    assert [trace.source for trace in traces] == ["simulated", "measured"]


MIXED_DATA = """
import json, pathlib
rows = {"rl/a": {"prompt_len": 3, "answer_lens": [2, 2]}, "sft/b": {"doc_lens": [4, 5]}}
for name, row in rows.items():
    path = pathlib.Path("data", f"{name}.jsonl")
    path.parent.mkdir(parents=True)
    size = sum(sum(value) if isinstance(value, list) else value for value in row.values())
    path.write_text(json.dumps({**row, "tokens": [1] * size}))
"""


def test_code_of_the_data_set_page_runs(tmp_path: Path, run: Run):
    (spec,) = [b for b in blocks("docs/datasets.md", "") if b.startswith("segment part")]
    assert check(spec) == ()
    (tmp_path / "mix.dcpm").write_text(spec, encoding="utf-8")
    (mixing,) = blocks("docs/datasets.md", "python")[:1]
    ending = "((data, plan),) = loader\nprint(sorted(data.rows), int(plan.tiles.pairs.sum()))\n"
    printed = run("\n".join([MIXED_DATA, mixing, ending]), tmp_path)
    # Two answers of two tokens behind three, and documents of four and five.
    assert printed == f"[0, 1] {6 + 2 * 9 + 10 + 15}\n"


NINE_ROWS = """
REPLICAS = RANKS = 1
from dcp_runtime import DCPAttn
dataset = [{"tokens": list(range(1000))} for _ in range(9)]
seen = []
"""


STEP_MODEL = """
def model(tokens, positions, layers):
    q = torch.ones(len(tokens), 8, 128, requires_grad=True)
    out = DCPAttn.apply(layers.of(0), q, torch.ones(len(tokens), 2, 2, 128))
    return out.mean((1, 2))[:, None].expand(-1, 1000)
"""


def test_code_for_several_nodes_and_whole_steps_runs(tmp_path: Path, run: Run):
    _, joining = blocks("docs/training-parallel.md", "python")
    joining = joining.replace("dist.init_process_group", "# ")  # the test has one process
    init, rest = joining.rsplit("\nexecutor = DCPExecutor()", 1)
    assert not rest.strip()
    (planning,) = blocks("docs/steps.md", "python")
    ending = """
    assert local_data.num_targets == 9 * 999
    seen.append((local_data.ends_step, *local_data.rows))
assert [ends for ends, *_ in seen] == [False, True]
assert sorted(row for _, *rows in seen for row in rows) == list(range(9))
executor.close()
dist.destroy_process_group()
"""
    run("\n".join([init, ALONE, NINE_ROWS, STEP_MODEL, planning.rstrip() + ending]), tmp_path)


def test_mask_of_the_first_page_is_right():
    (spec,) = [b for b in blocks("docs/start.md", "") if b.startswith("# train.dcpm")]
    assert check(spec, "train.dcpm") == ()


def test_planner_readme_runs_and_so_do_those_that_read_its_plan(tmp_path: Path, run: Run):
    (tmp_path / "runs").mkdir()
    (planning,) = blocks("planner/README.md", "python")
    run(planning, tmp_path)
    shutil.copy(tmp_path / "local.dcpplan", tmp_path / "demo.dcpplan")
    shutil.move(tmp_path / "local.dcpplan", tmp_path / "runs")
    (serving,) = blocks("dashboard/README.md", "python")
    assert "http://127.0.0.1:" in run(serving, tmp_path)
    (reading,) = blocks("docs/dcpplan.md", "python")
    run(reading, tmp_path)


@pytest.mark.parametrize("path", ["dcp_dsl/README.md", "grammar/README.md", "docs/rollouts.md"])
def test_sessions_of_a_page_are_true(path: str):
    results = doctest.testfile(str(ROOT / path), module_relative=False)
    assert results.attempted > 0
    assert results.failed == 0


def test_tables_of_the_documents_are_generated_from_their_json(monkeypatch, capsys):
    """Scripts run in this process: what they share is imported once."""

    def run(command, **_):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", [str(ROOT / command[1]), *command[2:]])
            patched.syspath_prepend(str((ROOT / command[1]).parent))
            try:
                runpy.run_path(sys.argv[0], run_name="__main__")
                code = 0
            except SystemExit as end:
                code = end.code
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=printed.out, stderr=printed.err)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(generate_tables, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(sys, "argv", ["generate_tables.py", "--check"])
    generate_tables.main()
