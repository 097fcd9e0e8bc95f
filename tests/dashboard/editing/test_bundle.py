"""The committed scripts: whose work is in them, and what they never do."""

import json
import re
from pathlib import Path

import pytest

import dcp_dashboard
from dcp_grammar import WORDS, patterns

ROOT = Path(__file__).parents[3]
WEB = ROOT / "dashboard" / "web"
ASSETS = Path(dcp_dashboard.__file__).parent / "assets"


def test_every_package_is_locked_and_its_licence_comes_along():
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))
    wanted = json.loads((WEB / "package.json").read_text(encoding="utf-8"))["dependencies"]
    licences = (ASSETS / "codemirror.licences.txt").read_text(encoding="utf-8")
    for name, version in wanted.items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
        assert f"{name} {version} (MIT)" in licences
    assert all("integrity" in p for name, p in lock["packages"].items() if name)


@pytest.mark.parametrize(
    ("name", "further"),
    [("codemirror.bundle.js", ["fetch("]), ("dashboard.bundle.js", ["https://", "innerHTML"])],
)
def test_no_script_evaluates_text_or_asks_anybody_else(name, further):
    bundle = (ASSETS / name).read_text(encoding="utf-8")
    for forbidden in (
        "eval(", "new Function", "XMLHttpRequest", "WebSocket", "localStorage", *further
    ):  # fmt: skip
        assert forbidden not in bundle


def test_every_kind_of_token_has_a_colour_in_the_editor():
    source = (WEB / "editor" / "language.ts").read_text(encoding="utf-8")
    table = source[source.index("const TAGS") : source.index("};")]
    coloured = {name.replace("_", ".") for name in re.findall(r"^  (\w+): tags", table, re.M)}
    kinds = {kind for pattern in patterns() for kind in pattern.pygments}
    assert kinds - {"Text.Whitespace"} == coloured
    assert {word.role for word in WORDS} <= {
        "statement", "clause", "operator", "constant", "variable", "function", "type", "source",
        "decorator",
    }  # fmt: skip
