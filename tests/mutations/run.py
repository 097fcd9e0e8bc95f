"""Break the product in seeded ways, one at a time, and count what the default tests notice.

`make test-mutations` runs this. It needs a file that says which test calls what (`reach.py` writes
it in one run of the default tests). Each mutant lives in a copy of the tree. First run the tests
that call its function, those of its package first and cheap files first, then, with --whole, all
others of its package. They run in forks of this process, which has imported torch and the like.
A mutant that no test could notice is listed, with the reason, in `equivalent.json`.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

import pytest
from mutants import Mutant, draw

PACKAGES = ("grammar", "dcp_dsl", "planner", "runtime", "dashboard")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
IMPORTS = ("torch._dynamo", "torch.distributed.tensor", "numba", "dash")
PORTIONS_S = (1, 5, 25)  # after so many seconds of tests the next files are collected
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
    for name in IMPORTS:
        import_module(name)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        judge = partial(_judge, Path(folder), reach, options)
        with ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
            for judged in as_completed([pool.submit(judge, mutant) for mutant in mutants]):
                rows.append(row := judged.result())
                options.out.write_text(json.dumps(rows, indent=1))
                print(f"{len(rows):4} {row['cpu_s']:6}s {row['fate']:9} {row['path']}:{row['line']}"
                      f"  {row['before'][:70]!r} -> {row['after'][:70]!r}", flush=True)  # fmt: skip
        _print_table(rows)
        tree, noticed = _copy_tree(Path(folder, "as it is")), {r["by"] for r in rows if r["by"]}
        fate, test = _run(tree, sorted(noticed & {*reach}), reach)
    if fate != "survived":
        sys.exit(f"{test}: expected to pass on the tree as it is, {fate}")


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


def _judge(
    folder: Path, reach: Reach, options: argparse.Namespace, mutant: Mutant
) -> dict[str, Any]:
    """Try a mutant in this process's copy of the tree; return its row of the result."""
    tree = folder / str(os.getpid())
    if not tree.exists():
        _copy_tree(tree)
    file, until, started = tree / mutant.path, time.monotonic() + options.limit, _cpu_s()
    text, times = file.read_bytes(), file.stat()
    file.write_bytes(mutant.apply(text))
    fate, test = "survived", ""
    for tests in _portions(mutant, reach, options.whole):
        if fate == "survived":
            fate, test = _run(tree, tests, reach, until)
    file.write_bytes(text)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # numba asks for the time
    return {"fate": fate, "by": test, "cpu_s": round(_cpu_s() - started, 1), **asdict(mutant)}


def _cpu_s() -> float:
    """Return the CPU seconds that processes took which this one started and saw end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _portions(mutant: Mutant, reach: Reach, is_whole: bool) -> Iterable[list[str]]:
    package = Path(mutant.path).parts[0]
    own = (f"{package}/", f"tests/{package}/")
    related = _related(mutant, reach)
    stages = [
        [t for t in related if t.startswith(own)],
        [t for t in related if not t.startswith(own)],
    ]
    if is_whole:
        stages.append([t for t in reach if t.startswith(own) and t not in related])
    return [portion for stage in stages for portion in _by_cost(stage, reach)]


def _by_cost(tests: list[str], reach: Reach) -> Iterable[list[str]]:
    """Part tests, cheap files first: most mutants die early, and no other file is collected."""
    cost: defaultdict[str, float] = defaultdict(float)
    for test in tests:
        cost[test.split("::")[0]] += reach[test][0]
    portions: dict[int, list[str]] = {}
    spent_s = 0.0
    for file in sorted(cost, key=lambda f: (cost[f], f)):
        members = [t for t in tests if t.split("::")[0] == file]
        portions.setdefault(bisect(PORTIONS_S, spent_s), []).extend(members)
        spent_s += cost[file]
    return portions.values()


def _related(mutant: Mutant, reach: Reach) -> dict[str, None]:
    """List the tests that call the function of a mutant.

    Where none does, because other processes do, these are the tests that call its file, or the
    package's.
    """
    place, file = f"{mutant.path}:{mutant.function}", f"{mutant.path}:"
    package = f"tests/{Path(mutant.path).parts[0]}/"
    return (
        dict.fromkeys(t for t, (_, called) in reach.items() if place in called)
        or dict.fromkeys(t for t, (_, c) in reach.items() if any(x.startswith(file) for x in c))
        or dict.fromkeys(t for t in reach if t.startswith(package))
    )


def _run(
    tree: Path, tests: list[str], reach: Reach, until: float = float("inf")
) -> tuple[str, str]:
    """Run tests on a broken tree until one fails; return what became of the mutant, and the test.

    A test that takes much longer than it does on the tree as it is fails (`chosen.py`); if `until`
    comes before that, nothing was found out.
    """
    if not tests:
        return "survived", ""
    (tree / ".chosen").write_text(json.dumps({test: reach[test][0] for test in tests}))
    sys.stdout.flush()
    if not (process := os.fork()):
        _be_pytest(tree, list(dict.fromkeys(test.split("::")[0] for test in tests)))
    ends = time.monotonic() + 600 + 10 * sum(reach[test][0] for test in tests)
    ended, status = 0, 0
    while not ended and time.monotonic() < min(ends, until):
        time.sleep(0.02)
        ended, status = os.waitpid(process, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if not ended:
        os.waitpid(process, 0)
        return ("timeout" if ends <= until else "unfinished"), ""
    if os.waitstatus_to_exitcode(status) in (0, 5):
        return "survived", ""
    found = re.search(r"^(?:FAILED|ERROR) (.*)$", (tree / ".log").read_text(), re.M)
    said = f"{found[1] if found else ''} - "  # the test, and what it found; ids may hold " - "
    named = [test for test in tests if said.startswith(f"{test} - ")]
    return "killed", max(named, key=len, default=said.partition(" - ")[0])


def _be_pytest(tree: Path, files: list[str]) -> NoReturn:
    """Be `python -m pytest` in a tree; the fork ends here."""
    os.setsid()
    log = os.open(tree / ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(tree)
    roots = [str(tree / package) for package in PACKAGES]
    sys.path[:0] = roots
    os.environ |= {"PYTHONPATH": os.pathsep.join(roots), "CHOSEN": str(tree / ".chosen")}
    code: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "chosen", *files])
    finally:
        sys.stdout.flush()
        os._exit(code)


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
