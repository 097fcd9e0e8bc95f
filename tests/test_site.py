"""The site holds every document, and its pages fetch nothing from elsewhere."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import build_site
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "site"
MADE = {"cli", "dcp_dsl", "dcp_planner", "dcp_runtime", "dcp_dashboard"}
FETCHED = re.compile(r"<(?:script|img|iframe|source)[^>]+?src=[\"']?(https?:[^\"'\s>]+)")
STYLED = re.compile(
    r"<link[^>]+rel=[\"']?(?:stylesheet|preconnect)[^>]*?href=[\"']?(https?:[^\"'\s>]+)"
)


class Config(yaml.SafeLoader):
    """Reads mkdocs.yml, but for the one Python object in it."""


Config.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def entries(nav):
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [name for part in parts for name in entries(part)]


def test_every_document_is_in_the_navigation_once():
    config = yaml.load((SITE / "mkdocs.yml").read_text(), Config)
    shown = [name for name in entries(config["nav"]) if name.endswith(".md")]
    made = [*(f"reference/{name}" for name in MADE), "gallery", "benchmarks"]
    wanted = [*build_site.pages(), *(f"docs/{name}.md" for name in made)]
    assert sorted(shown) == sorted(wanted)


def test_gallery_shows_the_library_and_opens_the_playground():
    cards = re.findall(r"<li>.*?</li>", build_site.gallery())
    names = [path.stem for path in (ROOT / "grammar" / "dcp_grammar" / "masks").glob("*.dcpm")]
    assert len(cards) == len(names)
    assert all((ROOT / "docs" / re.search(r'src="([^"]+)"', card)[1]).is_file() for card in cards)
    assert all("../playground/index.html#text=" in html.unescape(card) for card in cards)


def test_reference_names_what_a_package_exports():
    page = build_site.reference("dcp_runtime", "runtime")
    assert "::: dcp_runtime.data.dataloader.DCPDataloader" in page or ".DCPDataloader\n" in page
    assert page.count("\n::: ") >= 10


@pytest.mark.slow
def test_site_builds_without_warnings_and_fetches_nothing():
    pytest.importorskip("mkdocs")
    command = [sys.executable, str(SITE / "build_site.py"), "--no-playground"]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    pages = sorted(build_site.SITE.rglob("*.html"))
    assert len(pages) > len(build_site.pages())
    for page in pages:
        text = page.read_text("utf-8")
        assert FETCHED.findall(text) + STYLED.findall(text) == [], page.name
        assert "Sentinel" not in text, page.name
    index = json.loads((build_site.SITE / "search" / "search_index.json").read_text("utf-8"))
    assert any("decode context parallel" in entry["text"] for entry in index["docs"])
