"""Write the results table of README.md from the JSON of a demonstration.

```
dcpm demo --no-serve --json > docs/demo.json
python docs/generate_readme.py            # --check: fail if README.md is not in step
```
"""

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
START, END = "<!-- from docs/demo.json -->\n", "<!-- end -->\n"
LABELS = {
    "kahypar": "KaHyPar",
    "static:zigzag": "static zigzag",
    "static:contiguous": "static contiguous",
}


def table(report: dict[str, Any]) -> str:  # Any: a JSON document
    """Give the Markdown table of a demonstration: planned batches by method, then the real runs."""
    lines = [
        "| mask | pairs of causal | placement | moved | over the network | compute max/mean "
        "| tokens max/mean | predicted |",
        "|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for mask in report["masks"]:
        batch = mask["planned"]
        for number, method in enumerate(batch["methods"]):
            name = f"`{mask['mask'].split('(')[0]}`" if number == 0 else ""
            density = f"{batch['density']:.1%}" if number == 0 else ""
            moved = (method["bytes_forward"] + method["bytes_backward"]) / 1e6
            lines.append(
                f"| {name} | {density} | {LABELS[method['method']]} | {moved:,.0f} MB "
                f"| {method['bytes_between_nodes'] / 1e6:,.0f} MB "
                f"| {method['compute_imbalance']:.2f} | {method['token_imbalance']:.2f} "
                f"| {method['predicted_s'] * 1e3:.1f} ms |"
            )
    ranks = report["ranks"]
    lines += ["", f"Then the batches that really ran, on {ranks} processes:", ""]
    lines += ["| mask | tokens | out | dq | dk | dv | predicted | measured |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|--:|"]
    for mask in report["masks"]:
        errors = " | ".join(f"{e['relative']:.1e} ({e['eager']:.1e})" for e in mask["errors"])
        batch = mask["executed"]
        lines.append(
            f"| `{mask['mask'].split('(')[0]}` | {batch['tokens']:,} | {errors} "
            f"| {batch['methods'][0]['predicted_s'] * 1e3:.0f} ms "
            f"| {mask['measured_s'] * 1e3:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rewrite the table between the two marks, or with ``--check`` only compare."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    report = json.loads((DOCS / "demo.json").read_text(encoding="utf-8"))
    wanted = before + START + table(report) + END + after
    if "--check" in sys.argv[1:]:
        if wanted != text:
            sys.exit("README.md is not in step with docs/demo.json: python docs/generate_readme.py")
        return
    README.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
