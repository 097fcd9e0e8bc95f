"""The committed editor script belongs to its committed sources, and says whose work is in it."""

import hashlib
import json
import re
from pathlib import Path

import pytest

import dcp_dashboard
from dcp_grammar import WORDS, patterns

ROOT = Path(__file__).parents[3]
EDITOR = ROOT / "dashboard" / "editor"
ASSETS = Path(dcp_dashboard.__file__).parent / "assets"


@pytest.fixture(scope="module")
def bundle():
    return (ASSETS / "codemirror.bundle.js").read_text(encoding="utf-8")


def test_the_bundle_was_made_from_the_sources_that_lie_beside_it(bundle):
    names = ["build.mjs", "package-lock.json", "package.json"]
    names += [f"src/{path.name}" for path in (EDITOR / "src").iterdir()]
    found = hashlib.sha256()
    for name in sorted(names):
        found.update(f"{name}\n".encode() + (EDITOR / name).read_bytes())
    recorded = re.search(r"sources sha256:([0-9a-f]{64})", bundle[:200])
    assert recorded, "the first line records the sources"
    assert recorded[1] == found.hexdigest(), "run `make editor`"


def test_every_package_is_locked_and_its_licence_comes_along():
    lock = json.loads((EDITOR / "package-lock.json").read_text(encoding="utf-8"))
    wanted = json.loads((EDITOR / "package.json").read_text(encoding="utf-8"))["dependencies"]
    licences = (ASSETS / "codemirror.licences.txt").read_text(encoding="utf-8")
    for name, version in wanted.items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
        assert f"{name} {version} (MIT)" in licences
    assert all("integrity" in p for name, p in lock["packages"].items() if name)


def test_the_bundle_neither_evaluates_text_nor_asks_anybody(bundle):
    for forbidden in (
        "eval(",
        "new Function",
        "XMLHttpRequest",
        "fetch(",
        "WebSocket",
        "localStorage",
    ):
        assert forbidden not in bundle


def test_every_kind_of_token_has_a_colour_in_the_editor():
    source = (EDITOR / "src" / "language.js").read_text(encoding="utf-8")
    table = source[source.index("const TAGS") : source.index("};")]
    coloured = {name.replace("_", ".") for name in re.findall(r"^  (\w+): tags", table, re.M)}
    kinds = {kind for pattern in patterns() for kind in pattern.pygments}
    assert kinds - {"Text.Whitespace"} == coloured
    assert {word.role for word in WORDS} <= {
        "statement", "clause", "operator", "constant", "variable", "function", "type", "source",
        "decorator",
    }  # fmt: skip
