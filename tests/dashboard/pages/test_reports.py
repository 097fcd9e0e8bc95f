"""Data sets, planned steps and runs: what pages show is computed from the rows of the file."""

import json

import numpy as np
import pytest
from dash import no_update
from plotly.utils import PlotlyJSONEncoder

from dcp_dashboard.facts.gain import SCOPES, gains_of_report
from dcp_dashboard.library.folder import PlanEntry, plan_key
from dcp_dashboard.library.index import RunLine, parse_report, read_report, read_run
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.charts import lengths_figure, spread_figure
from dcp_dashboard.pages.reports import documents_text, sort_batches, step_bars, summary_sentence
from dcp_dashboard.pages.run import (
    Pair,
    extremes,
    pair_sentence,
    read_click,
    read_zoom,
    run_figure,
    run_sentence,
)
from dcp_dashboard.pages.tables import PAGE_ROWS, Query, read_query
from dcp_dashboard.web.app import render_page
from dcp_dsl import DCPError
from dcp_planner.step import StepFile, StepGroup
from dcp_runtime import RunHistory


def batch(index, ours, zigzag, ring):
    """A batch by its seconds and those of two other methods."""
    return {
        "index": index, "tokens": 1000 + index, "sequences": 3, "density": 0.5,
        "lengths": {"least": 10, "median": 200, "mean": 300, "most": 700 + index},
        "predicted_forward_s": ours / 3, "predicted_backward_s": 2 * ours / 3,
        "against": {
            "static:zigzag": {"predicted_forward_s": zigzag, "predicted_backward_s": 0.0},
            "static:ring": {"predicted_forward_s": ring / 2, "predicted_backward_s": ring / 2},
        },
    }  # fmt: skip


def document(batches):
    report = {"schema": "dcp.batches/1", "distribution": {}, "speedup": {}, "notes": []}
    return report | {"batches": batches}


TIMES = [(2.0, 3.0, 5.0), (1.0, 2.0, 1.5), (4.0, 4.0, 9.0)]
BATCHES = [batch(i, *times) for i, times in enumerate(TIMES)]


def page_of(folder, name, query=""):
    page = render_page(PlanLibrary(folder), f"/dataset/{plan_key(name)}", query)
    return json.dumps(page, cls=PlotlyJSONEncoder, ensure_ascii=False)


def test_the_gain_is_told_within_the_token_cap_and_of_all():
    batches = [batch(i, *times) for i, times in enumerate(TIMES)]
    for index, caps in ((0, ["compute"]), (1, ["compute", "tokens"]), (2, ["tokens"])):
        batches[index]["against"]["static:zigzag"]["over_caps"] = caps
    batches[0]["against"]["static:ring"]["over_caps"] = "tokens"  # no list: nobody knows
    gains = {gain.label: gain for gain in gains_of_report(parse_report(document(batches)))}
    of_all, within = (gains[label.removeprefix("the ")] for label in SCOPES.values())
    assert within.speedups == pytest.approx([1.5, 1.5, 2.25])  # zigzag holds the cap in batch 0
    assert of_all.speedups == pytest.approx([1.5, 1.5, 1.0])
    assert gains["static:zigzag"].speedups == pytest.approx([1.5, 2.0, 1.0])
    assert gains["static:zigzag"].note == "exceeds the token cap in 2 of 3 batches"
    assert gains["static:ring"].note == ""
    assert [gain.told for gain in gains.values() if gain.told] == [
        f"{label}, batch by batch" for label in SCOPES.values()
    ]


def test_batches_without_a_layout_within_the_cap_are_counted():
    batches = [batch(i, *times) for i, times in enumerate(TIMES)]
    for name in ("static:zigzag", "static:ring"):
        batches[1]["against"][name]["over_caps"] = ["tokens"]
    _, within, *_ = gains_of_report(parse_report(document(batches)))
    assert within.note == "none in 1 of the batches"
    assert within.speedups == pytest.approx([1.5, 1.0])


def test_few_batches_have_no_histograms(tmp_path):
    for count in (19, 20):
        batches = [batch(i, 1.0 + i, 2.0, 3.0) for i in range(count)]
        (tmp_path / "some.dcpbatches.json").write_text(json.dumps(document(batches)))
        page = page_of(tmp_path, "some.dcpbatches.json")
        assert ("Distribution over batches" in page) == (count == 20)


def report_of(imbalance, shape, name="a100-p4de"):
    """One batch of 8,000 tokens on 4 devices: zigzag takes twice as long for attention."""
    ours, theirs = ({"predicted_forward_s": s, "predicted_backward_s": s} for s in (5e-4, 1e-3))
    against = {"static:zigzag": theirs | ({"token_imbalance": imbalance} if imbalance else {})}
    line = ours | {"tokens": 8000, "devices": 4, "token_imbalance": 1.1, "against": against}
    return parse_report(document([line]) | {"cluster": {"name": name}, "shape": shape})


LIKE_LLAMA = {"q_heads": 8, "kv_heads": 2, "head_dim": 128}


def test_the_step_of_a_model_adds_the_linear_part_of_the_fullest_device():
    # By hand: 32 layers; a quarter of 6 x 7.5e9 FLOPs a token, at 55 % of 312 TFLOP/s.
    token_s = 6 * 7.5e9 / 4 / (0.55 * 312e12)
    theirs = 32 * 2e-3 + 1.5 * 2000 * token_s
    ours = 32 * 1e-3 + 1.1 * 2000 * token_s
    for gain in gains_of_report(report_of(1.5, LIKE_LLAMA)):
        assert gain.steps == {"llama-8b": pytest.approx([theirs / ours])}


@pytest.mark.parametrize(
    ("imbalance", "shape", "name"),
    [
        (None, LIKE_LLAMA, "a100-p4de"),  # a report of an older version
        (1.5, LIKE_LLAMA | {"head_dim": 64}, "a100-p4de"),  # heads of no preset
        (1.5, LIKE_LLAMA | {"q_heads": "8"}, "a100-p4de"),
        (1.5, None, "a100-p4de"),
        (1.5, LIKE_LLAMA, "cpu-gloo"),  # nobody knows the rate of its matrix products
        (1.5, LIKE_LLAMA, ["a100"]),
    ],
)
def test_no_model_is_offered_where_its_step_is_unknown(imbalance, shape, name):
    assert [g.steps for g in gains_of_report(report_of(imbalance, shape, name))] == [{}] * 3


@pytest.mark.parametrize("wrong", [None, "many", [], {}, True, float("nan"), 10**400, -(10**30)])
def test_a_figure_that_is_none_is_left_out(wrong):
    names = ("tokens", "lengths", "predicted_forward_s", "against", "warnings", "file", "index")
    report = parse_report(document([dict.fromkeys(names, wrong), *BATCHES]))
    assert report.column("tokens").tolist() == [1000.0, 1001.0, 1002.0]
    assert len(report.column("seconds")) == 3
    assert report.batches[0].speedups == {}
    for figure in (lengths_figure, spread_figure):
        assert figure(report) is not None
    assert "1,001 tokens" in summary_sentence(report)


def test_hostile_texts_are_cut_and_files_stay_beside_the_report():
    many = {f"m{i}": {"predicted_forward_s": 1, "predicted_backward_s": 1} for i in range(5000)}
    first = BATCHES[0] | {"origin": "x" * 10**6, "file": "../../etc/passwd", "against": many,
                          "warnings": ["w\x00"] * 10**4, "length_counts": [1] * 99}  # fmt: skip
    report = parse_report(document([first]))
    line = report.batches[0]
    assert len(line.origin) == 200
    assert line.file == ""
    assert len(line.speedups) == 24
    assert line.warnings == ("w",) * 20
    assert len(line.length_counts) == 40


def test_the_table_sorts_with_the_unknown_last():
    lines = parse_report(document([{"index": 9}, *BATCHES])).batches
    for descends in (False, True):
        ordered = sort_batches(lines, Query(sort="seconds", desc=descends))
        assert ordered[-1].index == 9
        values = [b.value("seconds") for b in ordered[:-1]]
        assert values == sorted(values, reverse=descends)
    assert [b.index for b in sort_batches(lines, Query(sort="nonsense"))] == [0, 1, 2, 9]


def test_many_batches_come_in_pages(tmp_path):
    batches = [batch(i, 1.0, 2.0, 3.0) for i in range(151)]
    (tmp_path / "many.dcpbatches.json").write_text(json.dumps(document(batches)))
    page = page_of(tmp_path, "many.dcpbatches.json", "?page=2&sort=index")
    assert page.count('"type": "Tr"') == PAGE_ROWS + 1
    assert "Page 3 of 4" in page
    assert "Page 4 of 4" in page_of(tmp_path, "many.dcpbatches.json", "?page=9999")


BROKEN = {
    "cut": '{"schema": "dcp.batches/1", "batches": [',
    "list": "[]",
    "kinds": '{"schema": "dcp.batches/1", "batches": {}, "distribution": {}, "speedup": {}}',
    "deep": "[" * 100_000,
    "bytes": "\udcff",
    "number": '{"schema": "dcp.batches/1", "batches": [{"tokens": ' + "9" * 5000 + "}]}",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_report_is_a_message_in_page_and_list(tmp_path, name):
    path = tmp_path / f"{name}.dcpbatches.json"
    path.write_bytes(BROKEN[name].encode("utf-8", "surrogateescape"))
    with pytest.raises(DCPError, match="expected"):
        read_report(path)
    assert "This cannot be shown" in page_of(tmp_path, path.name)
    rows = PlanLibrary(tmp_path).reports()
    assert [row.value for row in rows] == [None]
    assert path.name in rows[0].error
    shown = json.dumps(render_page(PlanLibrary(tmp_path), "/", ""), cls=PlotlyJSONEncoder)
    assert "expected" in shown


def test_queries_are_read_with_care():
    assert read_query("?page=99999999&sort=" + "x" * 99).page == 0
    assert read_query("?" + "&".join(f"a{i}=1" for i in range(999))) == Query()


def nested() -> StepFile:
    """Two micro-batches of four devices: one document on all, then two halves; then one half."""
    groups = (
        StepGroup(0, 0, 4, 1.0, 2.0, (7,), (4000,)),
        StepGroup(0, 0, 2, 0.5, 0.5, (1, 2), (900, 100)),
        StepGroup(0, 2, 2, 0.25, 0.25, (3,), (500,)),
        StepGroup(1, 2, 2, 1.0, 1.0, (4,), (2000,)),
    )
    return StepFile("groups from 2 on", 6.0, 1.1, 1.2, 2, 2, 1, 2, groups)


def test_devices_add_up_their_groups_and_wait_for_the_slowest():
    found = [(b.micro_batch, b.devices, b.busy_s, b.waiting_s) for b in step_bars(nested())]
    assert found == [(0, "0-1", 4.0, 0.0), (0, "2-3", 3.5, 0.5), (1, "0-1", 0.0, 2.0),
                     (1, "2-3", 2.0, 0.0)]  # fmt: skip
    assert documents_text(step_bars(nested())[2]) == "nothing"


@pytest.mark.parametrize("content", ["{}", "[", '{"schema": "dcp.step/1"}'])
def test_a_file_that_is_no_step_is_said(tmp_path, content):
    (tmp_path / "x.dcpstep.json").write_text(content)
    library = PlanLibrary(tmp_path)
    page = str(render_page(library, f"/step/{plan_key('x.dcpstep.json')}", ""))
    assert "This cannot be shown" in page
    assert "x.dcpstep.json" in str(render_page(library, "/", ""))


@pytest.mark.parametrize("count", [0, 1, 799, 800, 801, 1_000, 12_345])
def test_thinned_values_keep_the_least_and_the_most_of_every_stretch(count):
    generator = np.random.default_rng(count)
    values = generator.normal(size=count)
    values[generator.random(count) < 0.2] = np.nan
    kept = extremes(values, 800)
    assert extremes(np.full(5_000, np.nan), 800).tolist() == []  # nobody knows these
    assert len(kept) <= 800
    assert (np.diff(kept) > 0).all()
    if count <= 800:
        assert kept.tolist() == list(range(count))
        return
    width = -(-count // 400)
    for start in range(0, count, width):
        stretch = values[start : start + width]
        known = stretch[~np.isnan(stretch)]
        shown = values[kept[(kept >= start) & (kept < start + width)]]
        assert not np.isnan(shown).any()
        if len(known):
            assert (shown.min(), shown.max()) == (known.min(), known.max())


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"xaxis.range[0]": 5, "xaxis.range[1]": 1}, [1.0, 5.0]),
        ({"xaxis2.autorange": True}, None),
        ({"xaxis.range[0]": "a", "xaxis.range[1]": 1}, None),
        ({"xaxis.range[0]": float("nan"), "xaxis.range[1]": 1}, None),
        ({"autosize": True}, no_update),
        ("text", no_update),
        (None, no_update),
    ],
)
def test_a_zoom_is_read_whatever_is_sent(sent, read):
    assert read_zoom(sent) == read


@pytest.mark.parametrize(
    "sent", [None, {}, {"points": []}, {"points": [{"x": "9"}]}, {"points": [{"x": 1e300}]}]
)
def test_what_is_no_click_is_none(sent):
    assert read_click(sent) is None


def history(path, seconds, **more):
    lines = [json.dumps({"step": step, "step_s": value} | more) for step, value in seconds.items()]
    path.write_text("".join(f"{line}\n" for line in lines))
    found = RunHistory(path)
    found.update()
    return found


def test_medians_and_steps_of_two_runs_are_compared_where_both_have_a_step(tmp_path):
    before, after = {0: 1.0, 1: 2.0, 2: 1.0, 3: 4.0, 9: 50.0}, {1: 2.5, 2: 1.25, 3: 1.0, 4: 7.0}
    first = history(tmp_path / "before", before, exposed_share=0.5, queued=3)
    pair = Pair.of(first, history(tmp_path / "after", after, exposed_share=0.25))
    assert pair.steps.tolist() == [1, 2, 3]
    assert pair.medians("step_s") == (2.0, 1.25)
    assert pair.medians("exposed_share") == (0.5, 0.25)
    assert pair.medians("queued") is None  # the second run does not say
    assert pair.most_different() == [3, 1, 2]
    assert Pair.of(first, first).most_different() == []


def figure_of(path, seconds, zoomed=None, **more):
    run = history(path, seconds, **more)
    figure = run_figure([(PlanEntry("k", path.name, path, 1, 2), run)], zoomed)
    return figure.to_plotly_json()["layout"], figure.data


def test_first_steps_that_compile_do_not_set_the_scale_and_later_slow_ones_do(tmp_path):
    usual = dict.fromkeys(range(3, 50), 1.0)
    layout, _ = figure_of(tmp_path / "a", {0: 40.0, 1: 30.0, 2: 1.0} | usual)
    assert layout["yaxis"]["range"] == pytest.approx([0, 1.1])
    layout, _ = figure_of(tmp_path / "b", {0: 40.0} | usual | {30: 9.5})
    assert layout["yaxis"]["range"] == pytest.approx([0, 1.1 * 9.5])
    for name, seconds in (("c", {0: 1.2} | usual), ("d", {0: 40.0, 1: 30.0}), ("e", {})):
        layout, _ = figure_of(tmp_path / name, seconds)
        assert "range" not in layout["yaxis"]  # nothing to cut, or nothing to hold it against
    layout, _ = figure_of(tmp_path / "f", {0: 40.0, 1: 30.0} | usual, zoomed=[20, 30])
    assert "range" not in layout["yaxis"]


@pytest.mark.parametrize(("most", "ticks"), [(0, 1), (1, 1), (3, 1), (4, 1), (7, 2), (63, 16)])
def test_ranks_have_whole_ticks_and_dots_that_one_can_hit(tmp_path, most, ticks):
    layout, lines = figure_of(tmp_path / "log", {0: 1.0, 1: 1.0}, slowest=most, queued=most)
    for axis in ("yaxis4", "yaxis5"):
        assert (layout[axis]["tick0"], layout[axis]["dtick"]) == (0, ticks)
        assert layout[axis]["range"][0] < 0
        assert layout[axis]["range"][1] > most
    (dots,) = (line for line in lines if line.mode == "markers" and line.name == "rank")
    assert dots.marker.size >= 6
    assert layout["hovermode"] == "x"  # a click beside a line means its step


def test_a_run_begins_with_a_sentence(tmp_path):
    seconds = {step: 2.0 if step < 80 else 1.0 for step in range(200)}
    more = {"measured_s": 0.5, "predicted_s": 0.25, "exposed_share": 0.2}
    text = run_sentence(history(tmp_path / "a", seconds, slowest=3, why="rank 3 is slow", **more))
    assert text.replace("\u00a0", " ") == (
        "A step takes 1 s, the median of the last 100. Attention of the slowest rank takes 500 ms, "
        "2.00 times the predicted 250 ms. Rank 3 is slowest in 100 of 100 steps: rank 3 is slow. "
        "The rank that waits longest waits for 20 % of attention's time."
    )
    assert run_sentence(history(tmp_path / "b", {})) == "The run has written no step yet."
    assert run_sentence(history(tmp_path / "c", {7: None})) == "Step 7 is the newest."


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (2.0, 1.0, "A step takes 2 s in A and 1 s in B: 2.00\u00d7 as fast in B. "
                   "Attention takes 500 ms and 500 ms."),
        (1.0, 1.5, "A step takes 1 s in A and 1.5 s in B: 1.50\u00d7 as fast in A. "
                   "Attention takes 500 ms and 500 ms."),
        (1.0, 1.01, "A step takes 1 s in A and 1.01 s in B. Attention takes 500 ms and 500 ms."),
        (None, 1.0, "The two runs have no step time in common."),
    ],
)  # fmt: skip
def test_two_runs_begin_with_which_is_faster(tmp_path, before, after, told):
    runs = [
        history(tmp_path / name, {1: seconds, 2: seconds}, measured_s=0.5)
        for name, seconds in (("a", before), ("b", after))
    ]
    assert pair_sentence(Pair.of(*runs)).replace("\u00a0", " ") == told


def test_the_list_reads_the_newest_steps_of_a_log(tmp_path):
    path = tmp_path / "run.dcprun.jsonl"
    history(path, {step: 9.0 if step < 4_000 else 1.5 for step in range(5_000)}, measured_s=0.5)
    assert path.stat().st_size > 2 * 65_536
    assert read_run(path) == RunLine(4_999, 1.5, 0.5)
    path.write_text('{"step": 3}\n{"step": "x"}\n[1]\n{"step": 4, "step_s": "2"}\n{"st')
    assert read_run(path) == RunLine(4, None, None)
    assert read_run(tmp_path / "gone") == RunLine(None, None, None)
