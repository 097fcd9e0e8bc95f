"""Files from a browser, and versions of files that are shown."""

import os
import re
import shutil

import pytest
from mortal_reader import make_deadly

from dcp_dashboard import create_app
from dcp_dashboard.api.routes import BINARY, MAX_OPEN, MAX_UPLOAD_BYTES, Uploads
from dcp_dashboard.editing.planning import make_plan
from dcp_dashboard.library import plans as library_module
from dcp_dashboard.library.folder import DashboardError, plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.layout import changed_notice
from dcp_dashboard.pages.plan_list import EXAMPLES
from dcp_planner import write_plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def client(folder):
    return create_app(folder).server.test_client()


def send(client, content, name="mine.dcpplan", piece=5000):
    answer = client.post(f"/api/uploads?name={name}&size={len(content)}")
    if answer.status_code != 201:
        return answer
    number = answer.json["id"]
    for at in range(0, len(content), piece):
        answer = client.post(
            f"/api/uploads/{number}?at={at}", data=content[at : at + piece], content_type=BINARY
        )
    return answer


def test_a_file_in_pieces_becomes_a_plan_of_the_session(client, served_folder, folder):
    content = (served_folder / "small.dcpplan").read_bytes()
    key = send(client, content).json["key"]
    assert client.get(f"/api/plan/{key}/mask").data[:4] == b"DCPC"
    assert client.get(f"/api/changes?keys={key}").json["versions"][key] is not None
    assert list(folder.iterdir()) == []


def test_what_is_no_plan_is_refused_with_its_name(client, served_folder):
    whole = (served_folder / "small.dcpplan").read_bytes()
    for content in (b"x", b"PK\x03\x04" + b"\0" * 9000, whole[: len(whole) // 2]):
        answer = send(client, content)
        assert answer.status_code == 400
        assert answer.json["error"].startswith("mine.dcpplan: expected a whole zip archive")


@pytest.mark.usefixtures("mortal_reader")
def test_a_file_that_ends_the_process_that_reads_it_is_refused_and_the_next_is_read(
    tmp_path, served_folder
):
    good, deadly = served_folder / "small.dcpplan", tmp_path / "deadly.dcpplan"
    make_deadly(good, deadly)
    client = create_app(tmp_path).server.test_client()
    killed = r"it cannot be read: the reader of plan files \(process \d+\) was killed by SIGSEGV"
    answer = send(client, deadly.read_bytes())
    assert answer.status_code == 400
    assert re.fullmatch(rf"mine\.dcpplan: {killed}", answer.json["error"])
    shown = client.get(f"/api/plan/{plan_key('deadly.dcpplan')}/mask")
    assert shown.status_code == 404
    assert re.search(killed, shown.json["error"])
    shutil.copy(good, tmp_path)
    assert client.get(f"/api/plan/{plan_key('small.dcpplan')}/mask").status_code == 200
    assert send(client, good.read_bytes()).json["key"]


def test_a_plan_from_a_browser_may_unpack_to_less_than_one_of_the_folder(
    monkeypatch, served_folder
):
    path = served_folder / "small.dcpplan"
    monkeypatch.setattr(library_module, "MAX_SESSION_BYTES", 1000)
    library = PlanLibrary(served_folder)
    with pytest.raises(DashboardError, match="small: expected at most 1000 bytes"):
        library.keep(path.read_bytes(), "small")
    assert library.load(plan_key("small.dcpplan")).plan.num_devices == 4


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f"name=b&size={MAX_UPLOAD_BYTES + 1}", "b: expected at most 64\u00a0MB"),
        ("name=a&size=0", "expected at most 64\u00a0MB and at least one byte, got 0\u00a0B"),
        ("name=a&size=-1", "expected size as a whole number of bytes, got '-1'"),
        ("name=a&size=1e9", "got '1e9'"),
        ("name=a", "got ''"),
    ],
)
def test_an_announcement_that_does_not_fit_is_refused(client, query, message):
    answer = client.post(f"/api/uploads?{query}")
    assert answer.status_code == 400
    assert message in answer.json["error"]


def test_pieces_come_in_order_and_as_bytes(client):
    number = client.post("/api/uploads?name=a&size=10").json["id"]
    place = f"/api/uploads/{number}"
    assert client.post(f"{place}?at=0", data="x", content_type="text/plain").status_code == 400
    assert client.post(f"{place}?at=0", data=b"xxxx", content_type=BINARY).status_code == 200
    late = client.post(f"{place}?at=5", data=b"x", content_type=BINARY)
    assert "expected a piece from byte 4" in late.json["error"]
    gone = client.post(f"{place}?at=4", data=b"x", content_type=BINARY)
    assert "announced file" in gone.json["error"]


def test_more_than_was_announced_is_refused():
    uploads = Uploads()
    with pytest.raises(DashboardError, match="to at most 3, got 4 bytes"):
        uploads.add(uploads.announce("a", 3), 0, b"1234")


def test_files_that_are_never_finished_push_each_other_out():
    uploads = Uploads()
    numbers = [uploads.announce("a", 9) for _ in range(MAX_OPEN + 1)]
    with pytest.raises(DashboardError, match="announced file"):
        uploads.add(numbers[0], 0, b"1")
    assert uploads.add(numbers[-1], 0, b"1") is None


def test_every_example_is_planned():
    for example in EXAMPLES:
        stages = []
        figures, content = make_plan(example, stages.append)
        assert figures["devices"] == 8
        assert figures["tokens"] == 32_768
        assert content[:2] == b"PK"
        assert stages
    batches = {(example["text"], example["sample"]) for example in EXAMPLES[:2]}
    assert len(batches) == 1  # one batch placed in two ways


def test_a_version_follows_the_file(tmp_path, small_plan):
    path = tmp_path / "p.dcpplan"
    write_plan(path, small_plan)
    library, key = PlanLibrary(tmp_path), plan_key("p.dcpplan")
    bar = changed_notice(library.load(key).entry)
    first = library.version(key)
    assert bar.to_plotly_json()["props"]["data-versions"] == first
    os.utime(path, ns=(1, 1))
    assert library.version(key) not in (None, first)
    path.unlink()
    assert library.version(key) is None
    write_plan(path, small_plan)
    assert library.version(key) is not None
    path.rename(tmp_path.parent / "elsewhere.dcpplan")
    path.symlink_to(tmp_path.parent / "elsewhere.dcpplan")  # outside the folder: not ours any more
    assert library.version(key) is None


def test_versions_of_unknown_files_are_null(client):
    answer = client.get("/api/changes?keys=0,..,%2Fetc%2Fpasswd,,")
    assert answer.json == {"versions": {"0": None, "..": None, "/etc/passwd": None}}
    many = client.get("/api/changes?keys=" + ",".join(map(str, range(99)))).json["versions"]
    assert len(many) == 8
