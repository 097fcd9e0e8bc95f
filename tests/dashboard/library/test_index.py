"""The list of plans: read from the first member of each file, once, and never in the way."""

import json
import threading
import zipfile

import pytest

from dcp_dashboard.library import index as index_module
from dcp_dashboard.library.folder import Folder
from dcp_dashboard.library.index import PlanIndex
from dcp_planner import write_plan


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
