"""Write files whole or not at all, with helpful messages where that fails."""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from dcp_dsl.errors import DCPError

_Refusal: TypeAlias = Callable[[str], DCPError]
_WAYS_OUT = {
    errno.ENOTDIR: "choose a folder that exists",
    errno.EISDIR: "give the name of a file in it",
    errno.EEXIST: "choose another name",
    errno.ENOSPC: "make room, or choose a folder on another disk",
    errno.EDQUOT: "make room, or choose a folder on another disk",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextmanager
def replacing(path: str | Path, error: _Refusal) -> Iterator[Path]:
    """Yield a draft beside a file, which takes the file's place when the block ends.

    The file appears under its name only when it is whole; a failure leaves nothing behind and an
    older file as it was. A link keeps pointing at its file, and a file keeps its permissions. A
    pipe or a device is refused: the file would take its place.
    """
    target = Path(os.path.realpath(path))
    draft = _draft(target)
    with _refusing(path, error):
        _refuse_others(target)
        try:
            yield draft
            if target.exists():
                draft.chmod(stat.S_IMODE(target.stat().st_mode))
            draft.replace(target)
        finally:
            with suppress(OSError):
                draft.unlink()


def check_writable(path: str | Path, error: _Refusal) -> None:
    """Raise if `replacing` could not write a file, before the work that fills it."""
    target = Path(os.path.realpath(path))
    with _refusing(path, error):
        _refuse_others(target)
        draft = _draft(target)  # a try: reported permissions are wrong for root and on NFS
        draft.touch()
        draft.unlink()


def make_folder(path: str | Path, error: _Refusal) -> None:
    """Make a folder to write files into, with those above it, unless it is there."""
    with _refusing(path, error):
        Path(path).mkdir(parents=True, exist_ok=True)
    check_writable(Path(path) / "file", error)


@contextmanager
def _refusing(path: str | Path, error: _Refusal) -> Iterator[None]:
    try:
        yield
    except OSError as refused:
        shown = os.fspath(path) or repr("")
        reason = refused.strerror or refused
        way_out = _way_out(refused.errno, os.path.dirname(os.path.abspath(path)))
        raise error(f"{shown}: cannot be written: {reason}; {way_out}") from refused


def _way_out(number: int | None, folder: str) -> str:
    if number == errno.ENOENT and not os.path.isdir(folder):
        return f"make the folder {folder} first, or choose another"
    return _WAYS_OUT.get(number or 0, "choose a folder that you may write to")


def _refuse_others(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if target.exists() and not target.is_file():
        raise FileExistsError(errno.EEXIST, "it is there already and no regular file")


def _draft(target: Path) -> Path:
    # In the same folder, since a rename is atomic within one file system only. Names may have 255
    # bytes, and 40 characters at most 160.
    return target.parent / f".{target.name[:40]}.{secrets.token_hex(4)}.tmp"
