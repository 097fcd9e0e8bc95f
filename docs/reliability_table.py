"""Print the table of docs/reliability.md: all campaigns, from a folder with their results.

```
python docs/generate_tables.py
```
"""

import argparse
import json
from pathlib import Path
from typing import Any

SHOWN = {"campaign", "command", "cases", "seconds_cpu"}


def outcome(report: dict[str, Any]) -> str:  # Any: a JSON document
    """Return the outcome of a campaign: all numbers of its report but those with a column."""
    found = {name: value for name, value in report.items() if name not in SHOWN}
    return ", ".join(
        f"{name.replace('_', ' ')}: {value:,}"
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    )


def table(folder: Path) -> str:
    """Return the Markdown table with a row per campaign."""
    lines = ["| campaign | cases | what came of it | CPU s | command |", "|---|--:|---|--:|---|"]
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text())
        lines.append(
            f"| {report['campaign']} | {report['cases']:,} | {outcome(report)} "
            f"| {report['seconds_cpu']:,.0f} | `{report['command']}` |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", type=Path, required=True, metavar="FOLDER")
    print(table(parser.parse_args().table))


if __name__ == "__main__":
    main()
