"""Compare texts with those of a file that a person has read.

A snapshot says that nothing has changed, not that it was right: oracles and properties say that.
`pytest FILE --update-snapshots` writes the texts anew; read the difference before you commit it.
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

SECTION = "##### "
"""Begins the line with the name of a check in a file."""
MARK = "=== "
"""Begins the line with the title of a text in a section."""
MOST_LINES = 60
"""Lines of a difference that a failure shows."""


class Snapshots:
    """The snapshots of one test file, in one file: a section for each check."""

    def __init__(self, path: Path, *, is_update: bool) -> None:
        self._path, self._is_update = path, is_update

    def check(self, name: str, texts: Mapping[str, str]) -> None:
        """Compare texts by title with those of a section, and fail with what differs."""
        found = "".join(f"{MARK}{title}\n{text.rstrip()}\n\n" for title, text in texts.items())
        if self._is_update:
            kept = {**self._sections(), name: found}
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(
                "".join(f"{SECTION}{name}\n{kept[name]}" for name in sorted(kept)), encoding="utf-8"
            )
        expected = self._sections().get(name, "")
        if found != expected:
            where = f"{self._path.name}, section {name}"
            raise AssertionError(f"{where}: texts differ\n{_difference(expected, found)}")

    def _sections(self) -> dict[str, str]:
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        _, *parts = re.split(rf"^{SECTION}(.*)\n", text, flags=re.M)
        return dict(zip(parts[::2], parts[1::2], strict=True))


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
