"""Source files: .dcpm texts, read within limits, formatted and replaced whole.

Formatting changes spaces, indents and blank lines; words, comments and line breaks inside a
statement stay. Formatting twice changes nothing more, and never what a text means.
"""

import stat
from dataclasses import dataclass
from pathlib import Path

from dcp_dsl.errors import DCPError
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.diagnostics import SpecError
from dcp_dsl.syntax.parser import parse
from dcp_dsl.syntax.tokens import RawToken, scan, split_statements

MAX_BYTES = 2**19
_DESCRIPTORS = (("/", "dev"), ("/", "proc"))  # where shells put the pipes of `<(command)`


class SpecFileError(SpecError):
    """A .dcpm file that cannot be read or written; the exit status is 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        self.diagnostics = ()
        DCPError.__init__(self, message)


def read_text(path: str | Path) -> str:
    """Read a .dcpm file."""
    return decode_text(str(path), read_bytes(path))


def read_bytes(path: str | Path) -> bytes:
    """Read the bytes of a .dcpm file, one more than allowed at most."""
    path = Path(path)
    try:
        # opening a pipe would wait until somebody writes into it
        if stat.S_ISFIFO(path.stat().st_mode) and path.parts[:2] not in _DESCRIPTORS:
            raise SpecFileError(f"{path}: expected a .dcpm file, got a pipe; pass it as `-`")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)  # `decode_text` refuses the one too many
    except FileNotFoundError:
        raise SpecFileError(f"{path}: no such file; expected a .dcpm file") from None
    except IsADirectoryError:
        hint = f"name the files in it, for example {path}/*.dcpm"
        raise SpecFileError(f"{path}: expected a .dcpm file, got a folder; {hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecFileError(f"{path}: cannot be read: {reason}") from None


def decode_text(name: str, data: bytes) -> str:
    """Turn the bytes of a .dcpm file into text."""
    if len(data) > MAX_BYTES:
        raise SpecFileError(f"{name}: more than {MAX_BYTES:_} bytes; is this a .dcpm file?")
    try:
        # some editors begin a file with a mark of byte order, which is no part of the text
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
    """Turn text into the bytes of a .dcpm file with the line ends of `like`, by its first line."""
    first, end, _ = like.partition(b"\n")
    has_crlf = end and first.endswith(b"\r")
    return text.replace("\n", "\r\n" if has_crlf else "\n").encode()


INDENT = "  "

_TIGHT_AFTER = {"(", "[", ".", "@", ".."}
_TIGHT_BEFORE = {")", "]", ".", ",", ":", ".."}
_OPERATORS = {
    "<=", ">=", "==", "!=", "<", ">", "=", "+", "-", "*", "//", "%", "(", "[", "{", ",", ":",
}  # fmt: skip
_WORD_OPERATORS = {
    "and", "or", "not", "minus", "in", "where", "use", "every", "within", "implies", "equals",
    "check", "of", "per", "sees", "see", "on", "branch", "join",
}  # fmt: skip


def format_source(text: str) -> str:
    """Return the formatted text.

    Comments and the author's line breaks stay; statements begin at the margin, continued lines are
    indented, one space stands around operators, at most one blank line between statements.

    Returns:
        The formatted text, ending in one newline; empty for an empty text.

    Raises:
        SpecError: if the text does not parse.

    >>> print(format_source("mask a=causal  and(q-k<4)#near"), end="")
    mask a = causal and (q - k < 4)  # near
    """
    parse(text)
    lines = _Lines(text, {group[0].span for group in split_statements(text)})
    for token in scan(text):
        lines.add(token)
    return lines.text + "\n" if lines.text else ""


@dataclass(slots=True)
class _Lines:
    """The formatted text, token by token.

    `starts` holds the first token of every statement, `depth` counts the brackets that are open,
    `in_layout` says that a `segment` statement is.
    """

    source: str
    starts: set[Span]
    text: str = ""
    previous: RawToken | None = None
    before: RawToken | None = None  # the one in front of `previous`
    depth: int = 0
    in_layout: bool = False

    def add(self, token: RawToken) -> None:
        """Append one token, with the space or the line break in front of it."""
        if token.text in (")", "]", "}"):
            self.depth -= 1
        is_start = token.span in self.starts
        if (previous := self.previous) is not None:
            breaks = self.source.count("\n", previous.span.end, token.span.start)
            if is_start or breaks:
                self._break(token, breaks, is_start=is_start)
            elif token.kind == "comment":
                self.text += "  "
            elif self._needs_space(previous, token):
                self.text += " "
        self.text += self._shown(token)
        if token.text in ("(", "[", "{"):
            self.depth += 1
        if is_start or token.text == "where":
            self.in_layout = token.text == "segment"
        self.before, self.previous = self.previous, token

    def _break(self, token: RawToken, breaks: int, *, is_start: bool) -> None:
        if breaks > 1 and (is_start or token.kind == "comment"):
            self.text += "\n"
        # A comment on its own line may speak of the statement behind it, unless brackets are open.
        at_margin = is_start or (token.kind == "comment" and self.depth == 0)
        # A closing bracket is not part of what it closes; other lines go in at least once.
        closes = token.text in (")", "]", "}")
        depth = self.depth if closes else max(1, self.depth)
        self.text += "\n" + ("" if at_margin else INDENT * depth)

    def _shown(self, token: RawToken) -> str:
        if token.kind != "comment":
            return token.text
        body = token.text[1:].rstrip()  # `#!` is the first line of a script, without a space
        return "#" + (body if not body or body[0] in " !" else " " + body)

    def _needs_space(self, previous: RawToken, token: RawToken) -> bool:
        last, text = previous.text, token.text
        if last in _TIGHT_AFTER or text in _TIGHT_BEFORE:
            return False
        if last in ("-", "+") and self._is_sign():
            return False
        # Behind a part of a layout `*` repeats; elsewhere it multiplies.
        if text == "*" and self.in_layout and last in (")", "]"):
            return False
        if text in ("(", "["):  # tight behind a name, in a call or a part of a layout
            return previous.kind not in ("name", "string") or last in _WORD_OPERATORS
        return True

    def _is_sign(self) -> bool:
        """Return whether the `-` just written is the sign of a number, not a subtraction."""
        if self.before is None or self.before.kind == "comment":
            return True
        return self.before.text in _OPERATORS or self.before.text in _WORD_OPERATORS
