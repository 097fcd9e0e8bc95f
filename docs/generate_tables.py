"""Fill in the tables of the documents that come from JSON files of results.

A table stands between two marks. The first names the script that prints it, and its JSON file:

```
<!-- generated: planner/benchmarks/bench_plan.py planner/benchmarks/results/plan.json -->
<!-- /generated -->
```

The script is called with ``--table JSON`` and prints Markdown. A mark that ends in ``rows: REGEX``
shows those rows of its tables in which, behind their table's head, the expression is found, and
leaves out tables without any.

```
python docs/generate_tables.py            # --check: fail if a document does not match its JSON
```
"""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("grammar", "dcp_dsl", "planner", "runtime", "dashboard", "docs")
TABLE = re.compile(
    r"^<!-- generated: (?P<script>\S+) (?P<results>\S+)(?: rows: (?P<rows>.+))? -->\n"
    r"(?P<table>(?:(?!<!-- generated:).*\n)*?)<!-- /generated -->$",
    re.MULTILINE,
)
TABLE_ROWS = re.compile(r"(?:^\|.*\n)+\n*", re.MULTILINE)
OPEN = re.compile(r"^<!-- generated:", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """Return the Markdown files of the project, without those of caches and environments."""
    found = list(ROOT.glob("*.md"))
    for room in ROOMS:
        found += (ROOT / room).rglob("*.md")
    return sorted(found)


def printed(found: re.Match[str]) -> str:
    """Return a table between its marks, as its script prints it now."""
    script, results = found["script"], found["results"]
    done = subprocess.run(
        [sys.executable, script, "--table", results],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{script} --table {results}: exit status {done.returncode}\n{done.stderr}")
    table = done.stdout.rstrip()
    if found["rows"]:
        table = TABLE_ROWS.sub(
            partial(_chosen, re.compile(found["rows"], re.MULTILINE)), f"{table}\n"
        ).rstrip()
    first, _, _ = found[0].partition("\n")
    return f"{first}\n{table}\n<!-- /generated -->"


def _chosen(wanted: re.Pattern[str], table: re.Match[str]) -> str:
    """Return a table with those rows in which an expression is found; nothing without any."""
    head, ruler, *rows = table[0].strip().splitlines()
    rows = [row for row in rows if wanted.search(f"{head}\n{row}")]
    return "\n".join([head, ruler, *rows, "", ""]) if rows else ""


def main() -> None:
    """Rewrite the documents, or with ``--check`` only compare them."""
    only_check = "--check" in sys.argv[1:]
    stale = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        prose = FENCE.sub("", text)  # fenced code may show the marks as an example
        if len(OPEN.findall(prose)) != len(TABLE.findall(prose)):
            sys.exit(f"{path.relative_to(ROOT)}: a `generated` mark without its end")
        wanted = TABLE.sub(printed, text)
        if wanted != text:
            stale.append(str(path.relative_to(ROOT)))
            if not only_check:
                path.write_text(wanted, encoding="utf-8")
    if only_check and stale:
        sys.exit(f"not in step with their JSON: {', '.join(stale)}; python docs/generate_tables.py")


if __name__ == "__main__":
    main()
