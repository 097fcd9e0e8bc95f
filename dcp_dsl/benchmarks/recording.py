"""Record the machine, versions and commit of a benchmark; write its results and tables."""

import argparse
import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""One measured line; `Any`: what JSON holds."""
PACKAGES = ("dcp-dsl", "numpy", "numba")


def machine(*packages: str) -> dict[str, Any]:
    """Describe the machine: processor, cores, commit, versions (`Any`: texts, a number)."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "commit": commit(),
        **{name: _version(name) for name in PACKAGES + packages},
    }


def report(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], dict[str, Any]],
    to_table: Callable[[dict[str, Any]], str],
) -> None:
    """Print the table of a benchmark that runs now, or of its earlier results (`Any`: JSON)."""
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results there")
    parser.add_argument("--table", type=Path, metavar="JSON", help="print the table of results")
    options = parser.parse_args()
    if options.table is not None:
        document = json.loads(options.table.read_text(encoding="utf-8"))
    else:
        document = run(options)
        if options.json is not None:
            write(options.json, document)
    print(to_table(document))


def write(path: Path, document: dict[str, Any]) -> None:
    """Write the JSON of a benchmark, whole or not at all (`Any`: what JSON holds)."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    draft.replace(path)


def geomean(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean, ``None`` of nothing.

    >>> geomean([1, 4])
    2.0
    """
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table: the first column to the left, the others to the right."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: float | None, form: str = ".2f", scale: float = 1.0) -> str:
    """Return a number for a table, a dash for ``None``."""
    return "-" if value is None else format(value * scale, form)


def provenance(document: dict[str, Any], text: str = "") -> str:
    """Return the line below a table that says where its figures come from (`Any`: JSON)."""
    where = document["machine"]
    before = f"{text}; " if text else ""
    cores = f", {where['cores']} cores" if "cores" in where else ""
    return f"\n{before}{where['processor']}{cores}, commit {where['commit']}."


def commit(checkout: Path = Path(__file__).parent) -> str:
    """Return the short name of a checkout's commit."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
