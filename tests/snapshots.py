"""Compare texts with those of a file that a person has read.

A snapshot says that nothing has changed, not that it was right: oracles and properties say that.
`pytest --update-snapshots` writes the files anew; read the difference before you commit it.
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

MARK = "=== "
"""Begins the line with the title of a text in a file."""
MOST_LINES = 60
"""Lines of a difference that a failure shows."""


class Snapshots:
    """The snapshots of one test file: `snapshots/NAME.txt` beside it."""

    def __init__(self, folder: Path, *, is_update: bool) -> None:
        self._folder, self._is_update = folder, is_update

    def check(self, name: str, texts: Mapping[str, str]) -> None:
        """Compare texts by title with those of a file, and fail with what differs."""
        path = self._folder / f"{name}.txt"
        found = "".join(f"{MARK}{title}\n{text.rstrip()}\n\n" for title, text in texts.items())
        if self._is_update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(found, encoding="utf-8")
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if found != expected:
            raise AssertionError(f"{path.name}: texts differ\n{_difference(expected, found)}")


def _difference(expected: str, found: str) -> str:
    before, after = (re.split(rf"^(?={MARK})", text, flags=re.M) for text in (expected, found))
    lines: list[str] = []
    kept = {text: None for text in before if text not in after}
    for old, new in zip([*kept], [text for text in after if text not in before], strict=False):
        lines += difflib.unified_diff(
            old.splitlines(), new.splitlines(), "kept", "found", lineterm=""
        )
    lines = lines or [f"{len(before) - 1} texts kept, {len(after) - 1} found"]
    more = [f"... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return "\n".join([*lines[:MOST_LINES], *more])
