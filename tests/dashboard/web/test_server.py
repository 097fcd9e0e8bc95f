"""The server and its command: ports, signals, hostile files and requests."""

import errno
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
import warnings
import zipfile
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from dcp_dashboard import DashboardError, serve, start_server
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.web import server as server_module

# A shell's background processes ignore Ctrl-C, and so would those that they start.
DCPM = """
import signal
from dcp_dsl.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.fixture
def start_dcpm(tmp_path, start_python):
    """Start `dcpm` in a process of its own, which starts others; return it with its first line."""
    started = []

    def start(*arguments, **environment):
        script = tmp_path / "dcpm.py"
        script.write_text(DCPM, encoding="utf-8")
        started.append(start_python(script, *arguments, folder=tmp_path, **environment))
        limit_s = time.monotonic() + 100
        while "\n" not in (said := started[-1].out.read_text(encoding="utf-8")):
            assert time.monotonic() < limit_s, started[-1].err.read_text(encoding="utf-8")
            time.sleep(0.02)
        return started[-1], said.strip()

    yield start
    for process in started:
        process.kill()


def get(url, body=None, **headers):
    """The status and the bytes of an answer."""
    kind = {"Content-Type": "application/json"} if body is not None else {}
    request = urllib.request.Request(url, body, kind | headers)
    try:
        with urllib.request.urlopen(request, timeout=250) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_started_server_answers_until_it_is_closed_beside_others(served_folder, tmp_path):
    server = start_server(served_folder)
    with start_server(tmp_path) as other:
        assert get(other.url)[0] == 200
    status, body = get(server.url)
    assert status == 200
    assert b'<html lang="en">' in body
    assert get(server.url, Host="evil")[0] == 400
    server.close()
    with pytest.raises(urllib.error.URLError):
        get(server.url)


def test_answers_that_nobody_read_leave_no_file_open(served_folder):
    server = start_server(served_folder)
    asked = b"GET /assets/codemirror.bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with closing(socket.create_connection(server._waitress.socket.getsockname())) as client:
        client.sendall(40 * asked)  # more than sockets hold: waitress keeps the rest in a file
        channels = server._waitress.active_channels
        limit_s = time.monotonic() + 20
        while not any(c.total_outbufs_len > 2**21 for c in list(channels.values())):
            assert time.monotonic() < limit_s
            time.sleep(0.01)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", ResourceWarning)
            server.close()
            del server, channels
            gc.collect()
    assert [str(w.message) for w in found if "unclosed file" in str(w.message)] == []


def test_connections_that_send_half_a_request_keep_nobody_out_and_are_closed(
    served_folder, monkeypatch
):
    monkeypatch.setattr(server_module, "IDLE_LIMIT_S", 8)
    with start_server(served_folder) as server, ExitStack() as stack:
        address = server._waitress.socket.getsockname()
        halves = [stack.enter_context(socket.create_connection(address)) for _ in range(300)]
        for half in halves:
            half.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert get(server.url)[0] == 200
        with pytest.raises(BlockingIOError):
            halves[0].recv(1, socket.MSG_DONTWAIT)  # nobody had to leave for that
        halves[0].settimeout(60)
        assert halves[0].recv(1) == b""  # the server closed it


def test_requests_that_wait_for_a_thread_are_no_news(served_folder, caplog):
    with start_server(served_folder):
        logging.getLogger("waitress.queue").warning("Task queue depth is 1")
    assert caplog.records == []


def test_beyond_loopback_it_says_that_nothing_is_encrypted(served_folder, capsys):
    def leave(_):
        raise KeyboardInterrupt

    for host, says in (("127.0.0.1", ""), ("0.0.0.0", "nothing that it sends is encrypted")):
        with pytest.raises(KeyboardInterrupt):
            serve(served_folder, host, 0, on_ready=leave)
        err = capsys.readouterr().err
        assert says in err
        assert bool(says) == bool(err)


def test_the_server_has_the_limits_that_its_documents_name(tmp_path):
    with start_server(tmp_path) as server:
        settings = server._waitress.adj
        assert (settings.threads, settings.connection_limit) == (8, 800)
        assert (settings.channel_timeout, settings.cleanup_interval) == (20, 5)
        assert (settings.max_request_body_size, settings.ident) == (2**20, "dcp-dsl")
        assert settings.asyncore_use_poll
        assert server._thread.daemon  # a program that forgets to close it ends nevertheless
        options = server._waitress.socket.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert options


def test_addresses_name_what_a_browser_can_open(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    hosts = {"::1": "[::1]", "localhost": "localhost", "127.0.0.1": "127.0.0.1", "0.0.0.0": "box"}
    for host, shown in hosts.items():
        with start_server(tmp_path, host=host) as server:
            address, _, token = server.url.partition("?token=")
            port = server._waitress.socket.getsockname()[1]
            if token:  # beyond loopback nobody is served without it
                assert get(f"http://127.0.0.1:{port}/")[0] == 401
            assert address == f"http://{shown}:{port}/"
            assert bool(token) == (host == "0.0.0.0")
    assert len(token) >= 32


def test_a_busy_port_that_was_asked_for_is_an_error_and_the_default_moves_on(
    served_folder, monkeypatch
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DashboardError, match=rf"port {port}: .* choose another .* --port"):
            start_server(served_folder, port=port)
        monkeypatch.setattr(server_module, "DEFAULT_PORT", port)
        with closing(server_module._bind("127.0.0.1", None)) as bound:
            assert port < bound.getsockname()[1] < port + server_module.PORTS_TRIED


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_is_an_error(served_folder, host):
    with pytest.raises(DashboardError, match=rf"cannot listen on {host}: .* with --host"):
        start_server(served_folder, host=host)


def test_a_missing_library_names_the_extra_and_a_missing_folder_itself(tmp_path, monkeypatch):
    with pytest.raises(DashboardError, match="nowhere"):
        serve(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "waitress.server", None)
    with pytest.raises(DashboardError, match=r"pip install 'dcp-dsl\[dashboard\]'"):
        serve(tmp_path)


SLOW = {
    "text": "mask m = causal", "sample": "4194304", "block": 2048, "nodes": 8,
    "devices_per_node": 8, "method": "native", "budget": "balanced",
}  # fmt: skip


def ask(url, body):
    return json.loads(get(url, json.dumps(body).encode())[1])


def children_of(number):
    """Process numbers by reading /proc, so that a process that hides its parent counts too."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(number):
                found.add(folder)
    return found


@contextmanager
def open_connections(url):
    """One that says nothing, one that stopped in a header, one that stopped in a body."""
    port = int(url.rstrip("/").rsplit(":", 1)[1])
    sent = (
        b"",
        b"GET / HTTP/1.1\r\nHost: loc",
        b"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\nabc",
    )
    with ExitStack() as opened:
        for text in sent:
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(text)
        yield


@pytest.mark.parametrize(
    ("number", "status", "message"),
    [(signal.SIGINT, 130, "\ndcpm: interrupted\n"), (signal.SIGTERM, 143, "")],
    ids=["ctrl-c", "terminate"],
)
def test_a_signal_ends_the_command_quietly_with_all_it_does(
    tmp_path, start_dcpm, number, status, message
):
    process, url = start_dcpm("dashboard", tmp_path, PYTHONWARNINGS="error")
    with open_connections(url):
        assert url.startswith("http://127.0.0.1:")
        assert ask(f"{url}api/edit/check", {"text": "mask m = causal"})["is_usable"]
        assert ask(f"{url}api/edit/plan", SLOW)["state"] in ("waiting", "running")
        assert ask(f"{url}api/edit/plan", SLOW)["state"] == "waiting"
        workers = children_of(process.pid)
        assert len(workers) >= 2
        os.kill(process.pid, number)
        assert process.wait(200) == status
    assert process.out.read_text(encoding="utf-8") == f"{url}\n"
    assert process.err.read_text(encoding="utf-8") == f"Press Ctrl-C to stop.\n{message}"
    assert [worker for worker in workers if worker.exists()] == []


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
    return get(f"{url}_dash-update-component", json.dumps(body).encode())


def peak_bytes(number):
    line = next(x for x in Path(f"/proc/{number}/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


@pytest.mark.dist
@pytest.mark.timing
def test_the_server_refuses_every_hostile_file_and_request_and_serves_the_next(started, tmp_path):
    process, url = started
    good = plan_key("good.dcpplan")
    assert get(f"{url}api/plan/{good}/mask")[0] == 200
    before = peak_bytes(process.pid)
    for path in tmp_path.glob("*.dcpplan"):
        key = plan_key(path.name)
        if key != good:
            status, said = get(f"{url}api/plan/{key}/mask")
            assert status == 404, path.name
            assert json.loads(said)["error"], path.name
            assert b"root:" not in said
    for text in RAW:
        answer = send_raw(url, text)
        assert not answer or answer.startswith(b"HTTP/1."), text[:60]
        assert not answer.startswith(b"HTTP/1.1 5"), text[:60]
    for path, body in POSTS:
        status, said = get(f"{url}{path}", body)
        assert status < 500, (path, body[:60], said[:200])
        assert b"Traceback" not in said
        assert b"root:" not in said
    status, listed = show(url, "/")
    assert status == 200
    assert b"good.dcpplan" in listed
    assert b"bomb.dcpplan" in listed
    assert show(url, f"/plan/{good}")[0] == 200
    checked = get(f"{url}api/edit/check", b'{"text": "mask m = causal"}')
    assert json.loads(checked[1])["is_usable"]
    assert peak_bytes(process.pid) - before < GROWTH_BYTES
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    process.wait(200)
    assert process.err.read_text(encoding="utf-8") == "Press Ctrl-C to stop.\n"
