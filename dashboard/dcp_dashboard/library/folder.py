"""Find the files to show by opaque keys: those of the served folder, and this session's plans.

A key is a digest of the path relative to the folder. A text from a URL is only looked up among the
keys of the names that a walk through the folder found; it never becomes a path, so no file outside
the folder is ever opened. A folder is read again only when its time of change differs. A known key
costs one `stat` of its file, an unknown key one `stat` of each folder; a list costs one `stat` of
each folder and of each of its files.

Plans that were dropped on a page or planned there are files in a private temporary folder, so
everything that reads a plan file works on them; they are gone when the server ends. The folder is
locked while its process lives, and the kernel drops the lock however the process ends. A server
that makes its folder first removes the folders of the same user that no process holds.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dcp_dsl import DCPError

SUFFIX = ".dcpplan"
REPORT_SUFFIX = ".dcpbatches.json"
STEP_SUFFIX = ".dcpstep.json"
SPEC_SUFFIX = ".dcpm"
RUN_SUFFIX = ".dcprun.jsonl"
SUFFIXES = (SUFFIX, REPORT_SUFFIX, STEP_SUFFIX, SPEC_SUFFIX, RUN_SUFFIX)
MAX_NAMES = 1_000_000
"""Most names that a walk looks at, so that serving a whole disk by mistake ends."""
RECENT_NS = 2 * 10**9
"""A folder that changed less than this before a walk is read again: a second change within one tick
of the file system's clock leaves the same time."""


class DashboardError(DCPError):
    """A dashboard that cannot start or a plan that it cannot show, with the way out."""


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """A file of the folder, with its size and time as they were last seen: its content's name.

    `key`, 16 hexadecimal digits, names it in URLs; `path` is absolute, without symbolic links.
    """

    key: str
    relative: str
    path: Path
    size_bytes: int
    mtime_ns: int


def plan_key(relative: str) -> str:
    """Return the key of a path below the folder.

    >>> plan_key("runs/causal.dcpplan")
    '7b6fccfa4842181d'
    """
    return hashlib.blake2b(relative.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def open_folder(folder: str | Path) -> Path:
    """Resolve the folder to serve."""
    path = Path(folder).expanduser()
    if not path.exists():
        raise DashboardError(
            f"expected a folder with {SUFFIX} files, got {path}, which does not exist; "
            f"make one, its page offers examples: mkdir {path}"
        )
    if not path.is_dir():
        raise DashboardError(
            f"expected a folder, got the file {path}; serve the folder it lies in: "
            f"dcpm dashboard {path.parent}"
        )
    return path.resolve()


class Folder:
    """The served folder, as `open_folder` gives it; safe to use from several threads.

    Hidden folders are skipped, symbolic links to folders are not followed, and a file counts only
    if it is a regular file that lies below the root after all links are resolved.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._listings: dict[str, _Listing] = {}
        self._names: dict[str, str] = {}
        self._entries: dict[str, PlanEntry] = {}

    def files(self, suffix: str) -> list[PlanEntry]:
        """Return the files of one kind, by path."""
        found = []
        for key, relative in self._walked().items():
            entry = self._entry(key, relative) if relative.endswith(suffix) else None
            if entry is not None:
                found.append(entry)
        return sorted(found, key=lambda entry: entry.relative)

    def find(self, key: str, suffix: str | tuple[str, ...] = SUFFIXES) -> PlanEntry | None:
        """Return the file with this key as it is now, or ``None``."""
        # A key that the last walk found needs no new walk; the file itself is looked at either way.
        relative = self._names.get(key) or self._walked().get(key)
        if relative is None or not relative.endswith(suffix):
            return None
        return _resolved(self.root, self.root / relative)

    def bounds(self) -> str:
        """Explain which files the last walk left out; empty if it left out none."""
        if sum(listing.size for listing in self._listings.values()) <= MAX_NAMES:
            return ""
        return (
            f"; only the first {MAX_NAMES:,} names below {self.root} are looked at, serve a folder "
            "further down for the others"
        )

    def _entry(self, key: str, relative: str) -> PlanEntry | None:
        """Return a file of a walk as it is now; only a link has to be resolved."""
        try:
            # Resolving the paths of ten thousand files took 0.43 s, this takes 0.04 (LOG.md).
            status = os.lstat(f"{self.root}/{relative}")
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return _resolved(self.root, self.root / relative)
        # Kept for the next list: making an entry and its path takes longer than the `lstat` above.
        known = self._entries.get(key)
        seen = (status.st_size, status.st_mtime_ns)
        if known is None or (known.size_bytes, known.mtime_ns) != seen:
            known = self._entries[key] = PlanEntry(key, relative, self.root / relative, *seen)
        return known

    def _walked(self) -> dict[str, str]:
        """Return the path of every file by its key; reads the folders that have changed."""
        with self._lock:
            listings: dict[str, _Listing] = {}
            seen, waiting = 0, [""]
            while waiting and seen <= MAX_NAMES:
                # A folder that has not changed gives its old listing, without reading a name.
                below = waiting.pop()
                listing = listings[below] = self._listing(below)
                seen += listing.size
                waiting += listing.folders
            if listings != self._listings:
                # A new mapping, not a changed one: `find` reads it without the lock.
                self._names = {
                    key: name for found in listings.values() for key, name in found.names.items()
                }
                self._listings = listings
                self._entries = {k: e for k, e in self._entries.items() if k in self._names}
            return self._names

    def _listing(self, below: str) -> "_Listing":
        # Times are taken before the names, so the next walk sees a change made while they are read.
        path, now_ns = os.path.join(self.root, below), time.time_ns()
        times, known = _times(path), self._listings.get(below)
        if known is not None and known.times is not None and known.times == times:
            return known
        names, folders, size = {}, [], 0
        for size, (name, is_folder) in enumerate(_names(path), 1):  # noqa: B007
            if is_folder and not name.startswith("."):
                folders.append(f"{below}{name}/")
            elif not is_folder and name.endswith(SUFFIXES):
                names[plan_key(f"{below}{name}")] = f"{below}{name}"
        is_recent = times is not None and times[0] > now_ns - RECENT_NS
        return _Listing(None if is_recent else times, names, folders, size)


@dataclass(frozen=True, slots=True)
class _Listing:
    """Names in one folder, and how many there are, others included."""

    times: tuple[int, int] | None  # of the last change; None if that was just before the reading
    names: dict[str, str]  # paths below the root by key
    folders: list[str]  # with "/" at the end
    size: int


def _names(path: str) -> Iterator[tuple[str, bool]]:
    """Yield each name in a folder and whether it is a folder, not a link; none if unreadable."""
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry.name, entry.is_dir(follow_symlinks=False)
    except OSError:
        return


def _times(path: str) -> tuple[int, int] | None:
    """Return when the folder's names and its permissions last changed, in ns."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns


def _resolved(root: Path, path: Path) -> PlanEntry | None:
    """Return the path of a file, or of a link's target, if it is a regular file below the root."""
    try:
        resolved = path.resolve(strict=True)
        status = resolved.stat()
    except (OSError, RuntimeError):  # a dangling or circular link, or gone since the walk saw it
        return None
    if not stat.S_ISREG(status.st_mode) or not resolved.is_relative_to(root):
        return None
    relative = path.relative_to(root).as_posix()
    return PlanEntry(plan_key(relative), relative, resolved, status.st_size, status.st_mtime_ns)


PREFIX = "dcpm-plans-"


class SessionFolder:
    """A folder that only this user can enter, removed with this object or after its process."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path, lock = _made()
        # The finalizer made last runs first, so the lock goes before the folder. A server that
        # sweeps in between removes the same files.
        self.close = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        weakref.finalize(self, os.close, lock)

    @property
    def is_there(self) -> bool:
        """Return whether the folder still exists: not closed, and not removed from outside."""
        return self.path.is_dir()


def _made() -> tuple[Path, int]:
    """Make a folder and lock it; make another if a server's sweep takes it before that."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            lock = _locked(path)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError:
            path.rmdir()
            raise
        # A sweep may have removed the folder between opening and locking it: then the lock holds a
        # folder without a name.
        if path.is_dir():
            return path, lock
        os.close(lock)


def _locked(folder: Path) -> int:
    """Open and lock a folder until the file is closed; `OSError` if it is held or gone."""
    # O_NOFOLLOW: anybody may put a link of this name where temporary files are.
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def _sweep(parent: Path) -> None:
    """Remove the folders of this user that no process holds."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                lock = _locked(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


MAX_PLANS = 32
MAX_TOTAL_BYTES = 10**9
MAX_NAME = 80


class SessionPlans:
    """A bounded set of plan files by key; safe to use from several threads."""

    def __init__(self, max_plans: int = MAX_PLANS, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._max_plans, self._max_total_bytes = max_plans, max_total_bytes
        self._entries: OrderedDict[str, PlanEntry] = OrderedDict()
        self._lock = threading.Lock()
        self._folder: SessionFolder | None = None

    def add(self, content: bytes, name: str) -> PlanEntry:
        """Keep the unchecked bytes of a plan file; the same bytes have the same key.

        `name` is shown to people and never used as a path. `PlanLibrary.keep` also reads the file.
        """
        # A `person` of its own: no path of the folder has the key of a session's plan.
        key = hashlib.blake2b(content, digest_size=8, person=b"dcpm session").hexdigest()
        with self._lock:
            shown = "".join(c for c in name if c.isprintable())[-MAX_NAME:] or f"{key}{SUFFIX}"
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
            # The newest plan stays even if it alone is too large: its reader refuses it in words.
            while len(self._entries) > 1 and (
                len(self._entries) > self._max_plans
                or sum(kept.size_bytes for kept in self._entries.values()) > self._max_total_bytes
            ):
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
        path = self._folder.path / f"{key}{SUFFIX}"
        try:
            path.write_bytes(content)
            status = path.stat()
        except OSError:
            path.unlink(missing_ok=True)  # a part of a file takes room
            raise
        return PlanEntry(key, shown, path, status.st_size, status.st_mtime_ns)

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.path.unlink(missing_ok=True)
