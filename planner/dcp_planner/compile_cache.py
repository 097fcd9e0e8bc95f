"""Keep compiled code in a private folder if neither the package's folder nor HOME can be written.

Whoever can write to that folder can make this process run their code. So it belongs to this user
alone, and a folder that others could change is not used.
"""

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core import caching

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_folder() -> Path:
    """Return the folder of this user below the one for temporary files; make it if it is missing.

    Raises:
        OSError: if it cannot be made, or others could write there.
    """
    folder = Path(tempfile.gettempdir(), f"dcp-compiled-{os.geteuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_private(folder)
    return folder


def check_private(folder: Path) -> None:
    """Check that only this user and root can write to a folder or replace it.

    Raises:
        PermissionError: if somebody can, or it is no folder.
    """
    own, parent = folder.lstat(), folder.parent.stat()
    if not stat.S_ISDIR(own.st_mode):
        raise PermissionError(f"{folder}: expected a folder")
    if own.st_uid != os.geteuid() or own.st_mode & _OTHERS:
        raise PermissionError(f"{folder}: expected a folder of this user that others cannot enter")
    is_shared = parent.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if is_shared and not parent.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{folder.parent}: others can replace what lies here (no sticky bit)")


def check_unshared(folder: Path) -> None:
    """Check that nobody can write code into a folder but its owner and this process's group.

    Raises:
        PermissionError: if others can, or can replace the folder.
    """
    for place, may_stick in ((folder, False), (folder.parent, True)):
        found = place.stat()
        is_open = found.st_mode & stat.S_IWOTH or (
            found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid()
        )
        if is_open and not (may_stick and found.st_mode & stat.S_ISVTX):
            raise PermissionError(f"{place}: others can write compiled code here")


def unshared(locator: Any) -> Any:
    """Have one of numba's locators pass over folders that others can write to."""

    def ensure_cache_path(self: Any) -> None:
        locator.ensure_cache_path(self)
        check_unshared(Path(self.get_cache_path()))

    return type(locator.__name__, (locator,), {"ensure_cache_path": ensure_cache_path})


# Any: numba's caches have no types.
class PrivateFolderLocator(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):
    """Keeps the compiled functions of a file in the private folder."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        self._path: str | None = None

    def ensure_cache_path(self) -> None:
        """Make the folder for the file, inside the private one.

        Raises:
            OSError: if there is no private folder.
        """
        name = self.get_suitable_cache_subpath(self._py_file)  # type: ignore[no-untyped-call]
        self._path = os.path.join(private_folder(), name)
        super().ensure_cache_path()  # type: ignore[no-untyped-call]

    def get_cache_path(self) -> str:
        """Return the folder for the file."""
        assert self._path is not None, "numba asks for the folder before it uses it"
        return self._path
