"""The page for newcomers from other libraries is true, and its code runs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_statement_of_the_page_for_newcomers_runs():
    text = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert sum(block.count("assert") for block in blocks) >= 9
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/coming-from.md", "exec"), names)
