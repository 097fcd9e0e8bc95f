"""Filtered events and their CSV, against loops that look at one event at a time."""

import csv
import dataclasses
import gzip
import io
import re

import numpy as np
import pytest

from dcp_dashboard import DashboardError
from dcp_dashboard.exports.files import events_csv
from dcp_dashboard.facts.traces import EventFilter, matching, read_filter
from dcp_dashboard.library.folder import plan_key
from dcp_planner import LANES
from dcp_planner.simulation import EVENT_KINDS as KINDS


def rows_of(trace):
    """Every event as a plain record, in the order of device, lane and start."""
    rows = [
        {
            "row": i, "device": int(trace.device[i]), "lane": LANES[trace.lane[i]],
            "kind": KINDS[trace.kind[i]], "name": trace.name_of(i),
            "backward": bool(trace.is_backward[i]),
            "division": int(trace.division[i]), "peer": int(trace.peer[i]),
            "bytes": int(trace.size_bytes[i]), "start_ns": int(trace.start_ns[i]),
            "duration_ns": int(trace.end_ns[i] - trace.start_ns[i]),
        }
        for i in range(len(trace))
    ]  # fmt: skip
    return sorted(rows, key=lambda r: (r["device"], LANES.index(r["lane"]), r["start_ns"]))


@pytest.mark.parametrize(
    ("find", "wanted"),
    [
        ("gpu 2", lambda r: r["device"] == 2),
        ("division 1 kv", lambda r: r["division"] == 1 and "kv" in r["name"]),
        ("kv 1", lambda r: re.search(r"kv 1(?!\d)", r["name"]) is not None),
        ("DEVICE 1 backward attention",
         lambda r: r["device"] == 1 and r["backward"] and r["name"] == "attention"),
        ("to 3", lambda r: r["peer"] == 3),
        ("no such thing", lambda _: False),
        ("(", lambda _: False),
        ("  ", lambda _: True),
        (EventFilter(kinds=("send", "wait"), longer_ns=5_000),
         lambda r: r["kind"] in ("send", "wait") and r["duration_ns"] >= 5_000),
    ],
)  # fmt: skip
def test_a_search_finds_what_its_words_say(small_trace, find, wanted):
    found = [row["row"] for row in rows_of(small_trace) if wanted(row)]
    chosen = EventFilter(find=find) if isinstance(find, str) else find
    assert matching(small_trace, chosen).tolist() == found


@pytest.mark.parametrize("column", ["duration_ns", "name", "kind", "peer", "start_ns"])
def test_sorting_is_stable_in_both_directions(small_trace, column):
    def key(row):
        return KINDS.index(row["kind"]) if column == "kind" else row[column]

    rows = rows_of(small_trace)
    rising = matching(small_trace, EventFilter(sort=column)).tolist()
    falling = matching(small_trace, EventFilter(sort=f"-{column}")).tolist()
    assert rising == [row["row"] for row in sorted(rows, key=key)]
    assert falling == [row["row"] for row in sorted(rows, key=key, reverse=True)]


@pytest.mark.parametrize(
    "query", [{"kinds": "sends"}, {"longer": "-3"}, {"longer": "1e9"}, {"sort": "__class__"}]
)
def test_a_filter_that_means_nothing_is_refused(query):
    with pytest.raises(DashboardError, match=r"expected .* got .*; leave"):
        read_filter(query)


def test_csv_holds_every_matching_event_once(small_trace):
    text = b"".join(events_csv([small_trace], EventFilter(kinds=("receive",)))).decode()
    found = list(csv.DictReader(io.StringIO(text)))
    rows = rows_of(small_trace)
    wanted = [(i, row) for i, row in enumerate(rows) if row["kind"] == "receive"]
    assert [(int(f["event"]), f["name"], int(f["duration_ns"])) for f in found] == [
        (i, row["name"], row["duration_ns"]) for i, row in wanted
    ]
    assert {f["source"] for f in found} == {"simulated"}


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@SUM(A1)", "\tx"])
def test_a_name_is_no_formula_for_a_spreadsheet(small_trace, name):
    hostile = dataclasses.replace(small_trace, name=[0] * len(small_trace), names=(name,))
    text = b"".join(events_csv([hostile], EventFilter())).decode()
    assert {row["name"] for row in csv.DictReader(io.StringIO(text))} == {f"'{name}"}


def test_both_traces_are_in_one_file(client, small_trace):
    key = plan_key("small.dcpplan")
    answer = client.get(f"/api/plan/{key}/events.csv?source=both&find=gpu%201")
    lines = answer.data.decode().splitlines()
    assert len(lines) == 1 + 2 * np.count_nonzero(small_trace.device == 1)
    answer = client.get(f"/api/plan/{key}/trace.pftrace?source=both")
    assert b"device 3 (measured)" in answer.data
    assert b"device 3 (predicted)" in answer.data


def test_code_travels_compressed_and_data_as_it_is(client):
    accepts = {"Accept-Encoding": "gzip"}
    with (
        client.get("/assets/dashboard.bundle.js", headers=accepts) as script,
        client.get("/assets/dashboard.bundle.js") as plain,
    ):
        assert script.headers["Content-Encoding"] == "gzip"
        assert "Content-Encoding" not in plain.headers
        assert gzip.decompress(script.data) == plain.data
        assert len(script.data) < len(plain.data) / 2
    data = client.get(f"/api/plan/{plan_key('small.dcpplan')}/timeline", headers=accepts)
    assert "Content-Encoding" not in data.headers
