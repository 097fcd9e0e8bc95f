"""Write where the repository lives into a release: addresses of the project, links of README.

```
python .ci/name_repository.py https://github.com/OWNER/NAME v0.1.0
```

The release workflow runs it on its own checkout, since only there the address is known. An index
shows README outside the repository, where relative links and pictures lead nowhere.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"""(\]\(|src="|srcset=")(?!https?:|#|mailto:)([^)"\s]+)""")
PICTURES = (".png", ".svg", ".jpg", ".gif")


def absolute(text: str, repository: str, version: str) -> str:
    """Return a Markdown text whose links lead to a version of a repository.

    >>> absolute("[a](a.md#b) ![c](c.png) [d](#d)", "https://x.org/o/n", "v1")
    '[a](https://x.org/o/n/blob/v1/a.md#b) ![c](https://x.org/o/n/raw/v1/c.png) [d](#d)'
    """

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[2].endswith(PICTURES) else "blob"
        return f"{found[1]}{repository}/{kind}/{version}/{found[2]}"

    return LINK.sub(link, text)


def main() -> None:
    """Rewrite README.md and pyproject.toml of this checkout."""
    repository, version = sys.argv[1:]
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(), repository, version))
    pages = {"Source": "", "Issues": "/issues", "Changelog": f"/blob/{version}/CHANGELOG.md"}
    urls = "".join(f'{name} = "{repository}{path}"\n' for name, path in pages.items())
    text = project.read_text()
    assert "[project.urls]" not in text, "pyproject.toml has addresses already"
    project.write_text(
        text.replace("[project.scripts]", f"[project.urls]\n{urls}\n[project.scripts]")
    )


if __name__ == "__main__":
    main()
