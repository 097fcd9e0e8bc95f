"""Run the first half hour on a GPU: is the runtime right there, and how fast is it?

``python gpu/first_light.py [--stage NAME ...] [--out DIR]`` runs each stage in a process of its
own, so that a crash ends one stage only, and writes ``DIR/STAGE.json`` after each. Without a GPU
the stages run what a CPU can and say what they skipped.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from cases import HERE

NAMES = ("machine", "compilation", "kernels", "ranks", "speed", "tiles", "executor")
LIMIT_S = 540
"""Seconds of one stage: ten minutes are often the most that a shared machine allows a command."""


def main() -> int:
    """Run the stages, print a line for each, and return the exit status: 1 if a stage failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of one stage")
    parser.add_argument("--run", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run_stage(options.run)))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    documents = [start(name, options.out, options.limit) for name in options.stage]
    return int(any(document["status"] == "failed" for document in documents))


def run_stage(name: str) -> dict[str, object]:
    """Run one stage in this process."""
    from stages import STAGES, Skip

    try:
        found = STAGES[name]()
    except Skip as reason:
        return {"status": "skipped", "reason": str(reason)}
    return {"status": "failed" if found.get("failed") else "passed", **found}


def start(name: str, folder: Path, limit_s: float) -> dict[str, object]:
    """Run one stage in a process of its own, write its document and print one line."""
    begin_s = time.perf_counter()
    command = [sys.executable, str(Path(__file__).resolve()), "--run", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        document = read_document(done)
    except subprocess.TimeoutExpired:
        document = {"status": "failed", "reason": f"took longer than {limit_s:g} s"}
    document = {"stage": name, "seconds": round(time.perf_counter() - begin_s, 1), **document}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    reason = document.get("reason") or f"{folder / name}.json"
    print(f"{name:12} {document['status']:8} {document['seconds']:6} s  {reason}", flush=True)
    return document


def read_document(done: "subprocess.CompletedProcess[str]") -> dict[str, object]:
    """Return the document that a stage printed last, or how its process ended."""
    if done.returncode:
        text = (done.stderr or "no message").strip()
        return {"status": "failed", "reason": f"exit {done.returncode}: {text[-1500:]}"}
    document: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return document


if __name__ == "__main__":
    sys.exit(main())
