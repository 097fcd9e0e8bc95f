"""Files of the served folder, found by opaque keys; no file outside the folder is ever opened.

A key is a digest of the path relative to the folder. A text from a URL is only looked up among the
keys of the names that a walk through the folder found; it never becomes a path.

A folder is read again only once its time of change is another: a known key costs one `stat` of its
file, an unknown key and a list one `stat` of each folder, a list one of each of its files, too.
"""

import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterator
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
"""A folder changed so shortly before a walk may change again without a new time of change."""


class DashboardError(DCPError):
    """A dashboard that cannot start or a plan that it cannot show, with the way out."""


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """A file of the folder as a walk saw it.

    Attributes:
        key: 16 hexadecimal digits; names the file in URLs.
        relative: path below the folder, with ``/``.
        path: absolute, without symbolic links.
        size_bytes, mtime_ns: together with `path` they name one content of the file.
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
    """Resolve the folder to serve.

    Raises:
        DashboardError: if it is missing or no directory.
    """
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
    """The served folder; safe to use from several threads.

    Hidden folders are skipped, symbolic links to folders are not followed, and a file counts only
    if it is a regular file that lies below the root after all links are resolved.

    Args:
        root: as `open_folder` gives it.
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
        relative = self._names.get(key) or self._walked().get(key)
        if relative is None or not relative.endswith(suffix):
            return None
        return _entry(self.root, self.root / relative)

    def bounds(self) -> str:
        """Explain which files the last walk left out; empty if it left out none."""
        if sum(listing.size for listing in self._listings.values()) <= MAX_NAMES:
            return ""
        return (
            f"; only the first {MAX_NAMES:,} names below {self.root} are looked at, serve a folder "
            "further down for the others"
        )

    def _entry(self, key: str, relative: str) -> PlanEntry | None:
        """Return a file of a walk as it is now; only the path of a link has to be resolved."""
        try:
            status = os.lstat(f"{self.root}/{relative}")
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return _entry(self.root, self.root / relative)
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
                below = waiting.pop()
                listing = listings[below] = self._listing(below)
                seen += listing.size
                waiting += listing.folders
            if listings != self._listings:
                self._names = {
                    key: name for found in listings.values() for key, name in found.names.items()
                }
                self._listings = listings
                self._entries = {k: e for k, e in self._entries.items() if k in self._names}
            return self._names

    def _listing(self, below: str) -> "_Listing":
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
    """Names in one folder.

    Attributes:
        times: when they last changed; ``None`` if that was shortly before they were read.
        names: paths below the root by key.
        folders: paths of the folders in it, with ``/`` at the end.
        size: number of all names.
    """

    times: tuple[int, int] | None
    names: dict[str, str]
    folders: list[str]
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


def _entry(root: Path, path: Path) -> PlanEntry | None:
    try:
        resolved = path.resolve(strict=True)
        status = resolved.stat()
    except (OSError, RuntimeError):  # a dangling or circular link, or gone since the walk saw it
        return None
    if not stat.S_ISREG(status.st_mode) or not resolved.is_relative_to(root):
        return None
    relative = path.relative_to(root).as_posix()
    return PlanEntry(plan_key(relative), relative, resolved, status.st_size, status.st_mtime_ns)
