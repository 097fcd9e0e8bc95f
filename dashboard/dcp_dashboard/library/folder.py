"""The served folder: which plan files it holds, under opaque keys, and nothing outside it.

A key is a digest of the path relative to the folder, so that no text from a URL is ever used as a
path: it is only compared with the keys of files that the scan found.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from dcp_dsl import DCPError

SUFFIX = ".dcpplan"
REPORT_SUFFIX = ".dcpbatches.json"
MAX_DEPTH = 8
MAX_ENTRIES = 50_000
MAX_FILES = 2_000


class DashboardError(DCPError):
    """A dashboard that cannot start or a plan that it cannot show, with the way out."""


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One plan file, or report of a data set, of the folder, as the scan saw it.

    Attributes:
        key: 16 hexadecimal digits; names the plan in URLs.
        relative: path below the folder, with ``/``.
        path: absolute, without symbolic links.
        size_bytes, mtime_ns: together with `path` they name one content of the file.
    """

    key: str
    relative: str
    path: Path
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Scan:
    """What a walk through the folder found.

    Attributes:
        entries: plan files, sorted by `PlanEntry.relative`.
        reports: reports of data sets, likewise.
        is_complete: false if the walk stopped at one of its bounds.
    """

    entries: tuple[PlanEntry, ...]
    reports: tuple[PlanEntry, ...]
    is_complete: bool


def plan_key(relative: str) -> str:
    """Give the key of a path below the folder.

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


def scan(root: Path) -> Scan:
    """Find the plan files and reports below `root`, at most `MAX_FILES`, `MAX_DEPTH` folders deep.

    Hidden folders are skipped, symbolic links to folders are not followed, and a file counts only
    if it is a regular file that lies below `root` after all links are resolved.
    """
    found: list[PlanEntry] = []
    seen = 0
    is_complete = True
    for current, folders, files in os.walk(root, followlinks=False):
        depth = len(Path(current).relative_to(root).parts)
        kept = sorted(name for name in folders if not name.startswith("."))
        if depth >= MAX_DEPTH and kept:
            kept, is_complete = [], False
        folders[:] = kept
        seen += len(folders) + len(files)
        for name in sorted(files):
            is_ours = name.endswith((SUFFIX, REPORT_SUFFIX))
            entry = _entry(root, Path(current) / name) if is_ours else None
            if entry is not None:
                found.append(entry)
        if seen > MAX_ENTRIES or len(found) > MAX_FILES:
            is_complete = False
            break
    found.sort(key=lambda entry: entry.relative)
    kept_files = found[:MAX_FILES]
    return Scan(
        tuple(entry for entry in kept_files if entry.relative.endswith(SUFFIX)),
        tuple(entry for entry in kept_files if entry.relative.endswith(REPORT_SUFFIX)),
        is_complete,
    )


def find(root: Path, key: str) -> PlanEntry | None:
    """Give the plan file with this key, or ``None``; the text of `key` is never used as a path."""
    return next((entry for entry in scan(root).entries if entry.key == key), None)


def find_report(root: Path, key: str) -> PlanEntry | None:
    """Give the report with this key, or ``None``; the text of `key` is never used as a path."""
    return next((entry for entry in scan(root).reports if entry.key == key), None)


def look_again(root: Path, entry: PlanEntry) -> PlanEntry | None:
    """Give a file of an earlier scan as it is now, ``None`` if it is gone or no longer inside."""
    return _entry(root, root / entry.relative)


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
