"""Measure how fast a folder of many plans is listed, searched and looked up in.

    .venv/bin/python dashboard/benchmarks/bench_folder.py [--json OUT] [--plans 10000]
    .venv/bin/python dashboard/benchmarks/bench_folder.py --table OUT

Times are CPU seconds of this process, since others share the machine; no browser takes part. Each
repeat begins with a new library, as a server that has just started. The baseline parses each plan,
which the list would need to compute its figures instead of reading those that the planner wrote.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recording import machine, report
from synthetic import causal_plan

from dcp_dashboard.library.folder import SUFFIX, open_folder, plan_key
from dcp_dashboard.library.plans import PlanLibrary, load_file
from dcp_dashboard.pages.plan_list import plan_list_page
from dcp_planner import simulate
from dcp_planner.plan import encode_plan

PER_FOLDER = 100
PARSED = 50

Rows = dict[str, tuple[str, list[float]]]


def main() -> None:
    """Measure and print a table, or with ``--json`` write one document too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    report(parser, run, table)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the document."""
    document = {"schema": "dcp.bench.folder/2", "machine": machine("dash"), "plans": options.plans}
    document |= {"repeats": options.repeats, "rows": measure(options.plans, options.repeats)}
    return document


def table(document: dict[str, Any]) -> str:  # Any: JSON values
    """Return the report as Markdown."""
    where = document["machine"]
    lines = [
        f"{document['plans']:,} plans, {where['processor']}, {where['cores']} cores, medians of "
        f"{document['repeats']}:",
        "",
        "| what | CPU | spread |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {row['what']} | {row['median']:,.3g} {row['unit']} | {_two_digits(row['spread'])} |"
        for row in document["rows"]
    ]
    return "\n".join(lines)


def _two_digits(value: float) -> str:
    """Write two significant digits without an exponent."""
    return f"{float(f'{value:.2g}'):g}"


def measure(plans: int, repeats: int) -> list[dict[str, Any]]:  # Any: JSON values
    """Time a new library `repeats` times; one row per figure with half its range."""
    found: Rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = open_folder(name)
        paths = fill(folder, plans)
        for _ in range(repeats):
            visit(folder, paths, found)
        for path in paths[:PARSED]:
            note(found, "baseline: one plan parsed", lambda path=path: load_file(folder / path))
    return [
        {"what": what, "unit": unit, "median": statistics.median(values),
         "spread": (max(values) - min(values)) / 2}
        for what, (unit, values) in found.items()
    ]  # fmt: skip


def visit(folder: Path, paths: list[str], found: Rows) -> None:
    """List, sort, search and look up in a new library."""
    library = PlanLibrary(folder)
    note(found, "first page after the start", lambda: plan_list_page(library, ""))
    begun = time.process_time()
    while any(not row.is_read for row in library.index.rows()):
        time.sleep(0.05)
    found.setdefault("rest of the files read, once", ("s", []))[1].append(
        time.process_time() - begun
    )
    note(found, "first page again", lambda: plan_list_page(library, ""))
    note(found, "sorted by tokens", lambda: plan_list_page(library, "?sort=tokens&desc=1"))
    note(found, "search", lambda: plan_list_page(library, "?q=causal+17"))
    keys = [plan_key(path) for path in paths[:1000]]
    note(found, "lookup of a key", lambda: [library.version(key) for key in keys], len(keys))
    note(found, "lookup of an unknown key", lambda: library.version("0" * 16))
    os.utime(folder / paths[7])
    note(found, "first page after a change", lambda: plan_list_page(library, ""))


def note(found: Rows, what: str, call: Callable[[], object], times: int = 1) -> None:
    """Record the CPU milliseconds of one action; `call` repeats it `times` times."""
    begun = time.process_time()
    call()
    spent = (time.process_time() - begun) * 1e3 / times
    found.setdefault(what, ("ms", []))[1].append(spent)


def fill(folder: Path, plans: int) -> list[str]:
    """Write plans of 16 blocks on 8 devices with their traces, a hundred to a folder."""
    plan = causal_plan(16, 1024, devices=8)
    content = encode_plan(plan, [simulate(plan)])
    paths = [f"{i // PER_FOLDER:03}/{i}{SUFFIX}" for i in range(plans)]
    then = time.time() - 60
    for path in paths:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    for below in (folder, *folder.iterdir()):
        os.utime(below, (then, then))
    return paths


if __name__ == "__main__":
    main()
