"""Tasks of the editor's page, without processes: findings, pictures, figures, refusals."""

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dashboard.api.encoding import decode
from dcp_dashboard.editing.planning import make_plan, preview_plan
from dcp_dashboard.editing.texts import (
    MAX_TEXT,
    check_text,
    describe_word,
    draw_text,
    format_text,
    propose,
)
from dcp_dsl import DCPError, Spec, check, dense_mask

TEXT = """segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
@partial mask holes = k in question and q in answer
mask window(w: tokens) = causal and q - k < w
sample tiny(question_len = 4, answer_lens = [3, 3, 2])
sample odd(question_len = 4)
"""


def test_findings_are_those_of_the_checker_with_their_places_and_fixes():
    text = "mask a = casual\nmask b = q <"
    answer = json.loads(json.dumps(check_text({"text": text})))
    expected = check(text)
    assert [f["code"] for f in answer["findings"]] == [d.code for d in expected]
    assert [(f["start"], f["end"]) for f in answer["findings"]] == [
        (d.start, d.end) for d in expected
    ]
    assert answer["findings"][0]["fix"]["edits"] == [{"start": 9, "end": 15, "text": "causal"}]
    assert not answer["is_usable"]


def test_the_outline_says_what_can_be_picked():
    answer = check_text({"text": TEXT})
    assert [(m["name"], m["example"]) for m in answer["masks"]] == [
        ("shared", ""), ("holes", ""), ("window", "(w = 4)"),
    ]  # fmt: skip
    assert [m["wants"] for m in answer["masks"]] == [False, False, True]
    assert answer["masks"][2]["parameters"] == ["w"]
    tiny, odd = answer["samples"]
    assert (tiny["tokens"], tiny["columns"]) == (12, ["answer_lens", "question_len"])
    assert odd["error"]


def picture(**asked):
    header, columns = decode(draw_text({"text": TEXT, **asked})[1])
    size = int(len(columns["share"]) ** 0.5)
    return header, columns["share"].reshape(size, size), columns


@pytest.mark.parametrize("mask", ["shared", "holes", "window(w = 3)"])
def test_a_picture_of_a_short_sample_is_the_dense_mask(mask):
    header, share, columns = picture(mask=mask, sample="tiny")
    spec = Spec.from_text(TEXT)
    dense = dense_mask(spec.mask(mask), spec.sample("tiny"))
    assert np.array_equal(share, np.where(dense, 255, 0))
    assert header["pairs"] == dense.sum()
    assert header["empty_rows"] == (~dense.any(axis=1)).sum()
    if mask != "window(w = 3)":
        assert header["kinds"] == ["question", "answer"]
        assert columns["stripe_end"].tolist() == [4, 7, 10, 12]


def test_cells_of_a_long_sample_are_shares_of_their_pairs():
    header, share, _ = picture(mask="causal", sample="1500")
    assert header["cell"] == 3
    assert share.shape == (500, 500)
    assert share[7, 7] == 6 * 255 // 9
    assert share[7, 6] == 255
    assert share[6, 7] == 0


PLAN = {"text": TEXT, "mask": "shared", "sample": "tiny", "scale": 256, "nodes": 2,
        "devices_per_node": 2}  # fmt: skip


def test_a_scaled_sample_is_planned_in_copies():
    found = preview_plan({**PLAN, "copies": 3, "method": "static:zigzag", "block": 128})
    assert found["tokens"] == 3 * 12 * 256
    spec = Spec.from_text(TEXT)
    lengths = [4 * 256, 3 * 256, 3 * 256, 2 * 256]
    question, *answers = lengths
    causal = sum(n * (n + 1) // 2 for n in lengths) + question * sum(answers)
    assert found["pairs"] == 3 * causal
    assert spec.mask("shared").columns == {"question_len", "answer_lens"}
    assert found["devices"] == len(found["device_pairs"]) == 4
    assert found["placed_by"] == "static:zigzag"


def test_a_preview_costs_what_the_plan_with_the_same_choices_costs():
    stages = []
    full, content = make_plan({**PLAN, "method": "native", "budget": "fast"}, stages.append)
    quick = preview_plan({**PLAN, "method": "native", "budget": "balanced"})
    same = ("predicted_s", "total_bytes", "compute_imbalance", "device_pairs", "tiles")
    assert {name: full[name] for name in same} == {name: quick[name] for name in same}
    assert content.startswith(b"PK")
    assert [stage.split()[0] for stage in stages] == [
        "compiling",
        "cutting",
        "placing",
        "predicting",
    ]


def test_the_batch_of_a_plan_is_planned_as_it_was():
    samples = [json.dumps({"question_len": 100, "answer_lens": [n, 9]}) for n in (40, 50)]
    asked = {**PLAN, "samples": samples, "scale": 1, "copies": 2, "block": 32,
             "method": "static:zigzag"}  # fmt: skip
    found = preview_plan({**asked, "heads": "4/2/64"})
    assert found["tokens"] == 2 * (149 + 159)
    header, _, _ = picture(mask="shared", samples=samples)
    assert header["tokens"] == 149
    assert preview_plan({**asked, "heads": "8/4/64"})["total_bytes"] == 2 * found["total_bytes"]


def test_a_batch_may_have_the_most_tokens(monkeypatch):
    twice = {**PLAN, "copies": 2}
    tokens = preview_plan(twice)["tokens"]
    monkeypatch.setattr("dcp_dashboard.editing.texts.MAX_TOKENS", tokens)
    assert preview_plan(twice)["tokens"] == tokens
    monkeypatch.setattr("dcp_dashboard.editing.texts.MAX_TOKENS", tokens - 1)
    with pytest.raises(DCPError, match=f"at most {tokens - 1:,} tokens, got {tokens:,}"):
        preview_plan(twice)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"text": 7}, "expected a text"),
        ({"text": "x" * (MAX_TEXT + 1)}, "expected at most 200,000 characters"),
        ({"text": "mask a ="}, "E005"),
        ({"text": "# nothing", "mask": ""}, "the text defines no mask yet"),
        ({"mask": "window"}, "w"),
        ({"sample": "nobody"}, "no sample `nobody`"),
        ({"sample": ""}, "expected a sample"),
        ({"sample": "0", "mask": "causal"}, "expected 1 to"),
        ({"sample": "9" * 30, "mask": "causal"}, "expected"),
        ({"sample": "/etc/passwd"}, "no sample"),
        ({"sample": "{" * 5000}, "sample"),
        ({"copies": 10**9}, "copies: expected a whole number 1 to 256"),
        ({"copies": True}, "copies: expected a whole number"),
        ({"scale": 60_000, "copies": 256}, "expected a batch of at most|expected 1 to"),
        ({"nodes": 64, "devices_per_node": 64}, "at most 1,024 devices"),
        ({"heads": "8/3/128"}, "multiple of kv_heads"),
        ({"heads": [8]}, "heads: expected query heads"),
        ({"samples": ["x"] * 3000}, "expected at most 2,048 sequences"),
        ({"samples": [{}]}, "sample"),
        ({"nodes": 2.5}, "nodes: expected a whole number"),
        ({"cluster": "/etc/passwd"}, "cluster: expected one of"),
        ({"cluster": ["a"]}, "cluster: expected one of"),
        ({"method": "magic"}, "method: expected one of"),
        ({"method": ["native"]}, "method: expected one of"),
        ({"budget": {}}, "budget: expected one of"),
        ({"tolerance": "1"}, "tolerance: expected a number"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"tolerance": 10**400}, "tolerance"),
        ({"block": 0}, "block: expected a whole number"),
        ({"block": 1, "scale": 16384}, "too many|expected"),
    ],
)  # fmt: skip
def test_a_request_that_makes_no_sense_is_refused_with_the_way_out(asked, said):
    with pytest.raises(DCPError, match=said):
        preview_plan({**PLAN, **asked})


VALUES = [
    None, True, -1, 0, 1, 2**63, 1e308, float("nan"), "", "\0", "\ud800", "٣", "²", "9" * 30, "{",
    "{}", '{"len": -1}', '{"question_len": [[]], "answer_lens": 3}', '{"len": 99999999999}', [],
    [1], {}, {"a": 1}, "shared(", "causal per part", "tiny", "8/2/0", "1/1/99999", "auto",
    "/etc/passwd",
]  # fmt: skip
NAMES = [
    "text", "mask", "sample", "scale", "copies", "nodes", "devices_per_node", "cluster", "method",
    "budget", "tolerance", "block", "seed", "heads", "dtype_bytes", "offset",
]  # fmt: skip


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=3))
def test_whatever_a_client_sends_is_answered_or_refused(changes):
    request = {**PLAN, "method": "static:zigzag", "scale": 1, **changes}
    for task in (check_text, describe_word, propose, format_text, draw_text, preview_plan):
        with suppress(DCPError):
            answer = task(request)
            json.dumps(answer[0] if task is draw_text else answer)


def test_a_sample_with_one_number_per_token_is_not_scaled():
    text = "segment d = ids(ids)\nmask m = causal and same(d)\nsample s(ids = [0, 0, 1], len = 3)"
    asked = {"text": text, "mask": "m", "sample": "s", "nodes": 1, "devices_per_node": 2}
    assert preview_plan(asked)["tokens"] == 3
    with pytest.raises(DCPError, match="one number per token"):
        preview_plan({**asked, "scale": 16})
