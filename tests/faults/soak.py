"""Train for long while helpers die: nothing may grow, and every batch must be the same.

    python tests/faults/soak.py --minutes 5 --json tests/fuzz/results/soak.json

Two ranks over gloo read batches that a planner process of each makes ahead, run them forward and
backward, write their plans, lose planners and begin anew from a state. A dashboard follows the
folder and is asked for what is new. Every second the memory, descriptors, threads and temporary
files of these processes are counted, once both ranks are warm; their slopes are held to bounds.
"""

import argparse
import gc
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig, digest, write_plan
from dcp_runtime import DCPAttn, DCPDataloader, DCPExecutor, LookAhead, Packing, Planning

RANKS = 2
SHAPE = ModelShape(2, 1, 8, 4)
PLANNING = {"block_size": 16, "config": PlanConfig("native"), "cluster": Cluster(1, RANKS)}
KEPT_PLANS = 20
WARM_BATCHES = 60
KILL_EVERY, RESUME_EVERY, WRITE_EVERY = 12, 17, 5
BOUNDS = {"memory_mib": 4.0, "descriptors": 0.5, "threads": 0.5, "temporary_files": 0.5}
"""Per minute. Memory moves by some MiB with each loader that begins anew."""


def make_loader(rank: int, processes: int) -> DCPDataloader:
    """Make the loader of a rank; its batches are others in every epoch."""
    spec = Spec.from_text('mask m(w: tokens = 90) = causal and q - k < w\nfor "*" use m')
    lengths = random.Random(5).choices(range(10, 120), k=40)
    rows = [{"tokens": list(range(n))} for n in lengths]
    return DCPDataloader(
        rows, spec, Packing(256, shuffle=True),
        planning=Planning(SHAPE, rank=rank, **PLANNING), look_ahead=LookAhead(2, processes),
    )  # fmt: skip


def train(rank: int, folder: Path, minutes: float) -> None:
    """Be one rank until the time is over; tell the digests of all plans."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)  # of lost planners, which are killed here
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    rng, seen = random.Random(rank), []
    lost = kills = resumes = 0
    loader, executor = make_loader(rank, 1), DCPExecutor(timeout_s=300)
    batches, end = iter(loader), float("inf")
    is_over = torch.zeros(1)
    while True:
        is_over[0] = float(time.monotonic() > end)
        dist.all_reduce(is_over)  # all ranks stop at one batch
        if is_over[0]:
            break
        _, plan = found = next(batches, (None, None))
        if plan is None:
            batches = iter(loader)
            continue
        step(executor, plan)
        seen.append(digest(plan))
        count = len(seen)
        if count == WARM_BATCHES:
            end = time.monotonic() + 60 * minutes
            (folder / f"warm-{rank}").touch()
        if rank == 0 and count % WRITE_EVERY == 0:
            name = f"{count // WRITE_EVERY % KEPT_PLANS}.dcpplan"
            write_plan(folder / "plans" / name, plan)
        if count % KILL_EVERY == rng.randrange(2):
            for pid in loader._plans.pool.processes if loader._plans.pool else ():
                os.kill(pid, signal.SIGKILL)
                kills += 1
        if count % RESUME_EVERY == 0:
            state, resumes = json.loads(json.dumps(loader.state_dict())), resumes + 1
            lost += loader.metrics.lost
            batches.close()
            loader.close()
            del loader, batches, found
            gc.collect()
            loader = make_loader(rank, 1)
            loader.load_state_dict(state)
            batches = iter(loader)
    lost += loader.metrics.lost
    loader.close()
    executor.close()
    told = {"digests": seen, "kills": kills, "resumes": resumes, "lost": lost, "cpu": cpu()}
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def step(executor: DCPExecutor, plan: Any) -> None:
    tokens = len(plan.local_tokens(executor.rank))
    q = torch.ones(tokens, 2, 8, requires_grad=True)
    kv = torch.ones(tokens, 2, 1, 8, requires_grad=True)
    DCPAttn.apply(executor.prepare(plan), q, kv).sum().backward()
    assert torch.isfinite(q.grad).all()


def cpu() -> float:
    """CPU seconds of this process and all that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (0, resource.RUSAGE_CHILDREN))


def undisturbed(count: int) -> list[str]:
    """Plan as many batches in this process, from the first epoch on, with nothing in the way."""
    loader, found = make_loader(0, 0), []
    while len(found) < count:
        found += [digest(plan) for _, plan in loader]
    return found[:count]


def sample(processes: dict[str, int], temporary: Path) -> dict[str, float]:
    """Count what the processes hold now."""
    found = {"temporary_files": float(sum(1 for _ in temporary.rglob("*")))}
    for name, pid in processes.items():
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        found[f"{name} memory_mib"] = int(status["VmRSS"].split()[0]) / 1024
        found[f"{name} threads"] = float(status["Threads"])
        found[f"{name} descriptors"] = float(len(os.listdir(f"/proc/{pid}/fd")))
    return found


def follow(url: str, known: set[str]) -> int:
    """Ask the dashboard for the list, and for one plan; return how many requests were refused."""
    refused = 0
    from dcp_dashboard.library.folder import plan_key  # not for the ranks, whose memory counts

    key = plan_key(f"{random.randrange(KEPT_PLANS)}.dcpplan")
    for path in (f"api/changes?keys={key}", f"api/plan/{key}/mask", f"api/plan/{key}/timeline"):
        try:
            with urllib.request.urlopen(url + path, timeout=60) as answer:
                answer.read()
                known.add(path)
        except urllib.error.HTTPError as error:
            error.close()
            refused += error.code != 404  # not written yet
    return refused


def slopes(samples: list[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """Return the median slope between any two samples (Theil and Sen); growth per minute."""
    minutes = np.array([at for at, _ in samples]) / 60
    first, second = np.triu_indices(len(samples), max(1, len(samples) // 4))  # not of neighbours
    found = {}
    for name in samples[0][1]:
        values = np.array([counted[name] for _, counted in samples])
        rises = (values[second] - values[first]) / (minutes[second] - minutes[first])
        found[name] = round(float(np.median(rises)), 3)
    return found


def watch(minutes: float, folder: Path) -> dict[str, Any]:
    """Start everything, count until it ends, and judge."""
    temporary = folder / "tmp"
    temporary.mkdir()
    (folder / "plans").mkdir()
    start = partial(
        subprocess.Popen,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    command = [sys.executable, __file__, "--minutes", str(minutes), "--folder", str(folder)]
    ranks = [start([*command, "--rank", str(rank)]) for rank in range(RANKS)]
    code = "from dcp_dsl.cli import main; main()"
    command = [sys.executable, "-c", code, "dashboard", str(folder / "plans")]
    board = start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = board.stdout.readline().strip()
        names = {f"rank {rank}": ranks[rank].pid for rank in range(RANKS)}
        samples, known, refused = [], set(), 0
        begin = time.monotonic()
        while all(rank.poll() is None for rank in ranks) and not list(folder.glob("rank-*")):
            refused += follow(url, known)
            try:
                found = sample({**names, "dashboard": board.pid}, temporary)
            except (OSError, KeyError):  # a rank that has just ended
                break
            if len(list(folder.glob("warm-*"))) == RANKS:
                samples.append((time.monotonic() - begin, found))
            time.sleep(1)
        status = [rank.wait(300) for rank in ranks]
    finally:
        for process in (*ranks, board):
            process.kill()
            process.wait()
    assert status == [0] * RANKS, f"a run was aborted: {status}"
    told = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    return judge(minutes, told, samples, refused)


def judge(minutes: float, told: list[dict], samples: list, refused: int) -> dict[str, Any]:
    """Compare slopes with their bounds and batches with those of an undisturbed run."""
    expected = undisturbed(len(told[0]["digests"]))
    wrong = sum(a != b for rank in told for a, b in zip(rank["digests"], expected, strict=True))
    found = slopes(samples)
    above = {n: v for n, v in found.items() if v > BOUNDS[n.rpartition(" ")[2]]}
    levels = {name: statistics.median(counted[name] for _, counted in samples) for name in found}
    return {
        "campaign": "soak",
        "command": f"make soak MINUTES={minutes:g}",
        "cases": sum(len(rank["digests"]) for rank in told),
        "defects": wrong + refused + len(above),
        "wrong batches": wrong,
        "refused requests": refused,
        "planners killed": sum(rank["kills"] for rank in told),
        "planners lost": sum(rank["lost"] for rank in told),
        "resumes": sum(rank["resumes"] for rank in told),
        "seconds_cpu": round(cpu(), 1),
        "bounds_per_minute": BOUNDS,
        "slopes_per_minute": found,
        "medians": levels,
        "above": above,
    }


def table(report: dict[str, Any]) -> str:
    """Return Markdown: what each process held, and how it grew."""
    lines = ["| | median | growth per minute | bound |", "|---|--:|--:|--:|"]
    for name, slope in report["slopes_per_minute"].items():
        bound = report["bounds_per_minute"][name.rpartition(" ")[2]]
        shown = name.replace("_", " ").replace("mib", "(MiB)")
        lines.append(f"| {shown} | {report['medians'][name]:.0f} | {slope:+.2f} | {bound:g} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of such a file")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
    elif options.rank is not None:
        train(options.rank, options.folder, options.minutes)
    else:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            report = watch(options.minutes, Path(folder))
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps(report, indent=1))
        sys.exit(bool(report["defects"]))


if __name__ == "__main__":
    main()
