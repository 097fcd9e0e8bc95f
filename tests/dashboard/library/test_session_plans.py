"""Plans of the session: found like those of the folder, bounded, gone afterwards."""

import pytest

from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.library.session_plans import SessionPlans
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
    assert "dcpm-session" not in str(caught.value)
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
    assert entry.path.parent.name.startswith("dcpm-session-")
    assert len(entry.relative) <= 80
    assert entry.relative.isprintable()
    store.close()
