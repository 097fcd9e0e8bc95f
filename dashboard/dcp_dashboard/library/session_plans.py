"""Plans of this session: dropped on a page or planned there, and gone when the server ends.

They are files in a private temporary folder, so everything that reads a plan file works on them. A
bounded number is kept; the plan used longest ago goes first.
"""

import hashlib
import threading
from collections import OrderedDict

from dcp_dashboard.library.folder import DashboardError, PlanEntry
from dcp_dashboard.library.session_folder import SessionFolder

MAX_PLANS = 32
MAX_TOTAL_BYTES = 10**9
MAX_NAME = 80


class SessionPlans:
    """A bounded set of plan files by key; safe to use from several threads.

    >>> store = SessionPlans()
    >>> entry = store.add(b"kept, although no plan: its reader refuses it", "mine.dcpplan")
    >>> entry.relative, store.find(entry.key) == entry, store.find("0" * 16)
    ('mine.dcpplan', True, None)
    >>> store.close()
    """

    def __init__(self, max_plans: int = MAX_PLANS, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._max_plans, self._max_total_bytes = max_plans, max_total_bytes
        self._entries: OrderedDict[str, PlanEntry] = OrderedDict()
        self._lock = threading.Lock()
        self._folder: SessionFolder | None = None

    def add(self, content: bytes, name: str) -> PlanEntry:
        """Keep the unchecked bytes of a plan file; the same bytes have the same key.

        `name` is shown to people and never used as a path. `PlanLibrary.keep` also reads the file.

        Raises:
            DashboardError: if they cannot be kept.
        """
        key = hashlib.blake2b(content, digest_size=8, person=b"dcpm session").hexdigest()
        with self._lock:
            shown = "".join(c for c in name if c.isprintable())[-MAX_NAME:] or f"{key}.dcpplan"
            try:
                entry = self._written(key, shown, content)
            except OSError as error:
                raise DashboardError(
                    f"expected room for {len(content):,} bytes in a folder for temporary files, "
                    f"got: {error.strerror or error}; make room, or set TMPDIR, and try again",
                    shown,
                ) from error
            self._entries[key] = entry
            self._entries.move_to_end(key)
            # A plan that is too large alone stays: its reader refuses it.
            while len(self._entries) > 1 and self._is_full():
                self._remove(next(iter(self._entries)))
        return entry

    def find(self, key: str) -> PlanEntry | None:
        """Return the plan with this key, or ``None``."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

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
                self._folder.close()
                self._folder = None

    def _written(self, key: str, shown: str, content: bytes) -> PlanEntry:
        if self._folder is None or not self._folder.is_there:
            self._folder = SessionFolder()
        path = self._folder.path / f"{key}.dcpplan"
        try:
            path.write_bytes(content)
            status = path.stat()
        except OSError:
            path.unlink(missing_ok=True)  # a part of a file takes room
            raise
        return PlanEntry(key, shown, path, status.st_size, status.st_mtime_ns)

    def _is_full(self) -> bool:
        total = sum(entry.size_bytes for entry in self._entries.values())
        return len(self._entries) > self._max_plans or total > self._max_total_bytes

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.path.unlink(missing_ok=True)
