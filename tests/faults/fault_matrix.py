"""Every fault at every place: no aborted run, no lost batch, no torn file.

    python tests/faults/fault_matrix.py --json tests/fuzz/results/faults.json
    python tests/faults/fault_matrix.py --place "plan write" --fault ENOSPC --first 3

Each case is a fork of this process, which runs under the shim (`inject`). At each place the fault
strikes once at one call after the other, and from the first call on for ever.
"""

import argparse
import errno
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import inject
from inject import FAULTS, FOREVER, Fault, Injector

LIMIT_S = 120.0
STOPPED_S = 0.3


@dataclass(frozen=True)
class Case:
    """One case and what came of it."""

    place: str
    fault: str
    point: int  # calls before the one that was hit
    lasts: bool  # from there on
    hits: int
    outcome: str
    is_defect: bool  # a run was aborted, a batch lost, or a file torn


def run_case(injector: Injector, kind: type, fault: Fault, point: int, lasts: bool) -> Case:
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        place = kind(Path(temporary, "place"))
        place.folder.mkdir()
        place.set_up()
        injector.set(
            fault, place.calls, place.pattern, place.vanishing,
            worker=place.worker, skip=point, times=FOREVER if lasts else 1,
        )  # fmt: skip
        outcome, is_defect = act(injector, place, fault)
        injector.control.armed = 0
        try:
            place.judge()
        except Exception as error:
            outcome, is_defect = f"torn: {type(error).__name__}: {error}", True
    return Case(kind.name, fault.name, point, lasts, injector.hits, outcome, is_defect)


def act(injector: Injector, place, fault: Fault) -> tuple[str, bool]:
    """Act in a fork; return what came of it and whether that is a defect."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _act_here(injector, place, fault, tell)
    os.close(tell)
    status = _wait(pid, place, told)
    with open(told, "rb") as said:
        text = said.read().decode(errors="replace")
    if status is None:
        return "hung", True
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        is_meant = fault.name == "SIGKILL" and number == signal.SIGKILL and not place.worker
        return f"ended by signal {number}", not is_meant
    outcome, _, rest = text.partition("\n")
    return (outcome, False) if outcome and not rest else (f"aborted: {text[-3000:]}", True)


def _act_here(injector: Injector, place, fault: Fault, tell: int) -> None:
    os.setsid()
    sink = os.open(os.devnull, os.O_RDWR)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    try:
        if hasattr(type(place), "stops"):
            type(place).stops = fault.name == "SIGSTOP" and place.worker
        said = place.act(injector.armed)
    except BaseException:
        injector.control.armed = 0
        said = "\n" + traceback.format_exc()
    os.write(tell, said.encode()[-4000:])
    os._exit(0)


def _wait(pid: int, place, told: int) -> int | None:
    """Wait for the fork; look at the files while it is stopped, then let it go on."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        if found and os.WIFSTOPPED(status):
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
        elif found:
            return status
        else:
            select.select([told], [], [], 0.02)
            time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def cases_of(injector: Injector, kind: type, fault: Fault, first: int | None):
    """Yield the cases of a cell: one point after the other until no call is left to hit."""
    if fault.way == "files" and not kind.may_lose_files:
        fault = replace(fault, way="fail", value=errno.EMFILE, needs=("open", "socketpair"))
    for point in kind.points:
        case = run_case(injector, kind, fault, point, lasts=False)
        if case.hits or case.is_defect:
            yield case
        if not case.hits or fault.way == "clock":
            return
        if first is not None and point >= first:
            return
    if fault.way in ("fail", "slow"):
        yield run_case(injector, kind, fault, 0, lasts=True)


def seconds() -> float:
    """CPU seconds of this process and all that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (0, resource.RUSAGE_CHILDREN))


def main() -> None:
    """Run the matrix; end with status 1 after any defect or any empty cell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", action="append")
    parser.add_argument("--fault", action="append")
    parser.add_argument("--first", type=int, help="only the first so many points of each cell")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of such a file")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    if "FAULT_CONTROL" not in os.environ:  # not under the shim
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            os.environ.update(inject.environment(Path(folder)))
            sys.exit(os.spawnv(os.P_WAIT, sys.executable, [sys.executable, *sys.argv]))
    found = run(options.place, options.fault, options.first)
    defects = [case for case in found if case.is_defect]
    report = {
        "campaign": "fault matrix",
        "command": "python tests/faults/fault_matrix.py",
        "cases": len(found),
        "defects": len(defects),
        "seconds_cpu": round(seconds(), 1),
        "cells": summary(found),
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    for case in defects:
        print(str(asdict(case))[:1500], file=sys.stderr)
    sys.exit(bool(defects))


def run(places: list[str] | None, faults: list[str] | None, first: int | None) -> list[Case]:
    from places import PLACES, own_batches, plans

    plans(), own_batches()
    injector, found = Injector(Path(os.environ["FAULT_CONTROL"])), []
    for name, kind in PLACES.items():
        for fault in FAULTS:
            if (places and name not in places) or (faults and fault.name not in faults):
                continue
            cell = list(cases_of(injector, kind, fault, first))
            outcomes = Counter(case.outcome.strip().splitlines()[-1][:90] for case in cell)
            print(f"{name} x {fault.name}: {dict(outcomes)}", file=sys.stderr, flush=True)
            found += cell
    return found


def summary(found: list[Case]) -> dict[str, dict[str, dict[str, int]]]:
    """Count outcomes by place and fault."""
    cells: dict[str, dict[str, Counter[str]]] = {}
    for case in found:
        cell = cells.setdefault(case.place, {}).setdefault(case.fault, Counter())
        cell["DEFECT" if case.is_defect else case.outcome] += 1
    return cells


def table(report: dict) -> str:
    """Return Markdown: a row per place, a column per fault, the cases in each."""
    names = [fault.name for fault in FAULTS]
    lines = [f"| place | {' | '.join(names)} |", "|---|" + "--:|" * len(names)]
    for place, cells in report["cells"].items():
        counts = [str(sum(cells[name].values())) if name in cells else "-" for name in names]
        lines.append(f"| {place} | {' | '.join(counts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
