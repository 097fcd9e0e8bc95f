"""A real server under hostile files and requests: it refuses each and serves the next."""

import errno
import json
import os
import signal
import socket
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from dcp_dashboard.library.folder import plan_key

pytestmark = [pytest.mark.dist, pytest.mark.timing]
GROWTH_BYTES = 300 * 2**20
RAW = [
    b"\0" * 4096,
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 300_000,
    b"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\nx",
    b"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
    b"GET /%00/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
]
DEEP = b"[" * 100_000
POSTS = [
    ("_dash-update-component", DEEP),
    ("_dash-update-component", b"null"),
    ("api/edit/check", b'{"text":' + DEEP),
    ("api/edit/check", b'{"text":"mask m = ' + b"(" * 50_000 + b'"}'),
    ("api/edit/check", b'{"text":' + b"9" * 5_000 + b"}"),
    ("api/edit/check", b'{"text":"use \\"../../../etc/passwd\\"","home":"../../etc/passwd"}'),
    ("api/edit/picture", b'{"text":"mask m = causal","sample":"99999999999999999999"}'),
    ("api/edit/check", b'{"text":"\\ud800"}'),
    ("api/uploads?name=%00..%2f..%2fx&size=99999999999999999999", b""),
    ("api/uploads/..%2f..%2fx?at=0", b"x"),
]


def write_zip(path, content, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def write_hostile_files(folder: Path, good: Path) -> None:
    """Every kind of plan file that is none; each has to be refused by itself."""
    with zipfile.ZipFile(good) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    meta = json.loads(parts["meta.json"])
    rows = meta["tables"] | dict.fromkeys(meta["tables"], 2**62)
    cluster = meta["cluster"] | {"nodes": 2**40}

    def with_meta(**changes):
        return parts | {"meta.json": json.dumps(meta | changes)}

    write_zip(folder / "bomb.dcpplan", parts | {"tiles.arrow": b"\0" * 10**8}, zipfile.ZIP_DEFLATED)
    write_zip(folder / "counts.dcpplan", with_meta(tables=rows))
    write_zip(folder / "devices.dcpplan", with_meta(cluster=cluster))
    write_zip(folder / "types.dcpplan", with_meta(shape=[1], traces={}))
    write_zip(folder / "deep.dcpplan", parts | {"meta.json": DEEP})
    write_zip(folder / "swapped.dcpplan", parts | {"tiles.arrow": parts["events.arrow"]})
    write_zip(folder / "arrow.dcpplan", parts | {"tiles.arrow": parts["tiles.arrow"][:400]})
    write_zip(folder / "climb.dcpplan", {"../../climbed": b"x", "/tmp/climbed": b"x"})
    whole = good.read_bytes()
    (folder / "cut.dcpplan").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.dcpplan").write_bytes(b"")
    (folder / (("ü" * 100) + ".dcpplan")).write_bytes(b"x")
    (folder / "out.dcpplan").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe.dcpplan")


@pytest.fixture
def started(tmp_path, served_folder, start_dcpm):
    """The process of `dcpm dashboard` over a folder with one good plan, and its address."""
    good = tmp_path / "good.dcpplan"
    good.write_bytes((served_folder / "small.dcpplan").read_bytes())
    write_hostile_files(tmp_path, good)
    return start_dcpm("dashboard", tmp_path, PYTHONWARNINGS="error")


def ask(url, body=None, content_type="application/json"):
    request = urllib.request.Request(url, body, {"Content-Type": content_type})
    try:
        with urllib.request.urlopen(request, timeout=250) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def send_raw(url, text):
    """Return how the answer begins; nothing if the server closed before it read all."""
    port = int(url.rstrip("/").rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=250) as connection:
        try:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(100)
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
            return b""


def show(url, path):
    """Return the answer of the one callback of the pages."""
    inputs = [{"id": "url", "property": "pathname", "value": path},
              {"id": "url", "property": "search", "value": ""}]  # fmt: skip
    body = {"output": "page.children", "outputs": {"id": "page", "property": "children"},
            "inputs": inputs, "changedPropIds": ["url.pathname"]}  # fmt: skip
    return ask(f"{url}_dash-update-component", json.dumps(body).encode())


def peak_bytes(number):
    line = next(x for x in Path(f"/proc/{number}/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def test_the_server_refuses_every_hostile_file_and_request_and_serves_the_next(started, tmp_path):
    process, url = started
    good = plan_key("good.dcpplan")
    assert ask(f"{url}api/plan/{good}/mask")[0] == 200
    before = peak_bytes(process.pid)
    for path in tmp_path.glob("*.dcpplan"):
        key = plan_key(path.name)
        if key != good:
            status, said = ask(f"{url}api/plan/{key}/mask")
            assert status == 404, path.name
            assert json.loads(said)["error"], path.name
            assert b"root:" not in said
    for text in RAW:
        answer = send_raw(url, text)
        assert not answer or answer.startswith(b"HTTP/1."), text[:60]
        assert not answer.startswith(b"HTTP/1.1 5"), text[:60]
    for path, body in POSTS:
        status, said = ask(f"{url}{path}", body)
        assert status < 500, (path, body[:60], said[:200])
        assert b"Traceback" not in said
        assert b"root:" not in said
    status, listed = show(url, "/")
    assert status == 200
    assert b"good.dcpplan" in listed
    assert b"bomb.dcpplan" in listed
    assert show(url, f"/plan/{good}")[0] == 200
    checked = ask(f"{url}api/edit/check", b'{"text": "mask m = causal"}')
    assert json.loads(checked[1])["is_usable"]
    assert peak_bytes(process.pid) - before < GROWTH_BYTES
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    process.wait(200)
    assert process.err.read_text(encoding="utf-8") == "Press Ctrl-C to stop.\n"
