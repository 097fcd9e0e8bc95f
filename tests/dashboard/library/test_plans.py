import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest

from dcp_dashboard import DashboardError
from dcp_dashboard.library import plans as library_module
from dcp_dashboard.library.folder import MAX_PLANS, MAX_TOTAL_BYTES, RECENT_NS, plan_key
from dcp_dashboard.library.plans import BoundedCache, PlanLibrary
from dcp_planner import write_plan


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
    cache = BoundedCache[str](2)
    made = []

    def make(name):
        return lambda: made.append(name) or name

    for name in ("a", "b", "a", "c", "a", "b"):
        cache.get(name, make(name))
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
