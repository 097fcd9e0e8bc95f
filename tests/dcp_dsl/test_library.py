"""The standard library: exact in both engines, with its page, and in every format."""

import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from second_oracle import dense

from dcp_dsl import ExchangeError, Sample, Spec, dense_mask, export_mask, import_mask
from dcp_dsl.checks.scope import library_names
from dcp_dsl.interchange import find_difference
from dcp_dsl.interchange.names import FORMATS, READABLE
from dcp_dsl.pictures.picture import preview_sample

ROOT = Path(__file__).parents[2]

WITHOUT_BRANCHES = {
    "shared_question": "segment part = question[question_len] answer[answer_lens]*\n"
    "mask a = causal and (k in question or same(answer))",
    "grpo": "segment grp = group(prompt[prompt_lens] rollout[rollout_lens]*)*\n"
    "mask a = causal and same(group) and (k in prompt or same(rollout))",
    "dpo": "segment pair = prompt[prompt_len] chosen[chosen_len] rejected[rejected_len]\n"
    "mask a = causal minus (q in rejected and k in chosen)",
    "shared_prefix(window = 2)": "segment seq = prefix[prefix_len] chat[chat_lens]*\n"
    "mask a = causal and (k in prefix or same(chat) and q - k < 2)",
    "document": "segment doc = [doc_lens]*\nmask a = causal and same(doc)",
    "document_full": "segment doc = [doc_lens]*\n@ahead mask a = same(doc)",
    "document_streaming(sink = 1, window = 2)": "segment doc = [doc_lens]*\n"
    "mask a = causal and same(doc) and (k.doc.pos < 1 or q - k < 2)",
    "prefix_lm_packed": "segment pack = doc(prefix[prefix_lens] body[body_lens])*\n"
    "@ahead mask a = same(doc) and (causal or k in prefix)",
    "block_causal(local = 2)": "segment clip = video(chunk[chunk_lens]*)*\n"
    "@ahead mask a = same(video) and k.chunk <= q.chunk and q.chunk - k.chunk < 2",
}  # definitions on hand-written segments, which say nothing of positions and targets


def drawn(name, rng):
    """Draw a column of the library: a length, three lengths, or three lists; some of them 0."""
    if name.endswith("_len"):
        return rng.randint(0, 4)
    if name in ("rollout_lens", "chunk_lens"):
        return [[rng.randint(0, 3) for _ in range(rng.randint(0, 3))] for _ in range(3)]
    return [rng.randint(0, 4) for _ in range(3)]


def flattened(value):
    return sum(map(flattened, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("call", WITHOUT_BRANCHES)
def test_masks_on_branches_have_the_pairs_of_their_definition_without(call, paint):
    mask, rng = Spec.from_text("").mask(call), Random(call)
    for _ in range(12):
        columns = {name: drawn(name, rng) for name in sorted(mask.columns)}
        length = flattened(list(columns.values()))
        wanted = dense(WITHOUT_BRANCHES[call], columns, length)
        assert np.array_equal(paint(mask.bind(Sample(columns, length))), wanted)
        assert np.array_equal(dense(f"@partial @ahead mask a = {call}", columns, length), wanted)


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


# ---- in every format -----------------------------------------------------------------------------


ARGUMENTS = {"chunked": "chunked(5)", "local": "local(3)", "sliding": "sliding(4)"}
CROSS = ("cross", "flamingo", "nsa_compressed", "prefill")  # of two sequences: test_keys.py
CALLS = tuple(ARGUMENTS.get(name, name) for name in library_names() if name not in CROSS)
REFUSED = {
    ("dcp", "X302"): {
        "dilated",
        "eviction",
        "log_sparse",
        "qk_sparse",
        "rollout_tree",
        "tree",
    },  # bounded by key, striped, or on more runs of keys than it holds
    ("flashmask", "X301"): {"dilated", "log_sparse", "modality", "qk_sparse"},
}
"""What the formats cannot hold; everything else they do."""


@pytest.mark.parametrize("name", CALLS)
def test_library_masks_are_exported_and_come_back_the_same(name):
    mask = Spec.from_text("").mask(name)
    sample = preview_sample(mask)
    assert sample is not None
    form = mask.compile(sample)
    dense = export_mask(form, "dense")
    assert (dense.arrays["mask"] == dense_mask(mask, sample)).all()
    refused = set()
    for chosen in FORMATS:
        try:
            export = export_mask(form, chosen)
        except ExchangeError as error:
            refused.add((chosen, error.code))
            continue
        if chosen in READABLE:
            assert find_difference(import_mask(export), mask.bind(sample)) is None, chosen
    assert refused == {refusal for refusal, names in REFUSED.items() if name in names}
