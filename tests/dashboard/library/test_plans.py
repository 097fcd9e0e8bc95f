"""Plans that are read once, figures of the list, and totals of each."""

import json
import os
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest

from dcp_dashboard import DashboardError
from dcp_dashboard.library import index as index_module
from dcp_dashboard.library import plans as library_module
from dcp_dashboard.library.folder import MAX_PLANS, MAX_TOTAL_BYTES, RECENT_NS, Folder, plan_key
from dcp_dashboard.library.index import PlanIndex
from dcp_dashboard.library.plans import BoundedCache, PlanLibrary
from dcp_dashboard.library.summary import device_totals, summarise, wait_share
from dcp_dashboard.pages.charts import GRAPH_CONFIG
from dcp_planner import measure, write_plan


def by_name(index):
    return {row.entry.relative: row for row in index.rows()}


def rewritten(path, change):
    """Write a plan file again with another `meta.json`."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    meta = json.loads(members["meta.json"])
    change(meta)
    members["meta.json"] = json.dumps(meta).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_rows_hold_numbers_or_the_reason_why_not(served_folder, small_plan, small_trace):
    rows = by_name(PlanIndex(Folder(served_folder)))
    assert sorted(rows) == ["cut.dcpplan", "deep/large.dcpplan", "small.dcpplan"]
    assert rows["cut.dcpplan"].value is None
    assert "cut.dcpplan" in rows["cut.dcpplan"].error
    small, large = rows["small.dcpplan"].value, rows["deep/large.dcpplan"].value
    assert (small.tokens, small.devices, small.mask) == (2048, 4, "causal")
    assert small.partitioner == small_plan.partitioner
    assert small.pairs == sum(n * (n + 1) // 2 for n in (1000, 560, 488))
    assert small.total_bytes == small_plan.transfers.size_bytes.sum()
    taken = int(small_trace.end_ns[~small_trace.is_backward].max())
    taken += int(small_trace.end_ns.max()) - taken
    assert small.seconds["simulated"] == pytest.approx(taken / 1e9)
    assert small.seconds["measured"] == pytest.approx(1.25 * taken / 1e9, rel=1e-3)
    assert dict(large.seconds) == {"simulated": None}  # the file leaves it to its reader


def test_a_list_opens_no_table(tmp_path, small_plan):
    path = tmp_path / "p.dcpplan"
    write_plan(path, small_plan)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        members = {name: archive.read(name) for name in names}
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, members[name] if name == "meta.json" else b"no table")
    assert by_name(PlanIndex(Folder(tmp_path)))["p.dcpplan"].value.tokens == 2048


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.pop("metrics"),
        lambda meta: meta["metrics"].update(tokens="many"),
        lambda meta: meta["metrics"].update(density=float("nan")),
        lambda meta: meta["metrics"].update(forward=[]),
        lambda meta: meta.update(traces=[3]),
        lambda meta: meta.update(provenance=["x"]),
        lambda meta: meta.update(schema="dcp.plan/9"),
    ],
)
def test_wrong_figures_are_a_sentence(tmp_path, small_plan, change):
    write_plan(tmp_path / "p.dcpplan", small_plan)
    rewritten(tmp_path / "p.dcpplan", change)
    row = by_name(PlanIndex(Folder(tmp_path)))["p.dcpplan"]
    assert row.value is None
    assert "expected" in row.error


def test_a_file_without_seconds_says_none(tmp_path, small_plan, small_trace):
    write_plan(tmp_path / "old.dcpplan", small_plan, [small_trace])
    rewritten(tmp_path / "old.dcpplan", lambda meta: meta["traces"][0].pop("seconds"))
    assert dict(by_name(PlanIndex(Folder(tmp_path)))["old.dcpplan"].value.seconds) == {
        "simulated": None
    }


def test_what_is_not_read_in_time_is_read_later_and_not_broken(
    served_folder, tmp_path, small_plan, monkeypatch
):
    for i in range(5):
        write_plan(tmp_path / f"{i}.dcpplan", small_plan)
    go_on, entered, read = threading.Event(), threading.Event(), index_module.read_meta

    def slow(path):
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            assert go_on.wait(60)
        return read(path)

    monkeypatch.setattr(index_module, "READ_S", 0.0)
    monkeypatch.setattr(index_module, "read_meta", slow)
    index = PlanIndex(Folder(tmp_path))
    rows = index.rows()
    assert [(row.is_read, row.error) for row in rows] == [(False, "")] * 5
    assert entered.wait(60)
    shown = index.read(rows[3:])  # what a page shows is read at once, whoever reads the rest
    assert [row.value.tokens for row in shown] == [2048] * 2
    go_on.set()
    assert index._reader.daemon  # a server that ends does not wait for it
    index._reader.join(60)
    assert all(row.is_read for row in index.rows())


def test_an_overwritten_plan_is_read_again_and_others_are_not(
    tmp_path, small_plan, lone_plan, monkeypatch
):
    for name in "ab":
        write_plan(tmp_path / f"{name}.dcpplan", small_plan)
    index = PlanIndex(Folder(tmp_path))
    index.rows()
    seen, read = [], index_module.read_meta

    def noted(path):
        seen.append(path.name)
        return read(path)

    monkeypatch.setattr(index_module, "read_meta", noted)
    write_plan(tmp_path / "a.dcpplan", lone_plan)
    assert by_name(index)["a.dcpplan"].value.tokens == 64
    assert seen == ["a.dcpplan"]


def test_a_removed_file_leaves_nothing_behind(tmp_path, small_plan):
    index = PlanIndex(Folder(tmp_path))
    for name in ("a.dcpplan", "b.dcpplan"):
        write_plan(tmp_path / name, small_plan)
        assert list(by_name(index)) == [name]
        (tmp_path / name).unlink()
    assert index.rows() == []
    assert not index._rows


def test_a_file_is_read_again_where_it_was_touched_or_overwritten_and_only_then(
    tmp_path, small_plan, lone_plan
):
    path, key = tmp_path / "p.dcpplan", plan_key("p.dcpplan")
    write_plan(path, small_plan)
    library = PlanLibrary(tmp_path)
    first = library.load(key)
    assert library.load(key) is first
    os.utime(path, ns=(1, 1))
    assert library.load(key) is not first
    write_plan(path, lone_plan)
    assert library.load(key).plan.num_devices == 1


def test_limits_are_those_that_documents_name(served_folder, small_plan):
    library = PlanLibrary(served_folder)
    entry = library.folder.find(plan_key("small.dcpplan"))
    large = replace(entry, size_bytes=2**30 + 1)
    with pytest.raises(DashboardError, match="at most 1,073,741,824 bytes, got 1,073,741,825"):
        library_module._read(large)
    assert library._plan_file(entry.key) == (entry, 2**30)
    kept = library.keep(entry.path.read_bytes(), "mine.dcpplan").entry
    assert library._plan_file(kept.key) == (kept, 2**28)
    assert library_module.MAX_DEVICES == 1024
    assert (MAX_PLANS, MAX_TOTAL_BYTES, RECENT_NS) == (32, 1_000_000_000, 2_000_000_000)
    library.session.close()


def test_a_plan_for_too_many_devices_is_refused(served_folder, monkeypatch):
    monkeypatch.setattr(library_module, "MAX_DEVICES", 31)
    with pytest.raises(DashboardError, match="at most 31 devices, got 32; see its numbers with"):
        PlanLibrary(served_folder).load(plan_key("deep/large.dcpplan"))


def test_the_cache_forgets_what_was_used_longest_ago():
    cache, made = BoundedCache[str](2), []
    for name in ("a", "b", "a", "c", "a", "b"):
        cache.get(name, lambda name=name: made.append(name) or name)
    assert made == ["a", "b", "c", "b"]


def test_a_failed_maker_leaves_nothing_behind():
    cache = BoundedCache[int](2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", lambda: 7) == 7


def test_only_those_who_ask_for_the_same_key_wait_for_its_maker():
    cache, made, entered, go_on = BoundedCache[int](2), [], Event(), Event()

    def slow():
        entered.set()
        assert go_on.wait(60)
        made.append("slow")
        return 1

    with ThreadPoolExecutor() as threads:
        first = threads.submit(cache.get, "slow", slow)
        assert entered.wait(60)
        second = threads.submit(cache.get, "slow", slow)
        assert cache.get("quick", lambda: 2) == 2
        go_on.set()
        assert (first.result(60), second.result(60)) == (1, 1)
    assert made == ["slow"]


def test_reading_one_run_holds_up_no_other(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.dcprun.jsonl").write_text('{"step": 1}\n')
    library, entered, go_on = PlanLibrary(tmp_path), Event(), Event()
    a, b = (plan_key(f"{name}.dcprun.jsonl") for name in "ab")

    def slow(runs):
        entered.set()
        assert go_on.wait(60)
        return len(runs[0][1])

    with ThreadPoolExecutor() as threads:
        first = threads.submit(library.read_runs, [a], slow)
        assert entered.wait(60)
        second = threads.submit(library.read_runs, [b], lambda runs: len(runs[0][1]))
        try:
            assert second.result(20) == 1
        finally:
            go_on.set()
        assert first.result(60) == 1


def test_two_names_of_one_log_are_read_as_one(tmp_path):
    (tmp_path / "a.dcprun.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "b.dcprun.jsonl").symlink_to("a.dcprun.jsonl")
    keys = [plan_key(f"{name}.dcprun.jsonl") for name in "ab"]
    (one, first), (other, second) = PlanLibrary(tmp_path).read_runs(keys, list)
    assert (one.relative, other.relative) == ("a.dcprun.jsonl", "b.dcprun.jsonl")
    assert first is second
    assert len(first) == 1


def test_plans_are_found_without_reading_the_folder_again(tmp_path, lone_plan, monkeypatch):
    names = [f"{i}.dcpplan" for i in range(9)]
    write_plan(tmp_path / names[0], lone_plan)
    for name in names[1:]:
        os.link(tmp_path / names[0], tmp_path / name)
    os.utime(tmp_path, ns=(1, 1))
    library, read, scandir = PlanLibrary(tmp_path), [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: read.append(path) or scandir(path))
    assert [row.entry.relative for row in library.index.rows()] == names
    for name in names:
        assert library.load(plan_key(name)).entry.relative == name
        assert library.version(plan_key(name)) is not None
    assert library.version("0123456789abcdef") is None
    # Numbers are temporary folders of before, which end now.
    assert len([path for path in read if not isinstance(path, int)]) == 1


def test_pictures_of_a_list_push_no_plan_out(tmp_path, lone_plan):
    names = [f"{i}.dcpplan" for i in range(12)]
    for name in names:
        write_plan(tmp_path / name, lone_plan)
    library = PlanLibrary(tmp_path)
    opened = library.load(plan_key(names[0]))
    made = []
    for name in names * 2:
        assert library.thumbnail(plan_key(name), lambda plan: made.append(plan) or b"p") == b"p"
    assert len(made) == len(names)
    assert library.load(plan_key(names[0])) is opened


@pytest.fixture(scope="module")
def totals(small_plan):
    return device_totals(small_plan, measure(small_plan))


def test_totals_are_sums_over_the_plans_tables(small_plan, totals):
    tiles, transfers, blocks = small_plan.tiles, small_plan.transfers, small_plan.blocks
    for device in range(4):
        mine = [i for i in range(len(tiles)) if tiles.device[i] == device]
        assert totals.tiles[device] == len(mine)
        assert totals.pairs[device] == sum(int(tiles.pairs[i]) for i in mine)
        owned = [i for i in range(len(blocks)) if blocks.owner[i] == device]
        assert totals.tokens[device] == sum(int(blocks.end[i] - blocks.start[i]) for i in owned)
        for other in range(4):
            moved = [
                int(transfers.size_bytes[i])
                for i in range(len(transfers))
                if (transfers.source[i], transfers.target[i]) == (device, other)
            ]
            assert totals.traffic_bytes[device, other] == sum(moved)
    assert totals.sent_bytes.tolist() == totals.traffic_bytes.sum(1).tolist()
    assert totals.received_bytes.tolist() == totals.traffic_bytes.sum(0).tolist()


def test_summary_says_what_the_plan_says(small_plan, small_trace):
    summary = summarise(small_plan, measure(small_plan), {"simulated": small_trace})
    assert (summary.mask, summary.origin) == ("causal", "by hand")
    assert summary.total_bytes == small_plan.transfers.size_bytes.sum()
    nodes = small_plan.transfers.source // 2 != small_plan.transfers.target // 2
    crossing = small_plan.transfers.size_bytes[nodes].sum()
    assert summary.inter_node_share == pytest.approx(crossing / summary.total_bytes)


def test_wait_share_is_waiting_time_over_all_time(small_trace):
    waits = small_trace.lane == 3
    waited = (small_trace.end_ns[waits] - small_trace.start_ns[waits]).sum()
    length = small_trace.end_ns.max() - small_trace.start_ns.min()
    assert wait_share(small_trace, 4) == pytest.approx(waited / (4 * length))


def test_charts_talk_to_no_cloud():
    assert GRAPH_CONFIG["displayModeBar"] is False  # its buttons could send a chart
    assert GRAPH_CONFIG["plotlyServerURL"] == ""
