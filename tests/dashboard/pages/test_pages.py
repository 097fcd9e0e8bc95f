import json
import re
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from plotly.utils import PlotlyJSONEncoder

from dcp_dashboard.api.encoding import KIND_COLOURS, device_colours, ramp
from dcp_dashboard.exports.pictures import SIDE, thumbnail
from dcp_dashboard.facts.findings import DEFINITIONS
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.help import help_page
from dcp_dashboard.pages.plan_list import COLUMNS, sort_rows
from dcp_dashboard.pages.tables import Query
from dcp_dashboard.web.app import render_page
from dcp_planner import simulate, write_plan


def texts(component):
    """All texts of a page, in order."""
    found = []

    def walk(node):
        if isinstance(node, str):
            found.append(node)
        elif isinstance(node, list):
            for child in node:
                walk(child)
        elif isinstance(node, dict):
            inside = node.get("props", {})
            walk(inside.get("children"))
            walk(re.findall(r">([^<]+)<", inside.get("data-html", "")))  # what travels as HTML

    walk(json.loads(json.dumps(component, cls=PlotlyJSONEncoder)))
    return found


def relative_names(rows):
    return [row.entry.relative for row in rows]


def test_the_list_shows_numbers_and_errors(served_folder):
    page = texts(render_page(PlanLibrary(served_folder), "/", ""))
    assert "causal" in page
    assert "131,072" in page
    assert any("cut.dcpplan" in text and "expected" in text for text in page)
    assert any(text.endswith("1 of them unreadable") for text in page)


@pytest.mark.parametrize(("source", "badge"), [("measured", "run"), ("simulated", "not run")])
def test_the_list_and_the_page_show_whether_a_plan_was_run(small_plan, tmp_path, source, badge):
    write_plan(tmp_path / "x.dcpplan", small_plan, [replace(simulate(small_plan), source=source)])
    library = PlanLibrary(tmp_path)
    assert badge in texts(render_page(library, "/", ""))
    assert badge in texts(render_page(library, f"/plan/{plan_key('x.dcpplan')}", ""))


def test_rows_sort_by_every_column_with_the_unreadable_last(served_folder):
    rows, largest = PlanLibrary(served_folder).index.rows(), "deep/large.dcpplan"
    for column in COLUMNS:
        for desc in (False, True):
            ordered = sort_rows(rows, Query(sort=column.name, desc=desc))
            values = [column.value(row.value) if row.value else None for row in ordered]
            known = [value for value in values if value is not None]
            assert known == sorted(known, reverse=desc)
            assert values == known + [None] * (len(values) - len(known))
    for desc in (False, True):
        ordered = relative_names(sort_rows(rows, Query(sort="tokens", desc=desc)))
        assert ordered[-1] == "cut.dcpplan"
    assert relative_names(sort_rows(rows, Query(sort="tokens", desc=True)))[0] == largest
    assert relative_names(sort_rows(rows, Query(sort="nonsense")))[0] == largest


def test_an_empty_folder_says_what_to_type(tmp_path):
    page = " ".join(texts(render_page(PlanLibrary(tmp_path), "/", "")))
    assert "No plans here yet" in page
    assert f"dcpm demo --out {tmp_path}" in page


def test_the_plan_page_shows_metrics_findings_and_every_device(served_folder, small_plan):
    shown = render_page(PlanLibrary(served_folder), f"/plan/{plan_key('small.dcpplan')}", "")
    page = texts(shown)
    for text in ("2,048", "in 3 sequences", "2 nodes, 3 divisions", "Predicted", "Measured"):
        assert text in page
    assert any(text.startswith("Device ") and " waits " in text for text in page)
    assert not any("Rows p" in text for text in page)  # each trace has a timeline of its own here
    assert any(text.startswith("n0, n1, … are the nodes. ") for text in page)
    assert 'title="Visible pairs that it computes"' in str(shown)  # rates play no part there
    owned = [len(small_plan.local_tokens(device)) for device in range(4)]
    assert {f"{tokens:,}" for tokens in owned} <= set(page[page.index("Device") :])


@pytest.mark.parametrize("path", ["/plan/", "/plan/a/b", "/nothing", "/plan/%00", "//"])
def test_other_addresses_are_a_message(served_folder, path):
    page = texts(render_page(PlanLibrary(served_folder), path, ""))
    assert page[0] in ("No such page", "This cannot be shown", "Plans")
    assert (page[0] == "Plans") == (path == "//")


def test_a_broken_plan_is_a_message(served_folder):
    page = texts(render_page(PlanLibrary(served_folder), f"/plan/{plan_key('cut.dcpplan')}", ""))
    assert page[0] == "This cannot be shown"
    assert "cut.dcpplan" in page[1]


def test_a_hostile_query_does_no_harm(served_folder):
    for query in ("?sort=", "?sort[]=1", "?desc=x&sort=<script>", "?" + "&" * 5000):
        assert "Plans" in texts(render_page(PlanLibrary(served_folder), "/", query))


def alpha_of(png):
    """Decode the opacity of a palette PNG by its chunks."""
    at, body, opacity = 8, b"", b""
    while at < len(png):
        (size,), kind = struct.unpack_from(">I", png, at), png[at + 4 : at + 8]
        data = png[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", png, at + 8 + size)[0] == zlib.crc32(kind + data)
        body += data if kind == b"IDAT" else b""
        opacity = data if kind == b"tRNS" else opacity
        at += 12 + size
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(SIDE, SIDE + 1)
    assert not rows[:, 0].any()
    return np.frombuffer(opacity, np.uint8)[rows[:, 1:]]


def test_thumbnails_show_the_mask(large_plan):
    alpha = alpha_of(thumbnail(large_plan))
    below, above = np.tril_indices(SIDE, -1), np.triu_indices(SIDE, 1)
    assert (alpha[below] == 255).all()
    assert (alpha[above] == 0).all()
    assert ((alpha.diagonal() > 110) & (alpha.diagonal() < 255)).all()


def test_thumbnails_show_where_sequences_end(small_plan):
    alpha = alpha_of(thumbnail(small_plan))
    scale = SIDE / 2048
    assert alpha[int(600 * scale), int(100 * scale)] == 255
    assert alpha[int(1400 * scale), int(500 * scale)] == 0


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("count", [1, 2, 4, 8, 32])
def test_ramps_rise_in_luminance(count):
    values = [luminance(colour) for colour in ramp(count)]
    assert values == sorted(values)
    assert len(set(ramp(count))) == count


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (2, 2), (4, 8), (8, 8)])
def test_every_device_has_a_colour_of_its_own(nodes, per_node):
    assert len(set(device_colours(nodes, per_node))) == nodes * per_node


def test_kinds_stand_out_from_both_backgrounds():
    for colour in KIND_COLOURS.values():
        for background in ("#f3f4f7", "#1e2329"):
            light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 1.9


def test_a_plan_that_moves_nothing_says_so(lone_plan, tmp_path):
    write_plan(tmp_path / "alone.dcpplan", lone_plan)
    path = f"/plan/{plan_key('alone.dcpplan')}"
    page = texts(render_page(PlanLibrary(tmp_path), path, ""))
    assert any(text.startswith("No byte moves between devices: ") for text in page)
    assert "Over the bound" in page
    assert "Mask and placement" in texts(render_page(PlanLibrary(tmp_path), f"{path}/mask", ""))


@pytest.mark.parametrize("page", ["mask", "timeline"])
def test_pages_of_a_plan_lead_to_each_other(served_folder, page):
    key = plan_key("small.dcpplan")
    shown = json.dumps(
        render_page(PlanLibrary(served_folder), f"/plan/{key}/{page}", ""), cls=PlotlyJSONEncoder
    )
    for path in ("", "/timeline", "/mask"):
        assert f'"href": "/plan/{key}{path}"' in shown


def test_help_defines_every_metric_and_names_every_colour():
    page = " ".join(texts(help_page()))
    for name, _definition in DEFINITIONS:
        assert name in page
    for kind in KIND_COLOURS:
        assert kind in page
    assert "dcpm plan" in page
