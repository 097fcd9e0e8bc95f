"""Plans of the session: found like those of the folder, bounded, gone afterwards."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dcp_dashboard.library import folder as folder_module
from dcp_dashboard.library.folder import SessionPlans
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dsl import DCPError
from dcp_planner import digest


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
