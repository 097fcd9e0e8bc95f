"""SQL over events: what it finds, against numpy; what it must not do; and that it ends."""

import sys
import time
from collections import Counter

import numpy as np
import pytest

from dcp_dashboard import create_app
from dcp_dashboard.editing import answer, querying, routes
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import load_file
from dcp_dsl import DCPError
from dcp_planner import LANES
from dcp_planner.simulation import EVENT_KINDS


@pytest.fixture(scope="module")
def events(served_folder):
    return querying.events_arrow(load_file(served_folder / "small.dcpplan"))


@pytest.fixture(scope="module")
def ask(events):
    return lambda sql: answer({"task": "query", "sql": sql}, events, print)[0]


def by_key(result, size):
    """The last column of a result by its first ones."""
    return {tuple(row[:size]): float(row[-1]) for row in result["rows"]}


def test_the_sums_are_those_of_numpy(ask, small_trace):
    t = small_trace
    length = t.end_ns - t.start_ns
    bytes_of, time_of, busy = Counter(), Counter(), Counter()
    for i in range(len(t)):
        direction = "backward" if t.is_backward[i] else "forward"
        time_of["simulated", direction, str(t.division[i]), EVENT_KINDS[t.kind[i]]] += (
            length[i] / 1e3
        )
        if LANES[t.lane[i]] == "send":
            bytes_of["simulated", str(t.device[i]), str(t.peer[i])] += int(t.size_bytes[i])
        if LANES[t.lane[i]] == "compute":
            busy[t.device[i]] += length[i]
    found = ask(querying.READY["Bytes by link"])
    assert [column["name"] for column in found["columns"]][-1] == "bytes"
    ours = {(r[0], r[3], r[4]): int(r[-1]) for r in found["rows"] if r[0] == "simulated"}
    assert ours == bytes_of
    for name, size, expected in (
        ("Time by kind and division", 4, time_of),
        ("Idle time by device", 2,
         {("simulated", str(d)): (t.end_ns.max() - b) / 1e3 for d, b in busy.items()}),
    ):  # fmt: skip
        rows = by_key(ask(querying.READY[name]), size)
        simulated = {key: value for key, value in rows.items() if key[0] == "simulated"}
        assert simulated == pytest.approx(expected)


def test_a_wait_belongs_to_the_message_that_ends_last_within_it(ask, small_trace):
    t, expected = small_trace, Counter()
    for wait in np.flatnonzero(t.lane == LANES.index("wait")):
        ends = [
            (t.end_ns[i], t.peer[i])
            for i in range(len(t))
            if LANES[t.lane[i]] in ("send", "receive")
            and t.device[i] == t.device[wait]
            and t.is_backward[i] == t.is_backward[wait]
            and t.start_ns[wait] < t.end_ns[i] <= t.end_ns[wait]
        ]
        if ends:
            assert len({peer for end, peer in ends if end == max(ends)[0]}) == 1
            waited = (t.end_ns[wait] - t.start_ns[wait]) / 1e3
            expected["simulated", str(t.device[wait]), str(max(ends)[1])] += waited
    found = by_key(ask(querying.READY["Longest waits by peer"]), 3)
    assert expected
    assert {k: v for k, v in found.items() if k[0] == "simulated"} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT 1; SELECT 2", "expected one SELECT, got SELECT and SELECT"),
        ("", "expected one SELECT, got nothing"),
        ("DELETE FROM events", "expected one SELECT, got DELETE"),
        ("CREATE TABLE t AS SELECT 1", "expected one SELECT, got CREATE"),
        ("COPY events TO '/tmp/x.csv'", "expected one SELECT, got COPY"),
        ("ATTACH '/tmp/x.db'", "expected one SELECT, got ATTACH"),
        ("INSTALL httpfs", "expected one SELECT, got LOAD"),
        ("SET enable_external_access = true", "expected one SELECT, got SET"),
        ("SELECT * FROM read_text('/etc/passwd')", "file system operations are disabled"),
        ("SELECT * FROM '/etc/passwd'", "Table with name /etc/passwd does not exist"),
        ("SELECT * FROM glob('/*')", "file system operations are disabled"),
        ("SELECT * FROM request", "Table with name request does not exist"),
        ("SELEC", "syntax error"),
        ("SELECT nothing FROM events", 'column "nothing" not found'),
    ],
)
def test_what_is_no_select_or_touches_files_is_refused(ask, sql, words):
    with pytest.raises(DCPError, match=words):
        ask(sql)


def test_a_missing_library_is_named_with_the_line_that_installs_it(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(DCPError, match=r"'duckdb', which is not .* pip install 'dcp-dsl\[sql\]'"):
        ask("SELECT 1")


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
LARGE = "SELECT sum(a.range * b.range) FROM range(100000) a, range(100000) b"
GREEDY = "SELECT length(repeat('x', 3000000000))"


@pytest.mark.timing
def test_a_query_without_end_is_ended_in_words_and_the_next_one_runs(served_folder, monkeypatch):
    app = create_app(served_folder).server
    desk, client = app.extensions[routes.DESK], app.test_client()

    def post(sql, limit_s):
        monkeypatch.setattr(routes, "QUERY_LIMIT_S", limit_s)
        asked = {"plan": plan_key("small.dcpplan"), "sql": sql}
        found = client.post("/api/edit/query", json=asked)
        assert found.status_code == 200
        return found.json

    assert post("SELECT count(*) FROM events WHERE device = 99", 60)["rows"] == [["0"]]
    for sql in (ENDLESS, LARGE):
        begin = time.monotonic()
        desk.database.start()
        message = post(sql, 0.25)["error"]
        assert "took longer than 0.25 s and was ended; ask for less" in message
        assert time.monotonic() - begin < 60
    assert "expected one SELECT" in post("DROP TABLE events", 60)["error"]
    pid = desk.database.pid
    assert "out of memory" in post(GREEDY, 60)["error"].lower()
    assert post("SELECT 3", 60)["rows"] == [["3"]]
    assert desk.database.pid == pid  # DuckDB refused; the process goes on
    desk.close()
