"""Print the sentence of the README on what a plan saves, from the planner's bench_paper.py.

```
python docs/generate_tables.py
```
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from savings_table import MASKS, ratios


def sentence(report: dict[str, Any]) -> str:  # Any: a JSON document
    """Return the predicted gain of each mask, with what the figures rest on."""
    gains = {label: ratios(report, mask)[0] for mask, label in MASKS.items()}
    told = ", ".join(f"{median(found):.2f} ({label})" for label, found in gains.items())
    least = min(min(found) for found in gains.values())
    most = max(max(found) for found in gains.values())
    settings = len(next(iter(gains.values())))
    return (
        f"**Gain: attention is {told} times as fast** as with\nthe best static layout. "
        f"The cost model predicts this for 32 devices of {report['cluster']}; nobody has measured "
        f"it. Medians over {settings} settings of\nthe DCP paper for each mask, {least:.2f} to "
        f"{most:.2f} over all (commit {report['machine']['commit']}); of attention alone, "
        "[not of a step](docs/questions.md#what-does-it-save-me).\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, metavar="JSON")
    print(sentence(json.loads(parser.parse_args().table.read_text(encoding="utf-8"))), end="")
