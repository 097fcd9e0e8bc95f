"""Read and replace .dcpm files, with messages that fit a person."""

import stat
from pathlib import Path

from dcp_dsl.files import replacing
from dcp_dsl.syntax.diagnostics import SpecError

MAX_BYTES = 2**19
_DESCRIPTORS = (("/", "dev"), ("/", "proc"))  # where shells put the pipes of `<(command)`


class SpecFileError(SpecError):
    """A .dcpm file that cannot be read or written; the exit status is 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(())
        self.args = (message,)


def read_text(path: str | Path) -> str:
    """Read a .dcpm file.

    Raises:
        SpecFileError: if it is missing, a folder, too large, or no UTF-8 text.
    """
    return decode_text(str(path), read_bytes(path))


def read_bytes(path: str | Path) -> bytes:
    """Read the bytes of a .dcpm file, one more than allowed at most.

    Raises:
        SpecFileError: if it is missing, a folder or a pipe.
    """
    path = Path(path)
    try:
        if stat.S_ISFIFO(path.stat().st_mode) and path.parts[:2] not in _DESCRIPTORS:
            raise SpecFileError(f"{path}: expected a .dcpm file, got a pipe; pass it as `-`")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpecFileError(f"{path}: no such file; expected a .dcpm file") from None
    except IsADirectoryError:
        hint = f"name the files in it, for example {path}/*.dcpm"
        raise SpecFileError(f"{path}: expected a .dcpm file, got a folder; {hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecFileError(f"{path}: cannot be read: {reason}") from None


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
            f"{name}: expected UTF-8 text, got a byte {data[error.start]:#04x} at {error.start}; "
            "if this is a .dcpm file, save it as UTF-8"
        ) from None
    if "\0" in text:
        raise SpecFileError(f"{name}: expected text, got a binary file (it holds NUL bytes)")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def encode_text(text: str, like: bytes) -> bytes:
    r"""Turn text into the bytes of a .dcpm file with the line ends of `like`, by its first line.

    >>> encode_text("a\nb\n", like=b"x\r\ny")
    b'a\r\nb\r\n'
    """
    first, end, _ = like.partition(b"\n")
    has_crlf = end and first.endswith(b"\r")
    return text.replace("\n", "\r\n" if has_crlf else "\n").encode()


def replace_bytes(path: str | Path, data: bytes) -> None:
    """Replace the contents of a file at once: written beside it, then renamed over it.

    Raises:
        SpecFileError: if it cannot be written; the file is then as it was.
    """
    with replacing(path, SpecFileError) as draft:
        draft.write_bytes(data)
