"""Break the product in seeded ways, one at a time, and count what the default tests notice.

`make test-mutations` runs this. It needs a file that says which test calls what (`reach.py` writes
it in one run of the default tests). Each mutant lives in a copy of the tree. First run the tests
that call its function, those of its package first and cheap files first, then, with --whole, all
others of its package.
A mutant that no test could notice is listed, with the reason, in `equivalent.json`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Queue

from mutants import Mutant, draw

PACKAGES = ("grammar", "dcp_dsl", "planner", "runtime", "dashboard")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
Reach = dict[str, tuple[float, frozenset[str]]]


def main() -> None:
    options = _options()
    os.chdir(ROOT)
    reach = _read_reach(options.reach)
    mutants = draw(_product(options.package), options.count, options.seed)
    if options.only:
        mutants = [m for i, m in enumerate(mutants) if i in options.only]
    listed = json.loads((HERE / "equivalent.json").read_text())
    known = {(entry["path"], entry["text"], entry["after"]) for entry in listed}
    mutants = [m for m in mutants if (m.path, m.text, m.after) not in known]
    copies: Queue[Path] = Queue()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(options.jobs):
            copies.put(tree := _copy_tree(Path(folder, str(number))))
        if _run(tree, sorted(reach, key=lambda test: reach[test][0])[:20], 60) != "survived":
            sys.exit((tree / ".log").read_text() + "expected tests to pass on the tree as it is")

        def judge(mutant: Mutant) -> None:
            tree = copies.get()
            started = time.monotonic()
            fate = _judge(mutant, tree, reach, options)
            copies.put(tree)
            row = {"fate": fate, "seconds": round(time.monotonic() - started, 1), **asdict(mutant)}
            rows.append(row)
            options.out.write_text(json.dumps(rows, indent=1))
            place = f"{mutant.path}:{mutant.line}"
            print(f"{len(rows):4} {row['seconds']:6}s {fate:9} {place}  {mutant.before[:70]!r}"
                  f" -> {mutant.after[:70]!r}", flush=True)  # fmt: skip

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(judge, mutants))
    _print_table(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--package", choices=PACKAGES, action="append")
    parser.add_argument("--only", type=int, nargs="*", help="places in the drawn list, from 0")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--whole", action="store_true", help="survivors meet the whole package")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="SECONDS",
                        help="for one mutant; one that takes longer counts as alive")  # fmt: skip
    parser.add_argument("--reach", type=Path, default=Path(".mutations/reach"))
    parser.add_argument("--out", type=Path, default=Path(".mutations/result.json"))
    return parser.parse_args()


def _product(packages: list[str] | None) -> list[Path]:
    """List the product's files: what users import, without benchmarks."""
    command = ["git", "ls-files", *(packages or PACKAGES)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    files = [Path(line) for line in listed.stdout.splitlines()]
    return [f for f in files if f.suffix == ".py" and "benchmarks" not in f.parts]


def _read_reach(stem: Path) -> Reach:
    """Read who calls what from the files that the workers of one run wrote."""
    files = [*stem.parent.glob(f"{stem.name}.*")]
    if not files:
        sys.exit(f"{stem}.*: expected what `pytest -p reach` writes, got no file")
    lines = [json.loads(line) for f in files for line in f.read_text().splitlines()]
    return {test: (seconds, frozenset(called)) for test, seconds, called in lines}


def _copy_tree(target: Path) -> Path:
    """Copy what git knows, and the compiled code beside it, so that numba need not compile anew."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    caches = ROOT.glob("planner/dcp_planner/**/*.nb?")
    for name in [*map(Path, listed.stdout.splitlines()), *(c.relative_to(ROOT) for c in caches)]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    return target


def _judge(mutant: Mutant, tree: Path, reach: Reach, options: argparse.Namespace) -> str:
    file = tree / mutant.path
    text, times = file.read_bytes(), file.stat()
    file.write_bytes(mutant.apply(text))
    try:
        related, package = _related(mutant, reach), f"tests/{Path(mutant.path).parts[0]}/"
        own = [t for t in related if t.startswith(package)]
        stages = [own, [t for t in related if not t.startswith(package)]]
        if options.whole:
            stages.append([t for t in reach if t.startswith(package) and t not in set(own)])
        until, fate = time.monotonic() + options.limit, "survived"
        for tests in stages:  # each collects its own files only: the next ones are rarely needed
            if fate == "survived":
                fate = _run(tree, tests, sum(reach[t][0] for t in tests), until)
    finally:
        file.write_bytes(text)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # numba asks for the time
    return fate


def _related(mutant: Mutant, reach: Reach) -> list[str]:
    """List the tests that call the function of a mutant, files in the order of their cost.

    Where none does, because other processes do, these are the tests that call its file, or the
    package's.
    """
    place, package = f"{mutant.path}:{mutant.function}", f"tests/{Path(mutant.path).parts[0]}/"
    related = [t for t, (_, called) in reach.items() if place in called]
    if not related:
        file = f"{mutant.path}:"
        related = [t for t, (_, seen) in reach.items() if any(c.startswith(file) for c in seen)]
    related = related or [t for t in reach if t.startswith(package)]
    cost: Counter[str] = Counter()
    for test in related:
        cost[test.split("::")[0]] += reach[test][0]
    return sorted(related, key=lambda t: (cost[t.split("::")[0]], t.split("::")[0]))


def _run(tree: Path, tests: list[str], seconds: float, until: float = float("inf")) -> str:
    """Run tests on a broken tree until one fails; return what became of the mutant.

    Ten times the seconds that the tests take are a timeout, which kills it; if `until` comes before
    that, nothing was found out.
    """
    if not tests:
        return "survived"
    (tree / ".chosen").write_text(json.dumps(tests))
    roots = os.pathsep.join(str(tree / p) for p in PACKAGES)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{roots}{os.pathsep}{HERE}",
        "CHOSEN": str(tree / ".chosen"),
    }
    files: Iterable[str] = dict.fromkeys(test.split("::")[0] for test in tests)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "chosen"]
    process = subprocess.Popen(
        [*command, *files], cwd=tree, env=environment, start_new_session=True,
        stdout=(tree / ".log").open("wb"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        allowed, left = 120 + 10 * seconds, max(1.0, until - time.monotonic())
        code = process.wait(timeout=min(allowed, left))
    except subprocess.TimeoutExpired:
        return "timeout" if allowed <= left else "unfinished"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "survived" if code in (0, 5) else "killed"


def _print_table(rows: list[dict[str, object]]) -> None:
    fates = Counter((str(row["path"]).split("/")[0], str(row["fate"])) for row in rows)
    names = ("killed", "timeout", "survived", "unfinished")
    print(f"{'package':10}" + "".join(f"{name:>11}" for name in names))
    for package in PACKAGES:
        print(f"{package:10}" + "".join(f"{fates[package, name]:11}" for name in names))
    alive = sum(n for (_, fate), n in fates.items() if fate in ("survived", "unfinished"))
    print(f"{len(rows) - alive} of {len(rows)} killed")


if __name__ == "__main__":
    main()
