"""A release rewrites README, which stands alone on an index."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_of_a_release_has_no_relative_links():
    spec = importlib.util.spec_from_file_location("naming", ROOT / ".ci" / "name_repository.py")
    naming = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naming)
    where = "https://example.org/o/n"
    text = naming.absolute((ROOT / "README.md").read_text(), where, "v1")
    links = re.findall(r"""\]\(([^)\s]+)|(?:src|srcset|href)="([^"]+)""", text)
    assert len(links) > 10
    assert [a or b for a, b in links if not (a or b).startswith("https://")] == []
    files = re.findall(rf"{where}/(raw|blob)/v1/([^)#\"\s]+)", text)
    assert {kind for kind, path in files if path.endswith(".png")} == {"raw"}
    assert all((ROOT / path).exists() for _, path in files)
