"""Reports of data sets: what is shown is computed anew from the file's own rows."""

import json

import pytest
from plotly.utils import PlotlyJSONEncoder

from dcp_dashboard.facts.gain import SCOPES, gains_of_report
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.index import parse_report, read_report
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.charts import lengths_figure, spread_figure
from dcp_dashboard.pages.reports import sort_batches, summary_sentence
from dcp_dashboard.pages.tables import PAGE_ROWS, Query, read_query
from dcp_dashboard.web.app import render_page
from dcp_dsl import DCPError


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


def test_speedups_are_their_time_over_ours():
    report = parse_report(document(BATCHES))
    assert report.speedups("static:zigzag") == pytest.approx([1.5, 2.0, 1.0])
    assert report.speedups("static:ring") == pytest.approx([2.5, 1.5, 2.25])
    assert report.column("of_all") == pytest.approx([1.5, 1.5, 1.0])


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
