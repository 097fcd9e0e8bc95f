"""Files of the served folder, found by opaque keys; no file outside the folder is ever opened.

A key is a digest of the path relative to the folder. A text from a URL is only looked up among the
keys of the names that a walk through the folder found; it never becomes a path.

A walk stays valid as long as no folder that it saw has a new time of change: then a known key costs
one `stat` of its file, an unknown key one `stat` of each folder.
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
MAX_DEPTH = 8
MAX_ENTRIES = 50_000
"""Most names that a walk looks at, so that serving a whole disk by mistake ends."""
MAX_FILES = 2_000
"""Most files of a kind in a list; the other files of the folder are found by their keys."""
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
            "make one with: dcpm demo --no-serve --out runs"
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
        self._walk = _Walk({}, {}, is_complete=True)

    def files(self, suffix: str) -> tuple[list[PlanEntry], bool]:
        """Return the first `MAX_FILES` files of one kind by path, and whether these are all."""
        walk = self._walked()
        found: list[PlanEntry] = []
        for relative in sorted(name for name in walk.names.values() if name.endswith(suffix)):
            entry = _entry(self.root, self.root / relative)
            if entry is not None and len(found) == MAX_FILES:
                return found, False
            found += [] if entry is None else [entry]
        return found, walk.is_complete

    def find(self, key: str, suffix: str | tuple[str, ...] = SUFFIXES) -> PlanEntry | None:
        """Return the file with this key as it is now, listed or not, or ``None``."""
        relative = self._walk.names.get(key) or self._walked().names.get(key)
        if relative is None or not relative.endswith(suffix):
            return None
        return _entry(self.root, self.root / relative)

    def bounds(self) -> str:
        """Explain which files the last walk left out; empty if it left out none."""
        if self._walk.is_complete:
            return ""
        return (
            f"; only the first {MAX_ENTRIES:,} names and {MAX_DEPTH} levels of folders below "
            f"{self.root} are looked at, serve a folder further down for the others"
        )

    def _walked(self) -> "_Walk":
        """Return a walk that is still valid, a new one if the last is not."""
        with self._lock:
            if not self._walk.is_current():
                self._walk = _walk(self.root)
            return self._walk


@dataclass(frozen=True, slots=True)
class _Walk:
    """Result of one walk: paths below the root by key, and the folders' times of change.

    A folder that changed shortly before it was read has ``None`` for its times.
    """

    names: dict[str, str]
    folders: dict[str, tuple[int, int] | None]
    is_complete: bool

    def is_current(self) -> bool:
        """Return whether no folder has got or lost a name since."""
        return bool(self.folders) and all(
            times is not None and times == _times(folder) for folder, times in self.folders.items()
        )


def _walk(root: Path) -> _Walk:
    names: dict[str, str] = {}
    folders: dict[str, tuple[int, int] | None] = {}
    seen, is_complete, waiting = 0, True, [("", 0)]
    while waiting:
        below, depth = waiting.pop()
        path, now_ns = os.path.join(root, below), time.time_ns()
        times = _times(path)
        is_recent = times is not None and times[0] > now_ns - RECENT_NS
        folders[path] = None if is_recent else times
        for name, is_folder in _names(path):
            seen += 1
            if seen > MAX_ENTRIES:
                return _Walk(names, folders, is_complete=False)
            relative = f"{below}{name}"
            if is_folder and not name.startswith("."):
                is_complete = is_complete and depth < MAX_DEPTH
                waiting += [(f"{relative}/", depth + 1)] if depth < MAX_DEPTH else []
            elif not is_folder and name.endswith(SUFFIXES):
                names[plan_key(relative)] = relative
    return _Walk(names, folders, is_complete=is_complete)


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
