"""Mend what the plugins of the generator do not know.

griffe takes examples of docstrings for code only below a heading `Examples`, and mkdocs-click
prints the mark by which click says that an option has no default.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    r"""Return a docstring with a fence around each run of lines that begins with a prompt.

    >>> print(fenced("Adds.\n\n>>> 1 + 1\n2\n\nMore."))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    More.
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


class Doctests(griffe.Extension):
    """Fences the examples of every object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object; Any: what else griffe gives."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def on_page_content(html: str, **_: Any) -> str:
    """Leave out defaults that are none; Any: what else mkdocs gives."""
    return html.replace("<code>Sentinel.UNSET</code>", "")
