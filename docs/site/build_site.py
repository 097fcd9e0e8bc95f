"""Build the site into build/site: the documents as they lie here, with pages made from the code.

```
make docs              # or python docs/site/build_site.py [--no-playground]
```

The documents keep their places, so that links between them hold here and there. Files that they
link to come along; references, the gallery and the charts are written at build. Nothing is fetched
but what npm's lock names, and the pages fetch nothing from elsewhere.
"""

import argparse
import ast
import html
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCE = ROOT / "build" / "site-source"
SITE = ROOT / "build" / "site"
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "playground")]

import build_playground  # noqa: E402
import charts  # noqa: E402
from generate_masks import FAMILIES, MASKS  # noqa: E402

PAGES = ("*.md", "*/README.md", "*/LOG.md", "docs/**/*.md", "grammar/editors/*/README.md")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
SHOWN = re.compile(r"(?:src|srcset)=\"([^\"]+)\"")
PACKAGES = {
    "dcp_dsl": "dcp_dsl", "dcp_planner": "planner",
    "dcp_runtime": "runtime", "dcp_dashboard": "dashboard",
}  # fmt: skip


def pages() -> list[str]:
    """Return the documents, by their path below the repository."""
    found = {path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(name for name in found if not name.startswith((".", "build/")))


def copy(name: str) -> None:
    """Copy a document with the files that it shows or links to."""
    here = ROOT / name
    text = here.read_text(encoding="utf-8")

    def bring(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        path = (here.parent / target).resolve()
        if "://" in target or target.startswith("mailto:") or not path.is_relative_to(ROOT):
            return found[0]
        if path.is_dir():
            inner = "README.md" if (path / "README.md").exists() else ""
            if not inner:  # a folder of files: the site has none of it
                return f"]({_playground_or_pages(here)})"
            return f"]({target.rstrip('/')}/{inner}{anchor})"
        if path.suffix != ".md" and path.exists():
            _take(path)
        return found[0]

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(bring, part) for part in parts[::2]]
    for target in SHOWN.findall(text):
        _take((here.parent / target).resolve())
    out = SOURCE / name
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(parts), encoding="utf-8")


def _playground_or_pages(here: Path) -> str:
    """Return a link to the list of all pages, for what the site does not hold."""
    depth = len(here.relative_to(ROOT).parts) - 1
    return "../" * depth + "docs/README.md"


def _take(path: Path) -> None:
    """Copy a file to the same place of the site; files of code are shown as text."""
    out = SOURCE / path.relative_to(ROOT)
    if path.is_file() and not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, out)


def write(name: str, text: str) -> None:
    """Write a page that is made at build."""
    path = SOURCE / "docs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def reference(package: str, room: str) -> str:
    """Return the page of a package's public names, read from its stub."""
    folder = ROOT / room / package
    stub = ast.parse((folder / "__init__.pyi").read_text(encoding="utf-8"))
    lines = [
        f"# {package}",
        "",
        ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "",
    ]
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            module = f"{package}.{node.module}" if node.level else str(node.module)
            for alias in node.names:
                lines += ["", f"::: {module}.{alias.name}"]
    return "\n".join(lines) + "\n"


def gallery() -> str:
    """Return a card for each mask of the library: picture, name, and a link that opens it."""
    cards = []
    pages = [ROOT / "docs" / f"masks-{family}.md" for family in FAMILIES]
    sections = [(p.stem, s) for p in pages for s in p.read_text("utf-8").split("\n## ")[1:]]
    for page, section in sections:
        name, _, body = section.partition("\n")
        said = html.escape(body.strip().splitlines()[0]).replace("`", "")
        picture = re.search(r"!\[([^\]]*)\]\(([^)]*)\)", body)
        assert picture is not None, name
        lines = (MASKS / f"{name}.dcpm").read_text("utf-8").splitlines(keepends=True)
        code = quote("".join(line for line in lines if not line.startswith("#")))
        opened = f"../playground/index.html#text={code}&mask={quote(picture[1])}"
        cards.append(
            f'<li><a href="{page}.html#{name}"><img alt="{picture[1]}" '
            f'src="{picture[2]}" loading="lazy"></a><p><strong>{name}</strong> '
            f'<a href="{opened}">try</a></p><p>{said}</p></li>'
        )
    return GALLERY + '<ul class="gallery">\n' + "\n".join(cards) + "\n</ul>\n"


GALLERY = """# Gallery of masks

Rows are queries, columns are keys. A picture leads to the mask's
definition, *try* to the playground.

"""
CLI = """# Every command and option

::: mkdocs-click
    :module: dcp_dsl.cli
    :command: dcpm
    :prog_name: dcpm
    :depth: 1
    :style: table
"""


def stage() -> None:
    """Lay out what the generator reads."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for name in pages():
        copy(name)
    for path in (ROOT / "docs" / "masks").glob("*.svg"):
        _take(path)
    for package, room in PACKAGES.items():
        write(f"reference/{package}.md", reference(package, room))
    write("reference/cli.md", CLI)
    write("gallery.md", gallery())
    write("benchmarks.md", charts.page(SOURCE / "docs" / "charts"))
    assets = SOURCE / "assets"
    assets.mkdir()
    shutil.copy(HERE / "site.css", assets)


def main() -> None:
    """Build the site; fail for a warning of the generator."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-playground", action="store_true", help="leave out what npm brings")
    parser.add_argument(
        "--wheel", type=Path, action="append", default=[], help="of numpy for Pyodide"
    )
    arguments = parser.parse_args()
    stage()
    shim = SOURCE / "assets" / "iframe-worker.js"
    if arguments.no_playground:
        shim.write_text("")
    else:
        shutil.copy(build_playground.package("iframe-worker") / "shim" / "index.js", shim)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean"]
    if subprocess.run([*command, "-f", HERE / "mkdocs.yml"], check=False).returncode:
        raise SystemExit("the site has faults, named above")
    if not arguments.no_playground:
        build_playground.build(SITE / "playground", tuple(arguments.wheel))
    print(f"{SITE}/index.html")


if __name__ == "__main__":
    main()
