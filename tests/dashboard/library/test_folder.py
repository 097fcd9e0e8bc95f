import os

import pytest

from dcp_dashboard import DashboardError
from dcp_dashboard.library import folder as folder_module
from dcp_dashboard.library.folder import find, open_folder, plan_key, scan


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
    return [entry.relative for entry in scan(root).entries]


def test_plans_are_found_in_every_folder_below(root):
    assert names(root) == ["one.dcpplan", "runs/a/two.dcpplan"]
    assert scan(root).is_complete


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
    assert names(root) == ["one.dcpplan", "runs/a/two.dcpplan"]


def test_a_link_that_stays_inside_is_listed(root):
    (root / "again.dcpplan").symlink_to(root / "one.dcpplan")
    assert "again.dcpplan" in names(root)


def test_odd_file_names_are_plain_names(root):
    odd = ["..dcpplan", "a b&c=d.dcpplan", "<b>.dcpplan", "ü\n.dcpplan", "\udcff.dcpplan"]
    for name in odd:
        (root / name).write_bytes(b"x")
    found = {entry.relative: entry.key for entry in scan(root).entries}
    assert set(odd) <= set(found)
    assert all(len(key) == 16 and set(key) <= set("0123456789abcdef") for key in found.values())
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    "key",
    ["", "..", "../outside/secret.dcpplan", "one.dcpplan", "/etc/passwd", "\0", "%2e%2e", "0" * 16],
)
def test_a_key_is_never_used_as_a_path(root, key):
    assert find(root, key) is None


def test_a_key_finds_its_file_again(root):
    entry = find(root, plan_key("runs/a/two.dcpplan"))
    assert entry is not None
    assert entry.path == root / "runs" / "a" / "two.dcpplan"
    assert entry.size_bytes == 2


def test_the_scan_stops_at_its_bounds_and_says_so(root, monkeypatch):
    monkeypatch.setattr(folder_module, "MAX_FILES", 1)
    assert len(scan(root).entries) == 1
    assert not scan(root).is_complete
    monkeypatch.setattr(folder_module, "MAX_FILES", 10)
    monkeypatch.setattr(folder_module, "MAX_DEPTH", 0)
    assert names(root) == ["one.dcpplan"]
    assert not scan(root).is_complete


def test_a_missing_folder_says_what_to_do(tmp_path):
    with pytest.raises(DashboardError, match=r"which does not exist; make one with: dcpm demo"):
        open_folder(tmp_path / "nowhere")


def test_a_file_in_place_of_a_folder_says_what_to_do(tmp_path):
    (tmp_path / "x.dcpplan").write_bytes(b"")
    with pytest.raises(DashboardError, match=r"serve the folder it lies in: dcpm dashboard"):
        open_folder(tmp_path / "x.dcpplan")
