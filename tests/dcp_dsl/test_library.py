"""The standard library: every mask that practice needs, exact in both engines, with its page."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dcp_dsl import Sample, Spec, dense_mask, load
from dcp_dsl.forms.cross import square_slabs
from dcp_grammar import MASKS

ROOT = Path(__file__).parents[2]
LIBRARY = sorted(Path(str(MASKS)).glob("*.dcpm"))
WANTED = {
    "full", "causal", "sliding", "local", "fa_window", "chunked", "streaming", "blockwise",
    "blockwise_dcp", "demonstrations", "dilated", "strided", "fixed", "prefix_lm",
    "prefix_lm_packed", "document", "document_full", "document_streaming", "shared_question",
    "shared_prefix", "grpo", "dpo", "rag", "multimodal", "modality", "longformer",
    "block_diffusion", "natten", "sta", "tree", "eviction", "qk_sparse", "block_causal", "agent",
    "svg_spatial", "prompt_tree", "forks", "moba", "cross", "flamingo", "prefill",
}  # fmt: skip


def test_the_library_has_every_mask_of_practice():
    assert {path.stem for path in LIBRARY} == WANTED


@pytest.mark.parametrize("path", LIBRARY, ids=lambda p: p.stem)
def test_a_library_mask_binds_to_what_its_text_says(path, paint):
    spec = load(path)
    sample = spec.sample("tiny")
    definition = spec.scope.masks[path.stem]
    small = ", ".join(
        f"{param.name.text} = {2 if param.type.text == 'tokens' else 1}"
        for param in definition.params
    )
    for call in (f"{path.stem}({small})", path.stem) if small else (path.stem,):
        if call == path.stem and any(param.default is None for param in definition.params):
            continue
        mask = spec.mask(call)
        chosen = Sample({c: sample.columns[c] for c in mask.columns}, sample.length)
        dense = dense_mask(mask, chosen)
        painted = paint(square_slabs(mask.compile(chosen, may_cross=True)))
        assert np.array_equal(painted[: len(dense), : len(dense[0])], dense), call


def test_published_forms_that_differ_have_names_of_their_own():
    spec = Spec.from_text("")

    def pairs(call, length=24):
        return spec.mask(call).bind(Sample(length=length)).num_pairs

    assert pairs("sliding(4)") == pairs("fa_window(3)") < pairs("fa_window(4)")
    assert pairs("blockwise(4, 2)") < pairs("blockwise_dcp(4, 2)")
    assert pairs("streaming(2, 4)") > pairs("sliding(4)")


def test_the_page_of_masks_is_in_step_with_the_library():
    command = [sys.executable, str(ROOT / "docs" / "generate_masks.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
