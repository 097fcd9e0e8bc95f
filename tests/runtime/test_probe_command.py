"""`dcpm probe` prints what its page shows; what it advises works; models stay as they were."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from test_probe import CAUSAL, DIM, LENS, PACKED, TOKENS, Attention, Block, Tiny, window
from torch import nn

from dcp_dsl import DCPError, Sample, Spec
from dcp_runtime import RunError, assert_sees, probe
from dcp_runtime.commands import probe as command

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "probe.md").read_text("utf-8")
IDS = torch.arange(TOKENS)[None]
ROW = Sample({"doc_lens": LENS}, TOKENS)
SPEC = Spec.from_text("segment pack = doc[doc_lens]*  mask packed = causal per doc")


def blocks(language):
    fences = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [code for found, code in fences if found == language]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the command in a folder, on files."""

    def run(*arguments, **files):
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(command, arguments)
        if result.exception and not isinstance(result.exception, (SystemExit, DCPError)):
            raise result.exception
        return result

    return run


@pytest.mark.filterwarnings("ignore")  # of transformers, about its own defaults
def test_the_example_of_the_page_prints_what_it_shows(run):
    model, batch, in_python = blocks("python")
    first, second = (text for text in blocks("") if text.startswith("$ dcpm probe"))
    line, shown = first.split("\n", 1)
    (text,) = blocks("dcpm")
    result = run(*line.removeprefix("$ dcpm probe ").split(), packed_dcpm=text)
    assert result.stdout == shown
    assert result.exit_code == 1
    arguments = second.removeprefix("$ dcpm probe ").split()
    result = run(*arguments, model_py=model)
    assert result.stdout == shown
    # What the page advises.
    result = run(*arguments, model_py=model + batch)
    assert result.stdout == "2 modules mix tokens; all see what is written\n"
    assert result.exit_code == 0
    names: dict[str, object] = {}
    exec(compile(model + batch + in_python, "docs/probe.md", "exec"), names)
    assert names["wrong"] is None


def test_a_file_without_a_name_lists_its_names(run):
    text = "mask a = causal  stack b = a"
    result = run("m.py", "--mask", "m.dcpm", "--row", "len = 5", m_py="", m_dcpm=text)
    assert "--mask: name one of a, b, as in m.dcpm:NAME" in result.stderr
    assert result.exit_code == 2
    script = SCRIPT.format(inputs="x") + "def batch(row): return torch.randn(1, row.length, 4)"
    assert run("m.py", "--mask", "m.dcpm:b", "--row", "len = 5", m_py=script).exit_code == 1


SCRIPT = """
import torch
from torch import nn

class Mean(nn.Module):
    def forward(self, {inputs}):
        return {inputs} + {inputs}.mean(1, keepdim=True)

def make_model():
    return Mean()
"""


def test_the_document_of_the_command_holds_every_wrong_pair(run):
    batch = "def batch(row):\n    return torch.randn(1, row.length, 4)\n"
    script = SCRIPT.format(inputs="x") + batch
    result = run("own.py", "--mask", "causal", "--row", "len = 5", "--json", own_py=script)
    document = json.loads(result.stdout)
    (wrong,) = document["wrong"]
    assert document["schema"] == "dcp.probe/1"
    assert wrong["leaks"] == [[q, k] for q in range(5) for k in range(q + 1, 5)]
    assert (wrong["first"], wrong["hides"], wrong["layer"]) == ([0, 1], [], 0)


@pytest.mark.filterwarnings("ignore")  # of transformers, about its own defaults
def test_classes_of_transformers_are_made_small_or_refused(run):
    # A window as long as the row hides nothing: the written one does.
    row = ("--mask", "sliding(4)", "--row", "len = 11")
    result = run("hf:MistralForCausalLM", *row)
    assert (result.exit_code, "layer 1, " in result.stdout) == (1, True)
    assert run("hf:MistralForCausalLM", *row, "--config", "sliding_window=4").exit_code == 0
    for arguments, message in {
        ("hf:Nothing",): "hf:Nothing: expected a model class of transformers",
        ("hf:LlamaForCausalLM", "--config", "window=4"): "LlamaConfig has no `window`",
        ("hf:PaliGemmaForConditionalGeneration",): "parts of it have configs of their own",
        ("hf:GPTNeoForCausalLM",): "GPTNeoConfig refuses small sizes",
        ("own.py", "--config", "window=4"): "got --config, which is for hf:CLASS",
        ("own.py",): "own.py: expected a file, or hf:CLASS of transformers; got no such file",
    }.items():
        assert message in str(run(*arguments, *row).exception)


def test_a_file_without_a_model_or_a_batch_says_what_is_missing(run):
    arguments = ("own.py", "--mask", "causal", "--row", "len = 5")
    result = run(*arguments, own_py="model = 3")
    assert "defines `model`, a torch module, or `make_model()`" in str(result.exception)
    result = run(*arguments, own_py=SCRIPT.format(inputs="x"))
    assert "its forward takes x: define batch(row) in the file" in str(result.exception)


def test_a_test_fails_with_the_layer_the_pair_and_a_drawing():
    model = Tiny([Block(Attention(PACKED)), Block(Attention(window(4)))])
    with pytest.raises(AssertionError) as failed:
        assert_sees(model, (IDS,), SPEC.mask("packed"), ROW)
    text = str(failed.value)
    assert "layer 1, `layers.1.mixer` (Attention), leaks 12 pairs and hides 31 pairs:\n" in text
    assert "  query 4 does not see key 0; written is `packed`\n" in text
    assert "\n    dddddddddDDDDDddddddddd\n" in text
    assert [line.split(":")[0] for line in text.split("\n") if " pairs (" in line] == [
        "sees", "leaks", "hides"
    ]  # fmt: skip
    assert_sees(Tiny([Block(Attention(PACKED))]), (IDS,), SPEC.mask("packed"), ROW)


def test_layers_of_torch_are_asked_module_by_module():
    # In eval mode they would run in one kernel, and call no module.
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    report = probe(model, torch.randn(1, 5, 16), np.ones((5, 5), bool))
    assert [each.module.split("`")[1] for each in report.layers] == [
        "layers.0.self_attn", "layers.1.self_attn"
    ]  # fmt: skip
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("written", [window(4), [window(4)], [window(4), CAUSAL], [None, CAUSAL]])
def test_masks_may_be_matrices_and_cycles_of_them(written):
    masks = [window(4), CAUSAL] if isinstance(written, list) and len(written) > 1 else [window(4)]
    assert_sees(Tiny([Block(Attention(mask)) for mask in masks]), IDS, written)


def test_a_mask_without_columns_needs_no_sample():
    assert_sees(Tiny([Block(Attention(window(4)))]), IDS, Spec.from_text("").mask("sliding(4)"))


def test_a_model_is_left_as_it_was():
    dropping = nn.Sequential(nn.Dropout(0.5), Attention(CAUSAL))
    model = Tiny([Block(Attention(PACKED)), Block(dropping)])
    model.layers[0].eval()
    nn.init.zeros_(model.layers[0].mixer.out.weight)  # as some models begin
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    random = torch.get_rng_state()
    report = probe(model, IDS, [PACKED, CAUSAL])
    assert report.first_wrong is None
    assert [m.training for m in model.modules()] == modes
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any("forward" in m.__dict__ for m in model.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_frozen_weights_and_repeated_modules_raise_no_alarm(dtype):
    shared = Block(Attention(PACKED))
    model = Tiny([shared, Block(Attention(CAUSAL)), shared]).to(dtype).requires_grad_(False)
    report = probe(model, IDS, [PACKED, CAUSAL, PACKED])
    assert [layer.layer for layer in report.layers] == [0, 1, 2]
    assert report.first_wrong is None


def test_a_pair_that_saturates_at_the_inputs_of_the_model_is_not_called_hidden():
    class Gated(nn.Module):
        def forward(self, x):  # the mean of the past, where this token lets it through
            past = torch.tril(torch.ones(TOKENS, TOKENS)) / torch.arange(1, TOKENS + 1)[:, None]
            return past @ x * x.sum(-1, keepdim=True).relu()

    x = torch.randn(1, TOKENS, DIM) - 1
    assert not Gated()(x).any()
    torch.manual_seed(0)
    assert_sees(Gated(), x, CAUSAL)


@pytest.mark.parametrize(
    ("model", "batch", "mask", "message"),
    [
        (Tiny([nn.Linear(DIM, DIM)]), IDS, CAUSAL, "no module mixes tokens"),
        (Tiny([Block(Attention(CAUSAL))]), IDS, np.tri(9, dtype=bool), "dimension of 9"),
        (Tiny([Block(Attention(CAUSAL))]), IDS[:, :9], CAUSAL, "the call of the model failed"),
        (Tiny([Block(Attention(CAUSAL))]), IDS, [None], "got linear layers alone"),
        (Tiny([Block(Attention(CAUSAL))]), IDS, CAUSAL[:5], r"got \(5, 23\)"),
        (nn.Sequential(nn.Linear(TOKENS, TOKENS)), torch.randn(1, 23, 23), CAUSAL, "of another"),
    ],
)
def test_what_cannot_be_compared_is_refused(model, batch, mask, message):
    with pytest.raises(RunError, match=message):
        probe(model, batch, mask)


def test_a_row_of_another_length_is_told_from_features():
    wide = nn.TransformerEncoderLayer(TOKENS + 1, 2, 16, dropout=0.0, batch_first=True)
    with pytest.raises(RunError, match="the row has 24 tokens, and `self_attn"):
        probe(wide, torch.randn(1, 24, 24), np.ones((24, 24), bool))
    assert_sees(wide, torch.randn(1, TOKENS, 24), np.ones((TOKENS, TOKENS), bool))
