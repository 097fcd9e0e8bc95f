"""The results table of README.md, from the JSON of a demonstration.

```
dcpm demo --no-serve --json > docs/demo.json
python docs/generate_tables.py
```
"""

import argparse
import json
from pathlib import Path
from typing import Any

LABELS = {
    "portfolio": "dcp-dsl",
    "kahypar": "KaHyPar, refined",
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
    lines += ["| mask | tokens | out | dq | dk | dv |", "|---|--:|--:|--:|--:|--:|"]
    for mask in report["masks"]:
        errors = " | ".join(f"{e['relative']:.1e} ({e['eager']:.1e})" for e in mask["errors"])
        tokens = mask["executed"]["tokens"]
        lines.append(f"| `{mask['mask'].split('(')[0]}` | {tokens:,} | {errors} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, metavar="JSON")
    print(table(json.loads(parser.parse_args().table.read_text(encoding="utf-8"))), end="")
