"""Files of the served folder by their keys, and plans of the session: bounded, gone afterwards."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dcp_dashboard import DashboardError
from dcp_dashboard.library import folder as folder_module
from dcp_dashboard.library.folder import (
    REPORT_SUFFIX,
    SUFFIX,
    Folder,
    SessionPlans,
    open_folder,
    plan_key,
)
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dsl import DCPError
from dcp_planner import digest


@pytest.fixture
def root(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.dcpplan").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "runs" / "a").mkdir(parents=True)
    (root / "one.dcpplan").write_bytes(b"1")
    (root / "runs" / "a" / "two.dcpplan").write_bytes(b"22")
    return root


def names(root):
    return [entry.relative for entry in Folder(root).files(SUFFIX)]


def test_nothing_but_regular_visible_files_below_the_folder_is_listed(root):
    (root / "link-out.dcpplan").symlink_to(root.parent / "outside" / "secret.dcpplan")
    (root / "link-folder").symlink_to(root.parent / "outside")
    (root / "dangling.dcpplan").symlink_to(root / "gone.dcpplan")
    (root / "loop.dcpplan").symlink_to(root / "loop.dcpplan")
    (root / "folder.dcpplan").mkdir()
    os.mkfifo(root / "pipe.dcpplan")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "x.dcpplan").write_bytes(b"x")
    (root / "other.txt").write_bytes(b"x")
    deep = root.joinpath(*"abcdefghij")
    deep.mkdir(parents=True)
    (deep / "x.dcpplan").write_bytes(b"x")
    found = ["a/b/c/d/e/f/g/h/i/j/x.dcpplan", "one.dcpplan", "runs/a/two.dcpplan"]
    assert names(root) == found


def test_odd_file_names_are_plain_names(root):
    odd = ["..dcpplan", "a b&c=d.dcpplan", "<b>.dcpplan", "ü\n.dcpplan", "\udcff.dcpplan"]
    for name in odd:
        (root / name).write_bytes(b"x")
    found = {entry.relative: entry.key for entry in Folder(root).files(SUFFIX)}
    assert set(odd) <= set(found)
    assert all(len(key) == 16 and set(key) <= set("0123456789abcdef") for key in found.values())
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    "key",
    ["", "..", "../outside/secret.dcpplan", "one.dcpplan", "/etc/passwd", "\0", "%2e%2e", "0" * 16],
)
def test_a_key_is_never_used_as_a_path(root, key):
    assert Folder(root).find(key) is None
    entry = Folder(root).find(plan_key("runs/a/two.dcpplan"))
    assert (entry.path, entry.size_bytes) == (root / "runs" / "a" / "two.dcpplan", 2)


def test_what_is_no_folder_says_what_to_do(root):
    with pytest.raises(DashboardError, match=r"which does not exist; make one, .*: mkdir /"):
        open_folder(root / "nowhere")
    with pytest.raises(DashboardError, match=r"serve the folder it lies in: dcpm dashboard"):
        open_folder(root / "one.dcpplan")


@pytest.fixture
def read_folders(monkeypatch):
    """Names of the folders that were read, in order."""
    read, scandir = [], os.scandir

    def count(path):
        if not isinstance(path, int):  # a temporary folder of before, which ends now
            read.append(Path(path).name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    return read


def age(*folders):
    """Make folders look as if their names had stood for a minute."""
    for folder in folders:
        then = time.time_ns() - 60 * 10**9
        os.utime(folder, ns=(then, then))


def test_each_of_thousands_of_plans_is_found_and_the_folder_is_read_once(tmp_path, read_folders):
    plan, report = tmp_path / f"0{SUFFIX}", tmp_path / f"z{REPORT_SUFFIX}"
    plan.write_bytes(b"1")
    report.write_bytes(b"22")
    names = [plan.name] + [f"{i}{SUFFIX}" for i in range(1, 2_500)]
    for name in names[1:]:
        os.link(plan, tmp_path / name)
    age(tmp_path)
    folder = Folder(tmp_path)
    for name in names:
        entry = folder.find(plan_key(name))
        assert entry is not None
        assert entry.path == tmp_path / name
    assert folder.find(plan_key("unknown")) is None
    assert [entry.relative for entry in folder.files(SUFFIX)] == sorted(names)
    assert [entry.relative for entry in folder.files(REPORT_SUFFIX)] == [report.name]
    assert read_folders == [tmp_path.name]


def test_only_a_change_of_names_makes_a_folder_read_again(root, read_folders):
    age(root / "runs" / "a", root / "runs", root)
    folder, key = Folder(root), plan_key("runs/a/new.dcpplan")
    assert folder.find(key) is None
    once = list(read_folders)
    assert sorted(once) == ["a", "root", "runs"]
    (root / "one.dcpplan").write_bytes(b"other bytes")
    assert folder.find(plan_key("one.dcpplan")).size_bytes == 11
    assert folder.find(key) is None
    assert read_folders == once
    (root / "runs" / "a" / "new.dcpplan").write_bytes(b"x")
    assert folder.find(key).relative == "runs/a/new.dcpplan"
    assert read_folders == [*once, "a"]  # the others have not changed


def test_a_folder_that_changed_just_now_is_read_again(root, read_folders):
    # Two names that come within one tick of the clock leave the folder with the same time.
    age(root / "runs" / "a", root / "runs")
    folder = Folder(root)
    for _ in range(2):
        assert folder.find(plan_key("new.dcpplan")) is None
    assert read_folders.count("root") == 2


def test_a_known_file_that_goes_and_comes_is_seen_as_it_is(root):
    folder, key = Folder(root), plan_key("one.dcpplan")
    assert folder.find(key) is not None
    (root / "one.dcpplan").unlink()
    assert folder.find(key) is None
    (root / "one.dcpplan").symlink_to(root.parent / "outside" / "secret.dcpplan")
    assert folder.find(key) is None
    (root / "one.dcpplan").unlink()
    (root / "one.dcpplan").write_bytes(b"again")
    assert folder.find(key).size_bytes == 5


def test_a_folder_with_too_many_names_says_what_is_not_looked_at(root, monkeypatch):
    assert Folder(root).bounds() == ""
    monkeypatch.setattr(folder_module, "MAX_NAMES", 2)
    folder = Folder(root)
    assert names(root) == ["one.dcpplan"]
    folder.files(SUFFIX)
    assert "only the first 2 names below" in folder.bounds()


def test_a_link_that_turns_away_from_the_folder_is_listed_no_more(root):
    link = root / "again.dcpplan"
    link.symlink_to(root / "one.dcpplan")
    folder = Folder(root)
    assert len(folder.files(SUFFIX)) == 3
    link.unlink()
    link.symlink_to(root.parent / "outside" / "secret.dcpplan")
    assert len(folder.files(SUFFIX)) == 2


def test_a_kept_plan_is_loaded_by_its_key_and_lies_in_no_served_folder(tmp_path, served_folder):
    library = PlanLibrary(tmp_path)
    content = (served_folder / "small.dcpplan").read_bytes()
    kept = library.keep(content, "dropped.dcpplan")
    again = library.load(kept.entry.key)
    assert digest(again.plan) == digest(kept.plan)
    assert again.entry.relative == "dropped.dcpplan"
    assert [entry.key for entry in library.session.entries()] == [kept.entry.key]
    assert library.keep(content, "same bytes").entry.key == kept.entry.key
    assert len(library.session.entries()) == 1
    assert list(tmp_path.iterdir()) == []
    library.session.close()
    with pytest.raises(DCPError, match="until the server ends"):
        library.load(kept.entry.key)


def test_bytes_that_are_no_plan_are_refused_by_name_and_not_kept(tmp_path):
    library = PlanLibrary(tmp_path)
    with pytest.raises(DCPError, match=r"^evil\.dcpplan: expected a whole zip archive") as caught:
        library.keep(b"PK\x03\x04 cut", "evil.dcpplan\n")
    assert "dcpm-plans" not in str(caught.value)
    assert library.session.entries() == ()


def test_the_plan_used_longest_ago_goes_first():
    store = SessionPlans(max_plans=2)
    first, second = store.add(b"1", "one"), store.add(b"2", "two")
    assert store.find(first.key) is not None
    store.add(b"3", "three")
    assert store.find(second.key) is None
    assert not second.path.exists()
    assert [entry.relative for entry in store.entries()] == ["three", "one"]
    folder = first.path.parent
    store.close()
    assert not folder.exists()


def test_the_store_is_bounded_in_bytes_too():
    store = SessionPlans(max_total_bytes=10)
    store.add(b"x" * 6, "one")
    store.add(b"y" * 6, "two")
    assert [entry.relative for entry in store.entries()] == ["two"]
    store.close()


@pytest.mark.parametrize("name", ["../../up.dcpplan", "/etc/passwd", "a" * 500, "", "\0"])
def test_a_name_is_never_a_path(name, tmp_path):
    store = SessionPlans()
    entry = store.add(b"bytes", name)
    assert entry.path.parent.name.startswith("dcpm-plans-")
    assert len(entry.relative) <= 80
    assert entry.relative.isprintable()
    store.close()


def test_where_a_plan_cannot_be_kept_it_is_said_and_the_next_one_is(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    store = SessionPlans()
    with pytest.raises(DCPError, match=r"mine: expected room for 5 bytes .*No such file"):
        store.add(b"bytes", "mine")
    assert store.entries() == ()
    (tmp_path / "gone").mkdir()
    path = store.add(b"bytes", "mine").path
    shutil.rmtree(path.parent)
    assert store.add(b"bytes", "mine").path.read_bytes() == b"bytes"
    store.close()
    assert list(tmp_path.rglob("*")) == [tmp_path / "gone"]


KILLED = """
import os, signal, sys
from dcp_dashboard.library.folder import SessionPlans
store = SessionPlans()
print(store.add(b"bytes", "a").path.parent, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


@pytest.mark.dist
def test_the_folder_of_a_killed_server_goes_with_the_next_and_that_of_a_living_one_stays(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {
        **os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip

    def start(how):
        return subprocess.Popen(
            [sys.executable, "-c", KILLED, how],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    with start("waiting") as living:
        lives = Path(living.stdout.readline().strip())
        with start("killed") as killed:
            left = Path(killed.stdout.readline().strip())
        assert left.is_dir()
        other = tmp_path / "dcpm-plans-somebody"
        other.symlink_to(tmp_path)
        store = SessionPlans()
        own = store.add(b"bytes", "a").path.parent
        assert sorted(tmp_path.iterdir()) == sorted((lives, own, other))
        store.close()
        living.stdin.close()
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize("point", ["made", "opened", "being removed"])
def test_a_new_folder_that_another_server_sweeps_before_it_is_locked_is_made_again(
    point, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    make, lock, swept = tempfile.mkdtemp, fcntl.flock, []

    def is_struck(where):
        if where == point and not swept:
            swept.extend(tmp_path.iterdir())
            return True
        return False

    def mkdtemp(**names):
        path = make(**names)
        if is_struck("made"):
            folder_module._sweep(tmp_path)
        return path

    def flock(file, how):
        if is_struck("opened"):
            folder_module._sweep(tmp_path)
        if is_struck("being removed"):
            sweeper = os.open(swept[0], os.O_RDONLY)
            lock(sweeper, how)
            try:
                lock(file, how)
            finally:
                shutil.rmtree(swept[0])
                os.close(sweeper)
        lock(file, how)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(fcntl, "flock", flock)
    store = SessionPlans()
    entry = store.add(b"bytes", "a")
    assert len(swept) == 1
    folder_module._sweep(tmp_path)
    assert entry.path.read_bytes() == b"bytes"
    store.close()
    assert list(tmp_path.iterdir()) == []
