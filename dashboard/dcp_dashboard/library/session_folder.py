"""A private folder for temporary files that no killed process leaves behind for long.

The folder is locked while its process lives; the kernel drops the lock however that ends. Whoever
makes the next folder removes those of the same user that nobody holds.
"""

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

PREFIX = "dcpm-plans-"


class SessionFolder:
    """A folder that only this user can enter, removed with this object or after its process.

    Attributes:
        path: where it is; somebody may have removed it.

    Raises:
        OSError: if it cannot be made.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path, lock = _made()
        self.close = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        weakref.finalize(self, os.close, lock)

    @property
    def is_there(self) -> bool:
        """Return whether it has neither been closed nor removed by somebody."""
        return self.path.is_dir()


def _made() -> tuple[Path, int]:
    """Make a folder and lock it; another one if somebody's sweep takes it before that."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            lock = _locked(path)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError:
            path.rmdir()
            raise
        if path.is_dir():  # else it was opened, removed, and locked as nobody's
            return path, lock
        os.close(lock)


def _locked(folder: Path) -> int:
    """Open and lock a folder; the lock lasts until the file is closed.

    Raises:
        OSError: if another process holds it, or it is gone.
    """
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
