"""Test the runtime on a GPU for half an hour: is it correct there, and how fast is it?

``python gpu/first_light.py [--stage NAME ...] [--out DIR] [--limit SECONDS]`` runs each stage in a
process of its own, so that a crash ends one stage only. A stage writes ``DIR/STAGE.json`` anew
after every row that it measures, so one that is cut off leaves its rows. Without a GPU the stages
run what a CPU can and say what they skipped.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cases import HERE
from report import to_tables

LIMITS_S = {
    "machine": 60,
    "kernels": 240,
    "ranks": 90,
    "speed": 480,
    "executor": 150,
    "overlap": 150,
    "tiles": 330,
    "compilation": 180,
}
"""Stages in the order in which they run, and the most seconds of each: 28 minutes in all."""

Json = dict[str, Any]  # Any: a JSON document


def main() -> int:
    """Run the stages, print a line for each, and return 1 if one failed or was cut off, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", nargs="+", choices=LIMITS_S, default=LIMITS_S)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument(
        "--limit", type=float, default=sum(LIMITS_S.values()), help="seconds of all stages together"
    )
    parser.add_argument("--run", choices=LIMITS_S, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.run:
        run_stage(options.run, options.out)
        return 0
    # On SIGTERM the running stage must end, too: the exception passes the `finally` that kills it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    end_s = time.monotonic() + options.limit
    documents, names = {}, list(options.stage)
    for position, name in enumerate(names):
        share_s = share_of(names[position:], end_s - time.monotonic())
        documents[name] = start(name, options.out, share_s)
    print("\n" + to_tables(documents))
    unfinished = [n for n, found in documents.items() if found["status"] in ("failed", "cut off")]
    if unfinished:
        print(f"without a full answer: {', '.join(unfinished)}")
    return int(bool(unfinished))


def share_of(names: list[str], left_s: float) -> float:
    """Return the time limit of the next stage; if time is short, all remaining stages share it."""
    return LIMITS_S[names[0]] * min(1.0, left_s / sum(LIMITS_S[name] for name in names))


def run_stage(name: str, folder: Path) -> None:
    """Run one stage in this process; its document is complete up to the latest row at any time."""
    from stages import STAGES, Skip

    document: Json = {"stage": name, "status": "cut off", "rows": []}
    write(document, folder)
    try:
        for row in STAGES[name]():
            document["rows"].append(row)
            write(document, folder)
    except Skip as reason:
        document |= {"status": "skipped", "reason": str(reason)}
    else:
        document["status"] = "passed"
    write(document, folder)


def start(name: str, folder: Path, limit_s: float) -> Json:
    """Run one stage in a process of its own, complete its document and print one line."""
    begin_s = time.perf_counter()
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    path.unlink(missing_ok=True)  # of an earlier run
    reason = end_of(name, folder, log, limit_s) if limit_s > 1 else "no time is left for it"
    document: Json = {"stage": name, "status": "cut off", "rows": []}
    if path.exists():
        document = json.loads(path.read_text())
    document["seconds"] = round(time.perf_counter() - begin_s, 1)
    if reason:
        document |= {"status": "failed" if "exit" in reason else "cut off", "reason": reason}
    if any("error" in row or row.get("ok") is False for row in document["rows"]):
        document["status"] = "failed"  # also if it was cut off after such a row
    write(document, folder)
    outcome = document.get("reason") or f"{len(document['rows'])} rows in {path}"
    print(f"{name:12} {document['status']:8} {document['seconds']:6} s  {outcome}", flush=True)
    return document


def end_of(name: str, folder: Path, log: Path, limit_s: float) -> str | None:
    """Run the process of a stage; return why it did not end well, None if it did."""
    command = [sys.executable, str(Path(__file__).resolve()), "--run", name, "--out", str(folder)]
    # A file, not a pipe, which a process that a stage left behind would hold open.
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"longer than {limit_s:.0f} s; the rows so far are kept"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # ranks and compilers that it started
            process.wait()
    return f"exit {status}: {log.read_text().strip()[-1500:]}" if status else None


def write(document: Json, folder: Path) -> None:
    """Replace the document of a stage; a reader sees the old document or the new one, whole."""
    draft = folder / f"{document['stage']}.draft"
    draft.write_text(json.dumps(document, indent=1) + "\n")
    draft.replace(folder / f"{document['stage']}.json")


if __name__ == "__main__":
    sys.exit(main())
