"""The HTTP server: waitress, one process, eight threads, on loopback by default."""

import errno
import logging
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcp_dashboard.library.folder import DashboardError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8050
PORTS_TRIED = 50
THREADS = 8
CONNECTIONS = 800
"""Most connections at a time: a process may usually open 1,024 files."""
IDLE_LIMIT_S = 20
"""Time after which a connection is closed that has sent no request, or only a part of it."""
END_LIMIT_S = 1.0
"""Time for requests in progress once the server ends."""
_ENDING = logging.Logger("dcp_dashboard.ending", logging.CRITICAL)
"""The silent logger of servers that end: they cut answers off, and that needs no message."""
UNENCRYPTED = (
    "Other machines reach this server, and nothing that it sends is encrypted, the token in the "
    "address neither: on a network that others share, listen on 127.0.0.1 and use an SSH tunnel."
)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this machine that other machines cannot reach; a browser may use any of them."""


@dataclass(slots=True)
class RunningServer:
    """A dashboard, served at `url`, token included; leaving it as a context stops it."""

    url: str
    _waitress: Any  # it ships no types
    _sockets: dict[int, Any]  # of its loop, which adds and removes them
    _end_workers: Callable[[], None]
    _thread: threading.Thread | None = None

    def close(self) -> None:
        """Stop serving and free the port."""
        dispatcher = self._waitress.task_dispatcher
        dispatcher.logger = _ENDING
        if self._thread is None:
            self._close_sockets()
        else:
            # The loop's own thread closes the sockets, since no other thread may while it polls
            # them. A loop that is awake already may run the action, which closes this pipe, before
            # the write.
            with suppress(OSError):
                self._waitress.trigger.pull_trigger(self._close_sockets)
            self._thread.join(timeout=5)
        self._end_workers()  # before the threads: their requests wait for workers
        dispatcher.shutdown(timeout=END_LIMIT_S)

    def __enter__(self) -> "RunningServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        # Not `server.run`: it swallows Ctrl-C, and the program's exit status would be wrong.
        settings = self._waitress.adj
        self._waitress.asyncore.loop(
            timeout=settings.asyncore_loop_timeout,
            map=self._sockets,
            use_poll=settings.asyncore_use_poll,
        )

    def _close_sockets(self) -> None:
        from waitress import wasyncore

        for channel in list(self._waitress.active_channels.values()):
            channel.logger = _ENDING
            channel.handle_close()  # removes the temporary files of answers that were not read
        wasyncore.close_all(self._sockets, ignore_all=True)  # a loop without sockets ends


def serve(
    folder: str | Path,
    host: str = DEFAULT_HOST,
    port: int | None = None,
    *,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the plans of a folder until interrupted.

    Args:
        folder: where the `.dcpplan` files are.
        host: address to bind. Beyond loopback, a random token must be in the first URL.
        port: port to bind; ``None`` takes 8050 or the next free one.
        on_ready: called with the URL once the port is bound; by default it prints the URL.

    Raises:
        DashboardError: if the folder is missing, the port is taken or a library is not installed.
        KeyboardInterrupt: at Ctrl-C, once everything is closed. Any other exception from the
            handler of a signal ends the server in the same way.
    """
    server = _make_server(folder, host, port)
    if host not in LOOPBACK:
        print(UNENCRYPTED, file=sys.stderr, flush=True)
    try:
        (on_ready or _print_url)(server.url)
        server._run()
    finally:
        server.close()


def start_server(folder: str | Path, host: str = DEFAULT_HOST, port: int = 0) -> RunningServer:
    """Serve the plans of a folder from a thread, as `serve` does; port 0 takes any free one."""
    server = _make_server(folder, host, port)
    server._thread = threading.Thread(target=server._run, name="dcp-dashboard", daemon=True)
    server._thread.start()
    return server


def _print_url(url: str) -> None:
    print(url, flush=True)  # on standard output, for programs that start the server
    print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)


def _make_server(folder: str | Path, host: str, port: int | None) -> RunningServer:
    try:
        from waitress.server import create_server

        from dcp_dashboard.editing.routes import DESK
        from dcp_dashboard.web.app import create_app
        from dcp_dashboard.web.protection import protect
    except ImportError as error:
        raise DashboardError(
            f"the dashboard needs the library {error.name!r}, which is not installed; "
            "install it with: pip install 'dcp-dsl[dashboard]'"
        ) from error
    app = create_app(folder)
    is_local = host in LOOPBACK
    token = None if is_local else secrets.token_urlsafe(24)
    protect(app, LOOPBACK if is_local else None, token)
    # Waitress warns of every request that waits for a thread; the pictures of one list do.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    # Bound here: waitress would not try the next port, nor say in our words why one fails.
    bound = _bind(host, port)
    address = bound.getsockname()
    sockets: dict[int, Any] = {}
    server = create_server(
        app.server,
        map=sockets,
        sockets=[bound],
        threads=THREADS,
        ident="dcp-dsl",
        max_request_body_size=2**20,
        connection_limit=CONNECTIONS,
        channel_timeout=IDLE_LIMIT_S,
        cleanup_interval=IDLE_LIMIT_S // 4,
        asyncore_use_poll=True,  # select knows no more than 1,024 files
    )
    shown = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):  # all interfaces: no address that another machine could open
        shown = socket.gethostname()
    query = f"?token={token}" if token else ""
    url = f"http://{shown}:{address[1]}/{query}"
    return RunningServer(url, server, sockets, app.server.extensions[DESK].close)


def _bind(host: str, port: int | None) -> socket.socket:
    first = DEFAULT_PORT if port is None else port
    tried = range(first, first + (PORTS_TRIED if port is None else 1))
    for candidate in tried:
        try:
            return _listen(host, candidate)
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise DashboardError(
                    f"cannot listen on {host}: {error.strerror or error}; choose an address of "
                    "this machine with --host, such as 127.0.0.1, or 0.0.0.0 for all of them"
                ) from error
            if error.errno != errno.EADDRINUSE or port is not None:
                raise DashboardError(
                    f"cannot listen on {host} port {candidate}: {error.strerror or error}; choose "
                    "another one with --port, or leave --port out to take the next free one"
                ) from error
    raise DashboardError(
        f"expected a free port on {host}, got none from {tried[0]} to {tried[-1]}; choose one with "
        "--port"
    )


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # Without it a port stays taken for a while after its server has ended (TIME_WAIT).
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
