"""Write the pages of the standard library of masks, and one picture per mask.

```
python docs/generate_masks.py            # --check: fail if a page does not match the library
```
A picture shows the mask on its file's sample, with the arguments of the first call in its checks.
docs/masks.md lists all masks; each family has a page beside it.
"""

import re
import sys
import textwrap
from pathlib import Path

from dcp_dsl import Mask, Picture, Sample, Spec, load
from dcp_dsl.syntax import ast as tree
from dcp_dsl.syntax.trees import unparse, walk
from dcp_grammar import MASKS

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "masks.md"
PICTURES = DOCS / "masks"
FAMILIES = {
    "windows": (
        "Windows, sinks and strides",
        "causal full sliding fa_window local streaming longformer dilated strided fixed chunked "
        "blockwise blockwise_dcp log_sparse eviction moba qk_sparse",
    ),
    "documents": (
        "Documents, prompts and branches",
        "document document_full document_streaming prefix_lm prefix_lm_packed demonstrations rag "
        "parallel_context agent shared_question shared_prefix grpo dpo forks prompt_tree "
        "rollout_tree tree",
    ),
    "images": (
        "Images, videos and other sequences",
        "multimodal multimodal_packed transfusion modality flamingo natten sta svg_spatial "
        "block_causal block_diffusion cross nsa_compressed prefill",
    ),
}
"""Title and masks of each page, ``docs/masks-*.md``."""
LEFT_OUT = re.compile(
    r"#|sample tiny\((\w*lens? = (\d+|\[[\d, ]+\])(, )?)+\)$|check .* (total|lookback|implies .*)$"
    r"|check \S+ total on"
)
"""Lines of a file that its page leaves out: the definition says what they claim or hold."""
CITED = re.compile(
    r" \((?:[A-Z]\w+(?: et al\.| AI)?,? )?20\d\d(?:, arXiv [\d.]+)?(?:, Sec\. [\d.]+)?\)"
    r"|, arXiv:\d+\.\d+|(?<=\w), \w+ et al\. 20\d\d(?=\))"
)
"""Authors and years of a source, which the file names."""
LIST = re.compile(r"(?<=^<!-- masks -->\n).*?(?=^<!-- /masks -->$)", re.MULTILINE | re.DOTALL)


def section(path: Path) -> tuple[str, str]:
    """Return the Markdown of one mask, and its picture as SVG."""
    text = path.read_text(encoding="utf-8")
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    said = CITED.sub("", " ".join(comments))
    mask, sample = shown(load(path), path.stem)
    picture = Picture.of(mask, sample)
    code = "\n".join(line for line in text.splitlines() if not LEFT_OUT.match(line))
    caption = "" if mask.call == path.stem else f" `{mask.call}`"
    return (
        f"## {path.stem}\n\n{textwrap.fill(said, 100)}\n\n"
        f"![{path.stem}](masks/{path.stem}.svg){caption}\n\n"
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


def pages(sections: dict[str, str]) -> dict[Path, str]:
    """Return the texts of all pages: the list, and the sections of each family."""
    assert sorted(sections) == sorted(" ".join(n for _, n in FAMILIES.values()).split())
    found, lines = {}, []
    for family, (title, names) in FAMILIES.items():
        page = f"masks-{family}.md"
        said = "[How to read a picture](masks.md)."
        parts = [f"# {title}", said, *(sections[name].rstrip() for name in names.split())]
        found[DOCS / page] = "\n\n".join(parts) + "\n"
        lines += [*textwrap.wrap(f"- [{title}]({page}): {', '.join(names.split())}", 100,
                                    subsequent_indent="  ")]  # fmt: skip
    text = "\n".join(["", *lines, "", ""])
    found[PAGE] = LIST.sub(lambda _: text, PAGE.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Write the pages and the pictures, or with ``--check`` only compare the pages."""
    sections = {path.stem: section(path) for path in sorted(Path(str(MASKS)).glob("*.dcpm"))}
    written = pages({name: text for name, (text, _) in sections.items()})
    if "--check" in sys.argv[1:]:
        missing = [name for name in sections if not (PICTURES / f"{name}.svg").is_file()]
        stale = [p for p, t in written.items() if not p.is_file() or p.read_text("utf-8") != t]
        if missing or stale:
            sys.exit("docs/masks*.md are not in step: python docs/generate_masks.py")
        return
    PICTURES.mkdir(exist_ok=True)
    for name, (_, svg) in sections.items():
        (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
