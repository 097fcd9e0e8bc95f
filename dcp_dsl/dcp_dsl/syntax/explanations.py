"""What every code means: the sections of ``docs/diagnostics.md``, which the package carries."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dcp_dsl.errors import DCPError
from dcp_dsl.syntax.diagnostics import did_you_mean

_TITLE = re.compile(r"^## ([EWCX]\d{3}) (.+)$", re.MULTILINE)


class UnknownCodeError(DCPError):
    """A code that no message carries."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The documentation of one code.

    Attributes:
        code: for example ``E104``.
        title: one line.
        body: Markdown: why, a bad example, a good one.
    """

    code: str
    title: str
    body: str


def explain_code(code: str) -> Explanation:
    """Give the documentation of a code, in any case of letters.

    Raises:
        UnknownCodeError: if there is no such code.

    >>> explain_code("e004").title
    '`=` where `==` is meant'
    """
    known = explanations()
    wanted = code.strip().upper()
    if wanted not in known:
        hint = did_you_mean(wanted, list(known))
        raise UnknownCodeError(
            f"no code `{code}`{'; ' + hint if hint else ''} (codes: {', '.join(known)})"
        )
    return known[wanted]


@cache
def explanations() -> dict[str, Explanation]:
    """Give the documentation of all codes by code, in their order."""
    text = _page().read_text(encoding="utf-8")
    titles = list(_TITLE.finditer(text))
    ends = [match.start() for match in titles[1:]] + [len(text)]
    return {
        match[1]: Explanation(match[1], match[2], text[match.end() : end].strip())
        for match, end in zip(titles, ends, strict=True)
    }


def _page() -> Path:
    """Give the page: in the installed package, or in the checkout's documentation."""
    packaged = Path(__file__).with_name("diagnostics.md")
    return packaged if packaged.exists() else Path(__file__).parents[3] / "docs" / "diagnostics.md"
