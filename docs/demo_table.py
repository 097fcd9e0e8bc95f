"""Print the results table of docs/demo.md, from the JSON of a demonstration.

```
dcpm demo --no-serve --json > docs/demo.json
python docs/generate_tables.py
```
"""

import argparse
import json
from pathlib import Path
from typing import Any

LABELS = {"portfolio": "dcp-dsl", "kahypar": "KaHyPar, refined"}
KNOWN = ("static:zigzag", "static:contiguous")


def table(report: dict[str, Any]) -> str:  # Any: a JSON document
    """Return the Markdown table of a demonstration: planned batches, then the real runs."""
    lines = [
        "| mask | pairs of causal | placement | moved | over the network | compute max/mean "
        "| tokens max/mean | predicted |",
        "|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for mask in report["masks"]:
        batch = mask["planned"]
        best = batch["best_static"]
        # Of the static layouts only two well-known ones and the best.
        methods = [
            method
            for method in batch["methods"]
            if not method["method"].startswith("static:")
            or method["method"] in (*KNOWN, *best.values())
        ]
        for number, method in enumerate(methods):
            name = f"`{mask['mask'].split('(')[0]}`" if number == 0 else ""
            density = f"{batch['density']:.1%}" if number == 0 else ""
            moved = (method["bytes_forward"] + method["bytes_backward"]) / 1e6
            lines.append(
                f"| {name} | {density} | {_label(method, best)} | {moved:,.0f} MB "
                f"| {method['bytes_between_nodes'] / 1e6:,.0f} MB "
                f"| {_capped(method, 'compute')} | {_capped(method, 'tokens')} "
                f"| {method['predicted_s'] * 1e3:.1f} ms |"
            )
        if "within_token_cap" not in best:
            lines.append("|  |  | no static layout holds the token cap |  |  |  |  |  |")
    ranks = report["ranks"]
    lines += ["", f"Then the batches that really ran, on {ranks} processes:", ""]
    lines += ["| mask | tokens | out | dq | dk | dv |", "|---|--:|--:|--:|--:|--:|"]
    for mask in report["masks"]:
        errors = " | ".join(f"{e['relative']:.1e} ({e['eager']:.1e})" for e in mask["errors"])
        tokens = mask["executed"]["tokens"]
        lines.append(f"| `{mask['mask'].split('(')[0]}` | {tokens:,} | {errors} |")
    return "\n".join(lines) + "\n"


def _label(method: dict[str, Any], best: dict[str, str]) -> str:
    """Name a method; `Any`: a JSON object."""
    name = method["method"]
    label = LABELS.get(name, name.replace(":", " "))
    if name not in best.values():
        return label
    is_within = best.get("within_token_cap") == name
    if best["of_all"] != name:
        return f"{label}, **best within the token cap**"
    return f"{label}, **best of all{' and within the token cap' if is_within else ''}**"


def _capped(method: dict[str, Any], cap: str) -> str:
    """Return max/mean, with a star if it is over the cap; `Any`: a JSON object."""
    imbalance = method["compute_imbalance" if cap == "compute" else "token_imbalance"]
    return f"{imbalance:.2f}" + (r"\*" if cap in method["over_caps"] else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, metavar="JSON")
    print(table(json.loads(parser.parse_args().table.read_text(encoding="utf-8"))), end="")
