"""Every picture that a document shows exists; those of the dashboard are PNGs of sane size."""

import re
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
SHOWN = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<(?:img|source)[^>]*\ssrc(?:set)?=\"([^\"]+)\"")
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "*/*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
    if not path.relative_to(ROOT).parts[0].startswith(".")
)


def shown(document: str) -> list[Path]:
    text = (ROOT / document).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    names = [first or second for first, second in SHOWN.findall(text)]
    return [(ROOT / document).parent / name for name in names if "://" not in name]


def test_the_first_readme_and_that_of_the_dashboard_show_the_dashboard():
    for document in ("README.md", "dashboard/README.md"):
        assert any(path.resolve().parent == PICTURES for path in shown(document)), document


@pytest.mark.parametrize("document", sorted(set(DOCUMENTS)))
def test_pictures_that_a_document_shows_exist(document: str):
    assert [str(path) for path in shown(document) if not path.is_file()] == []


def test_pictures_of_the_dashboard_are_shown_somewhere_and_of_sane_size():
    used = {path.resolve() for document in DOCUMENTS for path in shown(document)}
    taken = sorted(PICTURES.glob("*"))
    assert taken
    assert [path.name for path in taken if path not in used] == []
    for path in taken:
        with Image.open(path) as image:
            image.verify()
            assert image.format == "PNG", path.name
            assert image.width == 2160, path.name
            assert 600 <= image.height <= 3000, path.name
        assert path.stat().st_size < 600_000, path.name
    assert sum(path.stat().st_size for path in taken) <= 3_000_000
