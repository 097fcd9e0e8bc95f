"""Tasks of the editor, without processes: texts to start from, findings, pictures, plans."""

import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dashboard import create_app
from dcp_dashboard.api.encoding import decode
from dcp_dashboard.editing import answer, planning
from dcp_dashboard.editing.planning import figures, make_plan, preview_plan
from dcp_dashboard.editing.routes import DESK, batch_of, home_of
from dcp_dashboard.editing.texts import check_text, describe_word, draw_text, format_text, propose
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.edit import folder_files, library_texts, start_of
from dcp_dsl import DCPError, Spec, check, dense_mask
from dcp_planner import digest, measure, predict, read_plan
from dcp_planner.plan import decode_plan


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "served"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "own.dcpm").write_text("mask own = causal", encoding="utf-8")
    (root / "bytes.dcpm").write_bytes(b"\xff\xfe")
    (root / "big.dcpm").write_text("#" * 200_001)
    (root / ".hidden").mkdir()
    (root / ".hidden" / "no.dcpm").write_text("mask no = causal")
    (tmp_path / "secret.dcpm").write_text("mask secret = causal")
    (root / "link.dcpm").symlink_to(tmp_path / "secret.dcpm")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.dcpm").write_text("mask secret = causal")
    (root / "linked").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "pipe.dcpm")
    return root


def start(root, spec):
    return start_of(PlanLibrary(root), "?" + urlencode({"spec": spec}))


def test_a_file_of_the_folder_is_opened_by_its_key_only(folder):
    library = PlanLibrary(folder)
    assert sorted(folder_files(library).values()) == ["big.dcpm", "bytes.dcpm", "deep/own.dcpm"]
    own = start(folder, plan_key("deep/own.dcpm"))
    assert (own.name, own.text) == ("deep/own.dcpm", "mask own = causal")
    assert home_of(library, own.home) == str(folder / "deep" / "own.dcpm")
    for wrong in ("deep/own.dcpm", str(folder / "deep" / "own.dcpm"), "../secret.dcpm", ""):
        assert home_of(library, wrong) is None
    for wrong in ("../secret.dcpm", plan_key("link.dcpm"), plan_key("pipe.dcpm"), "std:../causal"):
        with pytest.raises(DCPError):
            start(folder, wrong)


def test_a_file_that_is_no_text_or_too_large_is_refused_by_name(folder):
    for name, said in (("bytes", "cannot be read as text"), ("big", "at most 200,000")):
        with pytest.raises(DCPError, match=rf"^{name}\.dcpm: .*{said}"):
            start(folder, plan_key(f"{name}.dcpm"))


def test_a_plan_gives_the_text_that_it_was_made_from(served_folder, small_plan):
    found = start(served_folder, plan_key("small.dcpplan"))
    assert found.text == small_plan.provenance.spec
    assert found.settings["expression"] == small_plan.provenance.mask
    assert (found.settings["nodes"], found.settings["per"]) == ("2", "2")
    assert found.settings["heads"] == "4/2/64"
    assert batch_of(PlanLibrary(served_folder), found.batch) == list(small_plan.provenance.samples)


def test_every_text_to_start_from_is_right(folder):
    texts = [start_of(PlanLibrary(folder), "").text, *library_texts().values()]
    assert len(texts) > 30
    for text in texts:
        assert [d for d in check(text) if d.severity == "error"] == []
    assert start(folder, "mask a = causal").text == "mask a = causal"


TEXT = """segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
@partial mask holes = k in question and q in answer
mask window(w: tokens) = causal and q - k < w
sample tiny(question_len = 4, answer_lens = [3, 3, 2])
sample odd(question_len = 4)
"""


def test_of_two_misspelt_names_both_have_a_change_and_only_the_sure_one_is_certain():
    answer = check_text({"text": "mask a = casual\nmask b = shard_qestion\n"})
    changes = [(f["fix"]["title"], f["is_certain"]) for f in answer["findings"]]
    assert changes == [
        ("replace `casual` by `causal`", True),
        ("replace `shard_qestion` by `shared_question`", True),
    ]
    answer = check_text({"text": "mask answer_mask = casual\nmask b = anser\n"})
    assert [f["is_certain"] for f in answer["findings"]] == [True, False]
    (edit,) = answer["findings"][1]["fix"]["edits"]
    begin = len("mask answer_mask = casual\nmask b = ")
    assert edit == {"start": begin, "end": begin + len("anser"), "text": "answer_mask"}
    answer = check_text({"text": "mask a = qqqqqqqqqq\n"})
    assert answer["findings"][0]["fix"] is None


def test_findings_are_those_of_the_checker_with_their_places_and_fixes():
    text = "mask a = casual\nmask b = q <"
    answer = json.loads(json.dumps(check_text({"text": text})))
    expected = check(text)
    found = [(f["code"], f["start"], f["end"]) for f in answer["findings"]]
    assert found == [(d.code, d.start, d.end) for d in expected]
    assert answer["findings"][0]["fix"]["edits"] == [{"start": 9, "end": 15, "text": "causal"}]
    assert not answer["is_usable"]


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
    lengths = [4 * 256, 3 * 256, 3 * 256, 2 * 256]
    question, *answers = lengths
    causal = sum(n * (n + 1) // 2 for n in lengths) + question * sum(answers)
    assert found["pairs"] == 3 * causal
    assert found["devices"] == len(found["device_pairs"]) == 4
    assert found["placed_by"] == "static:zigzag"


def test_a_preview_costs_what_the_plan_with_the_same_choices_costs():
    # Blocks of one length: a chosen length is that of the full search, for the preview too.
    asked = {**PLAN, "method": "native", "block": 128}
    full, content = make_plan({**asked, "budget": "fast"}, lambda stage: None)
    quick = preview_plan({**asked, "budget": "balanced"})
    same = ("predicted_s", "total_bytes", "compute_imbalance", "device_pairs", "tiles")
    assert {name: full[name] for name in same} == {name: quick[name] for name in same}
    assert content.startswith(b"PK")


def test_warming_up_plans_a_batch_and_says_why_if_it_cannot(monkeypatch, capsys):
    planned = []
    monkeypatch.setattr(planning, "preview_plan", lambda asked: planned.append(preview_plan(asked)))
    planning.warm_up()
    assert [figures["tokens"] for figures in planned] == [4096]
    assert capsys.readouterr().out == ""

    def refuse(asked):
        raise DCPError("no memory")

    monkeypatch.setattr(planning, "preview_plan", refuse)
    planning.warm_up()
    assert capsys.readouterr().out == "dcpm: the planner cannot warm up: no memory\n"


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


def test_figures_of_a_plan_name_the_default_search_in_words(small_plan):
    plan = replace(small_plan, partitioner="portfolio")
    assert figures(plan, measure(plan), 1.0)["placed_by"] == "the default search"


LOCAL = "http://127.0.0.1:8050"


def parted(figures, content):
    """The plans that a worker made, which its answer holds one behind the other."""
    for told in figures["plans"]:
        yield told, decode_plan(content[: told["size_bytes"]]).plan
        content = content[told["size_bytes"] :]
    assert content == b""


def test_every_suggestion_is_a_plan_of_the_batch_that_is_as_fast_as_said(paired_folder):
    path, stages = paired_folder / "contiguous.dcpplan", []
    figures, content = answer({"task": "suggest", "path": str(path)}, b"", stages.append)
    before = read_plan(path).plan
    now = predict(before).seconds
    gains = [plan["saves_s"] for plan in figures["plans"]]
    assert 0 < len(gains) <= 3
    assert gains == sorted(gains, reverse=True)
    assert stages == ["finding what costs most", "planning changes"]
    for told, plan in parted(figures, content):
        assert plan.cu_seqlens.tolist() == before.cu_seqlens.tolist()
        assert plan.tiles.pairs.sum() / plan.head_groups == before.tiles.pairs.sum()
        assert plan.provenance == before.provenance
        assert now - predict(plan).seconds == pytest.approx(told["saves_s"])
        assert told["share"] == pytest.approx(told["saves_s"] / now)
        assert told["share"] >= 0.01


def test_the_front_of_a_plan_is_that_of_its_batch(paired_folder, small_choices):
    before = read_plan(paired_folder / "contiguous.dcpplan").plan
    asked = {"task": "front", "path": str(paired_folder / "contiguous.dcpplan")}
    made = [plan for _, plan in parted(*answer(asked, b"", lambda _stage: None))]
    bare = {digest(replace(plan, provenance=None)) for plan in made}
    assert len(bare) == len(made) > 1
    assert {digest(plan) for plan in small_choices} <= bare
    assert all(plan.provenance == before.provenance for plan in made)


def test_a_page_asks_for_suggestions_and_each_is_kept_for_the_session(paired_folder):
    app = create_app(paired_folder)
    client, desk = app.server.test_client(), app.server.extensions[DESK]
    key = plan_key("contiguous.dcpplan")
    try:
        job = client.post("/api/edit/suggest", base_url=LOCAL, json={"plan": key}).json
        end = time.monotonic() + 240
        while job["state"] in ("waiting", "running") and time.monotonic() < end:
            time.sleep(0.2)
            job = client.get(f"/api/edit/plan/{job['job']}", base_url=LOCAL).json
        assert (job["state"], job["message"]) == ("done", "")
        made = job["figures"]["plans"][0]
        shown = client.get(f"/api/edit/figures/{made['key']}", base_url=LOCAL).json
        assert shown["predicted_s"] == pytest.approx(made["seconds"])
    finally:
        desk.close()
