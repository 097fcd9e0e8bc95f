"""Every picture that a document shows exists; those of the dashboard are PNGs of sane size."""

import re
from pathlib import Path

from PIL import Image
from test_links import DOCUMENTS, prose

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
SHOWN = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<(?:img|source)[^>]*\ssrc(?:set)?=\"([^\"]+)\"")


def shown(document: str) -> list[Path]:
    names = [first or second for first, second in SHOWN.findall(prose(ROOT / document))]
    return [(ROOT / document).parent / name for name in names if "://" not in name]


def test_shown_pictures_exist_and_those_of_the_dashboard_are_shown_and_of_sane_size():
    for document in ("README.md", "dashboard/README.md"):
        assert any(path.resolve().parent == PICTURES for path in shown(document)), document
    used = {path.resolve() for document in DOCUMENTS for path in shown(document)}
    assert [str(path) for path in used if not path.is_file()] == []
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
