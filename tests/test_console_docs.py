"""Documents that show commands: each prints what stands there, and Python examples run."""

import doctest
import re
from pathlib import Path

import generate_console as console
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", console.DOCUMENTS)
def test_commands_print_what_the_document_shows(name, request):
    if name == "docs/audit.md":
        request.getfixturevalue("forked_audits")
    text = (ROOT / name).read_text(encoding="utf-8")
    assert console.filled(text) == text, "run python docs/generate_console.py"


@pytest.mark.parametrize(
    "name", [name for name in console.DOCUMENTS if ">>>" in (ROOT / name).read_text("utf-8")]
)
def test_python_of_the_document_runs(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    results = doctest.testfile(str(ROOT / name), module_relative=False, optionflags=flags)
    assert results.failed == 0
    assert results.attempted > 0


def test_every_statement_of_the_page_for_newcomers_runs():
    text = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert sum(block.count("assert") for block in blocks) >= 9
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/coming-from.md", "exec"), names)


def test_every_command_of_the_language_is_described():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    entries = (ROOT / "pyproject.toml").read_text().split('"dcpm.commands"]')[1].split("[")[0]
    names = re.findall(r'^([\w-]+) = "dcp_dsl\.', entries, re.MULTILINE)
    assert [name for name in names if f"`dcpm {name}`" not in text] == []
