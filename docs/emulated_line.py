"""Print the sentence of the README on emulated clusters, from the runtime's bench_emulated.py.

```
python docs/generate_tables.py
```
"""

import argparse
import json
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

CLUSTER = "4x8"
STATIC = ("zigzag", "contiguous", "ring", "grid", "heads_context")


def sentence(report: dict[str, Any]) -> str:  # Any: a JSON document
    """Return what plans took of the time of the best static layout, over emulated sockets."""
    batches: dict[str, dict[str, tuple[float, float]]] = {}
    for row in report["rows"]:
        if (row["cluster"], row["order"]) == (CLUSTER, "grouped"):
            both = row["predicted_s"], median(row["sockets_s"])
            batches.setdefault(row["batch"], {})[row["layout"]] = both
    ratios, predicted, errors = [], [], []
    for layouts in batches.values():
        ours, others = layouts["default"], [layouts[name] for name in STATIC]
        best = min(others, key=lambda both: both[1])
        ratios.append(ours[1] / best[1])
        predicted.append(ours[0] / min(others)[0])
        errors += [abs(measured / expected - 1) for expected, measured in (ours, best)]
    return (
        f"**Emulated:** on an emulated {CLUSTER} cluster over real sockets, with kernels that "
        f"sleep,\nour plans took {geometric_mean(ratios):.2f} of the best static layout's time "
        f"({len(ratios)} batches, {min(ratios):.2f} to {max(ratios):.2f}); "
        f"{geometric_mean(predicted):.2f} was predicted.\nTimes are within {median(errors):.0%} of "
        f"predictions in the median, {max(errors):.0%} at worst (commit "
        f"{report['machine']['commit']}; [what that shows](docs/emulation.md)).\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, metavar="JSON")
    print(sentence(json.loads(parser.parse_args().table.read_text(encoding="utf-8"))), end="")
