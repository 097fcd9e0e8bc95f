"""Read and replace .dcpm files, with messages that fit a person."""

import os
import tempfile
from pathlib import Path

from dcp_dsl.errors import SpecError

MAX_BYTES = 2**19


class SpecFileError(SpecError):
    """A .dcpm file that cannot be read or written at all; wrong input, so exit status 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(())
        self.args = (message,)


def read_text(path: str | Path) -> str:
    """Read a .dcpm file.

    Raises:
        SpecFileError: if it is missing, a folder, too large, or no UTF-8 text.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpecFileError(f"{path}: no such file; expected a .dcpm file") from None
    except IsADirectoryError:
        hint = f"name the files in it, for example {path}/*.dcpm"
        raise SpecFileError(f"{path}: expected a .dcpm file, got a folder; {hint}") from None
    except (OSError, ValueError) as error:
        raise SpecFileError(f"{path}: cannot be read: {_reason(error)}") from None
    return decode_text(str(path), data)


def decode_text(name: str, data: bytes) -> str:
    """Turn the bytes of a .dcpm file into text.

    Raises:
        SpecFileError: if there are too many of them or they are no UTF-8 text.
    """
    if len(data) > MAX_BYTES:
        raise SpecFileError(f"{name}: more than {MAX_BYTES:_} bytes; is this a .dcpm file?")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecFileError(
            f"{name}: expected UTF-8 text, got a byte {data[error.start]:#04x} at "
            f"{error.start}; is "
            f"this a .dcpm file?"
        ) from None
    if "\0" in text:
        raise SpecFileError(f"{name}: expected text, got a binary file (it holds NUL bytes)")
    return text.replace("\r\n", "\n")


def replace_text(path: str | Path, text: str) -> None:
    """Replace the contents of a file at once: written beside it, then renamed over it.

    Raises:
        SpecFileError: if it cannot be written; the file is then as it was.
    """
    target = Path(path).resolve()  # a link keeps pointing at the file
    temporary = ""
    try:
        mode = target.stat().st_mode & 0o777
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise SpecFileError(f"{path}: cannot be written: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
