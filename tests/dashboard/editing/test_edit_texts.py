"""What the editor is answered, as texts."""

import json
from dataclasses import asdict

import pytest
from shown_texts import columns_text, json_text

from dcp_dashboard.editing import planning, texts
from dcp_dashboard.editing.planning import make_plan, preview_config, preview_plan, read_batch
from dcp_dashboard.editing.texts import (
    MAX_TEXT,
    check_text,
    describe_word,
    draw_svg,
    draw_text,
    format_text,
    propose,
    whole,
)
from dcp_dsl import DCPError
from dcp_planner import PARTITIONERS, PlanConfig

TEXT = """segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
@partial mask holes = k in question and q in answer
mask window(w: tokens, sink: tokens = 2) = causal and (q - k < w or k < sink)
sample tiny(question_len = 4, answer_lens = [3, 3, 2])
sample odd(question_len = 4)
check shared implies causal
"""
WRONG = "mask a = casual\r\nmask b = causal\rmask c(x: tokens) = q - k < y\n"


def told(task, request):
    """The answer to a request as a text, or why there is none."""
    try:
        found = task(request)
    except DCPError as error:
        return f"refused: {error}"
    return json.dumps(found, indent=1, ensure_ascii=False)


def test_checks(tmp_path, snapshots):
    library, home = tmp_path / "lib.dcpm", tmp_path / "own.dcpm"
    library.write_text("mask packed = casual\n")
    imports = {"text": 'import packed from "lib.dcpm"\nmask m = packed', "home": str(home)}
    shown = {
        "right": told(check_text, {"text": TEXT}),
        "wrong": told(check_text, {"text": WRONG}),
        "an import that is wrong": told(check_text, imports),
        "no home": told(check_text, imports | {"home": 3}),
        "nothing": told(check_text, {"text": ""}),
    }
    for at in (0, 60, 75, len(TEXT), len(TEXT) + 1):
        shown[f"hover at {at}"] = told(describe_word, {"text": TEXT, "offset": at})
    for at in (0, TEXT.index("causal") + 2, len(TEXT)):
        found = propose({"text": TEXT, "offset": at})["proposals"]
        shown[f"proposals at {at}"] = "\n".join(json.dumps(one)[:160] for one in found[:12])
    shown["formatted"] = format_text({"text": "mask  a=causal\nmask b =a"})["text"]
    snapshots.check(
        "checks", {title: text.replace(str(tmp_path), "FOLDER") for title, text in shown.items()}
    )


def test_at_most_so_many_of_a_text_are_listed(monkeypatch):
    monkeypatch.setattr(texts, "MAX_PROPOSALS", 3)
    assert len(propose({"text": TEXT, "offset": 0})["proposals"]) == 3
    monkeypatch.setattr(texts, "MAX_TEXT", len(TEXT))
    assert check_text({"text": TEXT})["is_usable"]
    with pytest.raises(DCPError, match=f"at most {len(TEXT)} characters, got {len(TEXT) + 1}"):
        check_text({"text": TEXT + " "})


PICTURES = {
    "first mask": {"sample": "tiny"},
    "three times": {"sample": "tiny", "scale": 3},
    "holes": {"mask": "holes", "sample": '{"question_len": 2, "answer_lens": [1, 4]}'},
    "a call": {"mask": " window(w = 3) ", "sample": " 600 "},
    "first of a batch": {"samples": ['{"question_len": 1, "answer_lens": [1]}', "tiny"]},
    "no sample of a batch": {"samples": [], "sample": "tiny"},
    "512 tokens": {"mask": "causal", "sample": "512"},
    "513 tokens": {"mask": "causal", "sample": "513"},
    "queries without a key are counted": {"mask": "causal", "sample": str(2**17)},
    "and here they are not": {"mask": "causal", "sample": str(2**17 + 1)},
    "many answers": {"sample": json.dumps({"question_len": 2, "answer_lens": [1] * 511})},
    "too many answers": {"sample": json.dumps({"question_len": 2, "answer_lens": [1] * 512})},
    "no sample": {},
    "an ids column": {
        "text": "segment d = ids(ids)\nmask m = same(d) and causal", "scale": 2,
        "sample": '{"ids": [0, 0, 1]}',
    },
    "no mask": {"text": "# nothing", "sample": "4"},
}  # fmt: skip


def test_pictures(monkeypatch, snapshots):
    shown = {}
    for title, asked in PICTURES.items():
        try:
            shown[title] = columns_text(draw_text({"text": TEXT, **asked})[1])
        except DCPError as error:
            shown[title] = f"refused: {error}"
    for most in (12, 11):
        monkeypatch.setattr(texts, "MAX_ROWS_COUNTED", most)
        drawn = columns_text(draw_text({"text": TEXT, "sample": "tiny"})[1])
        shown[f"rows of {most} tokens are counted"] = drawn
    found = draw_svg({"text": TEXT, "mask": "window(w = 3)", "sample": "6"})
    shown["drawing"] = f"{found['name']}\n{found['svg'][:400]}"
    long = "mask " + "a_long_name_" * 8 + " = causal"
    shown["name of a drawing"] = draw_svg({"text": long, "sample": "6"})["name"]
    snapshots.check("pictures", shown)


@pytest.mark.parametrize(
    ("value", "is_right"),
    [(1, True), (64, True), (0, False), (65, False), (True, False), (2.0, False), ("3", False),
     (None, False)],
)  # fmt: skip
def test_a_whole_number_lies_in_its_range(value, is_right):
    if is_right:
        assert whole({"n": value}, "n", 5, 1, 64) == value
    else:
        shown = json.dumps(value)
        with pytest.raises(DCPError, match=f"^n: expected a whole number 1 to 64, got {shown}$"):
            whole({"n": value}, "n", 5, 1, 64)


PLAN = {"text": TEXT, "mask": "shared", "sample": "tiny", "scale": 64, "nodes": 2,
        "devices_per_node": 2, "block": 64, "method": "static:zigzag"}  # fmt: skip


def test_previews_and_plans(snapshots):
    asked = {
        "in blocks": PLAN,
        "copies in chosen blocks": PLAN | {"copies": 2, "block": None},
        "heads in groups": PLAN | {"method": "static:heads_context", "heads": "4/2/16",
                                   "nodes": 1, "dtype_bytes": 4},
        "other rates": PLAN | {"cluster": "h100-dgx",
                               "samples": ["tiny", '{"question_len": 9, "answer_lens": [3]}']},
        "defaults": {"text": "mask m = causal", "sample": "512", "method": "static:zigzag"},
    }  # fmt: skip
    shown = {}
    for title, request in asked.items():
        try:
            shown[title] = json_text(preview_plan(request) | {"seconds": 0})
        except DCPError as error:
            shown[title] = f"refused: {error}"
    stages: list[str] = []
    figures, _content = make_plan(PLAN, stages.append)
    shown["a plan"] = "\n".join([*stages, json_text(figures)])
    batch = read_batch(PLAN | {"tolerance": 1, "seed": 7, "budget": "fast", "heads": "6/3/8"})
    shown["a batch"] = "\n".join(
        [json_text(asdict(batch.shape)), json_text(asdict(batch.config)),
         json_text(asdict(batch.provenance))]
    )  # fmt: skip
    snapshots.check("plans", shown)


def test_a_preview_has_so_many_tiles(monkeypatch):
    tiles = preview_plan(PLAN)["tiles"]
    monkeypatch.setattr(planning, "MAX_PREVIEW_TILES", tiles)
    assert preview_plan(PLAN)["tiles"] == tiles
    monkeypatch.setattr(planning, "MAX_PREVIEW_TILES", tiles - 1)
    with pytest.raises(DCPError, match=f"^{tiles:,} tiles .* \\(at most {tiles - 1:,}\\)"):
        preview_plan(PLAN)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"nodes": 64, "devices_per_node": 16}, ""),
        ({"nodes": 64, "devices_per_node": 17}, "at most 1,024 devices, got 64 x 17 = 1,088"),
        ({"nodes": 65}, "nodes: expected a whole number 1 to 64, got 65"),
        ({"devices_per_node": 65}, "devices_per_node: expected a whole number 1 to 64, got 65"),
        ({"heads": "8/2"}, "heads: expected query heads"),
        ({"heads": "99999/99999/1"}, ""),
        ({"heads": "100000/1/1"}, "heads: expected query heads"),
        ({"dtype_bytes": 9}, "dtype_bytes: expected a whole number 1 to 8, got 9"),
        ({"seed": 2**31}, "seed: expected a whole number 0 to"),
        ({"tolerance": True}, "tolerance: expected a number, got 'True'"),
        ({"tolerance": -(10**400)}, "tolerance"),
        ({"tolerance": 0}, ""),
        ({"samples": ["tiny"] * 2049}, "expected at most 2,048 sequences, got 2,049"),
        ({"block": 2**22 + 1}, "block: expected a whole number 1 to 4,194,304, got 4194305"),
        ({"scale": 2**16 + 1}, "scale: expected a whole number 1 to 65,536, got 65537"),
        ({"copies": 257}, "copies: expected a whole number 1 to 256, got 257"),
        ({"mask": "causal", "scale": 1, "sample": "4194305"}, "expected 1 to 4,194,304 tokens"),
        ({"mask": "causal", "scale": 1, "sample": "9" * 13}, "got 999999999999$"),
        ({"mask": "causal", "scale": 1, "sample": "0"}, "expected 1 to"),
        ({"text": 7}, "expected a text"),
        ({"text": "x" * (MAX_TEXT + 1)}, "expected at most 200,000 characters"),
        ({"text": "mask a ="}, "E005"),
        ({"text": "# nothing", "mask": ""}, "the text defines no mask yet"),
        ({"mask": "window"}, "w"),
        ({"sample": "nobody"}, "no sample `nobody`"),
        ({"sample": ""}, "expected a sample"),
        ({"sample": "/etc/passwd"}, "no sample"),
        ({"sample": "{" * 5000}, "sample"),
        ({"samples": [{}]}, "sample"),
        ({"scale": 60_000, "copies": 256}, "expected a batch of at most|expected 1 to"),
        ({"heads": "8/3/128"}, "multiple of kv_heads"),
        ({"heads": [8]}, "heads: expected query heads"),
        ({"cluster": "/etc/passwd"}, "cluster: expected one of"),
        ({"cluster": ["a"]}, "cluster: expected one of"),
        ({"method": "magic"}, "method: expected one of"),
        ({"method": ["native"]}, "method: expected one of"),
        ({"budget": {}}, "budget: expected one of"),
        ({"tolerance": "1"}, "tolerance: expected a number"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"tolerance": 10**400}, "tolerance"),
        ({"block": 0}, "block: expected a whole number"),
    ],
)
def test_settings_at_their_limits(asked, said):
    request = PLAN | asked
    if said:
        with pytest.raises(DCPError, match=said):
            read_batch(request)
    else:
        read_batch(request)


def test_searches_are_previewed_with_their_smallest_budget():
    shown = {
        name: (found.partitioner, found.budget)
        for name in PARTITIONERS
        for found in [preview_config(PlanConfig(partitioner=name, budget="balanced"))]
    }
    assert {value for name, value in shown.items() if name.startswith("static:")} == {
        (name, "balanced") for name in shown if name.startswith("static:")
    }
    assert shown["portfolio"] == ("portfolio", "fast")
    assert planning._told(PlanConfig(budget="fast")) == "the default search, fast"
    assert {shown[name] for name in ("native", "kahypar")} == {("native", "fast")}
    assert [name for name, _ in planning.methods()][:2] == ["portfolio", "native"]
    assert len(planning.methods()) == len(PARTITIONERS)
