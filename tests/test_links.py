"""Links between the documents lead to files and headings that exist."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = {
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "*/*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
    if not path.relative_to(ROOT).parts[0].startswith(".")
}
PACKAGES = (
    "dcp_dsl/dcp_dsl",
    "planner/dcp_planner",
    "runtime/dcp_runtime",
    "dashboard/dcp_dashboard",
)
BASES = [ROOT, *(ROOT / package for package in PACKAGES)]
"""Paths on the page of frequent changes begin at the repository or in a package."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@cache
def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page as GitHub makes them of its headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def leads_somewhere(link: str, page: Path) -> bool:
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return ":" in name or (target.exists() and (not anchor or anchor in anchors(target)))


def test_links_of_every_document_lead_somewhere():
    pages = [ROOT / document for document in DOCUMENTS]
    links = [(page, link) for page in pages for link in LINK.findall(prose(page))]
    assert len(links) > 100
    assert [(page, link) for page, link in links if not leads_somewhere(link, page)] == []


def test_every_page_is_reached_from_the_first_readme():
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        page = page / "README.md" if page.is_dir() else page
        if page.suffix == ".md" and page.exists() and page not in reached:
            reached.add(page)
            todo += [page.parent / link.partition("#")[0] for link in LINK.findall(prose(page))]
    pages = {(ROOT / name).resolve() for name in DOCUMENTS if name.startswith("docs/")}
    assert sorted(pages - reached) == []


def test_files_and_names_of_frequent_changes_exist():
    page = (ROOT / "docs" / "where-to-change.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        spans = re.findall(r"`([^`]+)`", section)
        named = [span for span in spans if re.fullmatch(r"[\w.]+(/[\w.-]+)*/?", span)]
        named = [span for span in named if "/" in span or span.endswith((".py", ".pyi"))]
        found = {span: [base / span for base in BASES if (base / span).exists()] for span in named}
        assert [span for span, paths in found.items() if not paths] == []
        paths = [path for each in found.values() for path in each]
        files = [
            file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])
        ]
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        names = [span for span in spans if re.fullmatch(r"\w+", span)]
        assert [name for name in names if name not in text] == [], section
