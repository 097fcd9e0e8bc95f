"""Plans that lie in no served folder: dropped on a page or planned there, for this session only.

They are files in a private folder of this server, so that everything that reads a plan file works
on them as on any other; a bounded number is kept, the one used longest ago goes first.
"""

import hashlib
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from pathlib import Path

from dcp_dashboard.library.folder import PlanEntry

MAX_PLANS = 32
MAX_TOTAL_BYTES = 10**9
MAX_NAME = 80


class SessionPlans:
    """A bounded set of plan files by key; safe to use from several threads.

    The folder is made with the first plan and removed with the store or at the end of the process.

    >>> store = SessionPlans()
    >>> entry = store.add(b"not a plan, but kept: whoever reads it refuses it", "mine.dcpplan")
    >>> entry.relative, store.find(entry.key) == entry, store.find("0" * 16)
    ('mine.dcpplan', True, None)
    >>> store.close()
    """

    def __init__(self, max_plans: int = MAX_PLANS, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._max_plans, self._max_total_bytes = max_plans, max_total_bytes
        self._entries: OrderedDict[str, PlanEntry] = OrderedDict()
        self._lock = threading.Lock()
        self._folder: Path | None = None

    def add(self, content: bytes, name: str) -> PlanEntry:
        """Keep the bytes of a plan file; the same bytes have the same key and are kept once.

        Nothing is checked here: read it afterwards, and `discard` what cannot be read.
        `PlanLibrary.keep` does both.

        Args:
            content: of a `.dcpplan` file.
            name: shown to people; never used as a path.
        """
        key = session_key(content)
        with self._lock:
            path = self._open() / f"{key}.dcpplan"
            path.write_bytes(content)
            status = path.stat()
            shown = "".join(c for c in name if c.isprintable())[-MAX_NAME:] or path.name
            entry = PlanEntry(key, shown, path, status.st_size, status.st_mtime_ns)
            self._entries[key] = entry
            self._entries.move_to_end(key)
            self._forget_old(key)
        return entry

    def find(self, key: str) -> PlanEntry | None:
        """Find the plan with this key, or ``None``; the text of `key` is never used as a path."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def entries(self) -> tuple[PlanEntry, ...]:
        """Return the kept plans, the most recently used first."""
        with self._lock:
            return tuple(reversed(self._entries.values()))

    def discard(self, key: str) -> None:
        """Forget a plan; an unknown key is no error."""
        with self._lock:
            self._remove(key)

    def close(self) -> None:
        """Forget everything and remove the folder."""
        with self._lock:
            self._entries.clear()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _open(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="dcpm-session-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def _forget_old(self, newest: str) -> None:
        def is_too_much() -> bool:
            total = sum(entry.size_bytes for entry in self._entries.values())
            return len(self._entries) > self._max_plans or total > self._max_total_bytes

        while is_too_much():
            oldest = next(iter(self._entries))
            if oldest == newest:  # alone too large for the store: its reader says so
                break
            self._remove(oldest)

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.path.unlink(missing_ok=True)


def session_key(content: bytes) -> str:
    """Compute the key of a plan's bytes, 16 hexadecimal digits like the keys of the folder.

    >>> len(session_key(b"")), session_key(b"a") == session_key(b"a")
    (16, True)
    """
    return hashlib.blake2b(content, digest_size=8, person=b"dcpm session").hexdigest()
