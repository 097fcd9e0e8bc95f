"""Write docs/masks.md and one picture per mask of the standard library.

```
python docs/generate_masks.py            # --check: fail if the page does not match the library
```
A picture shows the mask on its file's sample, with the arguments of the first call in its checks.
"""

import sys
from pathlib import Path

from dcp_dsl import Mask, Picture, Sample, Spec, load
from dcp_dsl.syntax import ast as tree
from dcp_dsl.syntax.trees import unparse, walk
from dcp_grammar import MASKS

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "masks.md"
PICTURES = DOCS / "masks"
HEAD = DOCS / "masks_head.md"


def section(path: Path) -> tuple[str, str]:
    """Return the Markdown of one mask, and its picture as SVG."""
    text = path.read_text(encoding="utf-8")
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    mask, sample = shown(load(path), path.stem)
    picture = Picture.of(mask, sample)
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    columns = ", ".join(f"`{name}`" for name in sorted(mask.columns)) or "none"
    return (
        f"### {path.stem}\n\n{chr(10).join(comments)}\n\n"
        f"![{mask.call}](masks/{path.stem}.svg)\n\n"
        f"`{mask.call}` on `{sample.to_json()}`; columns: {columns}.\n\n"
        f"```dcpm\n{code}\n```\n"
    ), picture.svg()


def shown(spec: Spec, name: str) -> tuple[Mask, Sample]:
    """Return the call of a mask in the checks of its file, and the file's sample."""
    calls = [
        unparse(node)
        for statement in spec.scope.program.statements
        if isinstance(statement, tree.Check)
        for node in walk(statement)
        if isinstance(node, tree.Call) and node.name.text == name
    ]
    mask = spec.mask(calls[0] if calls else name)
    sample = spec.sample("tiny")
    return mask, Sample({c: sample.columns[c] for c in mask.columns}, sample.length)


def main() -> None:
    """Write the page and the pictures, or with ``--check`` only compare the page."""
    sections = {path.stem: section(path) for path in sorted(Path(str(MASKS)).glob("*.dcpm"))}
    page = "\n".join([HEAD.read_text(encoding="utf-8"), *(text for text, _ in sections.values())])
    if "--check" in sys.argv[1:]:
        missing = [name for name in sections if not (PICTURES / f"{name}.svg").is_file()]
        if missing or not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page:
            sys.exit("docs/masks.md is not in step: python docs/generate_masks.py")
        return
    PICTURES.mkdir(exist_ok=True)
    for name, (_, svg) in sections.items():
        (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
