"""Print the constants of the preset clusters as a table: those in which presets differ.

```
python docs/presets_table.py --table planner/dcp_planner/model/clusters
```
"""

import textwrap
from dataclasses import fields

from dcp_planner import Cluster, preset
from dcp_planner.model.cluster_file import PRESETS

NO_CONSTANTS = {"nodes", "devices_per_node", "devices", "slow_ports", "name", "source"}


def shown(value: object) -> str:
    """Return a constant as the table writes it.

    >>> shown(2.3e11), shown(None)
    ('2.3e+11', '-')
    """
    return f"{value:g}" if isinstance(value, float) else str(value).replace("None", "-")


def main() -> None:
    """Print a row for each constant that not all presets share, then the others in a line."""
    clusters = [preset(name) for name in PRESETS]
    alike = []
    print(f"| | {' | '.join(PRESETS)} |\n|---|{'---:|' * len(PRESETS)}")
    for field in fields(Cluster):
        values = [shown(getattr(cluster, field.name)) for cluster in clusters]
        if field.name in NO_CONSTANTS:
            continue
        if len(set(values)) == 1:
            alike.append(f"`{field.name}` {values[0]}")
        else:
            print(f"| {field.name} | {' | '.join(values)} |")
    print("\n" + textwrap.fill(f"Alike in all: {', '.join(alike)}.", 100))


if __name__ == "__main__":
    main()
