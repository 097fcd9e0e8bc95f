"""Break one sentence of docs/dcpplan.md at a time, with digests made anew, and judge the plans.

Every plan is read by `dcpm validate` and by tests/planner/second_validator.py. What is accepted is
run against dense attention under the mask of the plan's own spec.
`python tests/fuzz/tamper_fuzz.py --count 10000 --json tests/fuzz/results/tampers.json`; the seed of
a finding alone makes its file again: `--seed 17 --keep FILE`.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "planner"), str(TESTS / "dcp_dsl"), str(TESTS.parent / "docs/playground")]

import numpy as np  # noqa: E402
import second_oracle  # noqa: E402
import second_validator  # noqa: E402
from plan_file_rows import DEVICES, SPECS, File, base  # noqa: E402
from plan_tampers import tamper_of  # noqa: E402

from dcp_planner import Plan, read_plan  # noqa: E402
from dcp_planner.plan.file_check import check_file  # noqa: E402
from dcp_runtime import RunConfig, RunError, open_world, run_plan  # noqa: E402

COMMAND = "python tests/fuzz/tamper_fuzz.py"
MOST_ROWS = 1 << 10  # of a receive buffer: more are valid, and take more memory than a test may


def move_down(plan: Plan) -> Plan:
    """Bring slots far up nearer, each behind all others: the rows stay apart as they were."""
    slot = plan.transfers.slot.copy()
    far = slot > MOST_ROWS
    slot[far] = slot[~far].max(initial=0) + plan.num_tokens * np.arange(1, far.sum() + 1)
    return replace(plan, transfers=replace(plan.transfers, slot=slot))


@cache
def expected_masks(source: str) -> list[np.ndarray] | None:
    """Read the masks of a provenance with the second oracle; `None` if it finds none."""
    held = json.loads(source)
    try:
        parts = []
        for text in held["samples"]:
            sample = json.loads(text)
            spec = f"{held['spec']}\nmask a = {held['mask']}"
            parts.append(second_oracle.dense(spec, sample, sample["len"]))
    except Exception:  # an evaluator without error messages: whatever it raises, it has no mask
        return None
    return parts


def judge_first(path: Path, file: File) -> str:
    """Return the reason of `dcpm validate`, with the digest that the content has; empty: valid."""
    file.write(path)
    found = check_file(str(path))
    told = re.search("its content has ([0-9a-f]{64})", found.message)
    if told:
        file.meta["digest"] = told[1]
        file.write(path)
        found = check_file(str(path))
    return found.message or found.not_compared


def judge_second(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        meta = json.loads(archive.read("meta.json"))
    masks = expected_masks(json.dumps(meta["provenance"]))
    try:
        second_validator.check(path, masks)
    except second_validator.Refused as error:
        return str(error)
    return "" if masks is not None else "no mask to compare with"


@contextmanager
def runner() -> Iterator[Callable[[Path], str]]:
    """Make a function that runs a plan against dense attention; it returns what went wrong."""
    with open_world(DEVICES, 10, "loopback") as world:

        def run(path: Path) -> str:
            plan = read_plan(path).plan
            config = RunConfig(DEVICES, verify=True, transport="loopback", timeout_s=10)
            if plan.transfers.slot.max() > MOST_ROWS:
                plan = move_down(plan)
            try:
                result = run_plan(plan, config, world)
            except RunError as error:
                return str(error)
            return "" if result.verified else f"wrong: {result.errors}"

        yield run


def campaign(first: int, count: int, minutes: float = 60.0) -> Counter[str]:
    """Judge the files of some seeds, until the time is up, and print every finding."""
    end = time.monotonic() + 60 * minutes
    found = Counter[str]()
    ran = {base(n).meta["digest"]: "" for n in range(len(SPECS))}  # digest -> what went wrong
    with tempfile.TemporaryDirectory() as folder, runner() as run:
        path = Path(folder, "x.dcpplan")
        for seed in range(first, first + count):
            if time.monotonic() > end:
                break
            file, sentence = tamper_of(seed)
            reasons = judge_first(path, file), judge_second(path)
            found["cases"] += 1
            if bool(reasons[0]) != bool(reasons[1]):
                found["disagreements"] += 1
                print(f"{seed} {sentence!r}: {reasons}", file=sys.stderr, flush=True)
            if reasons[0]:
                found["refused"] += 1
                continue
            digest = file.meta["digest"]
            if digest not in ran:  # else the devices execute what was run before
                found["executed"] += 1
                ran[digest] = run(path)
            wrong = ran[digest]
            found["wrong" if wrong else "harmless"] += 1
            if wrong:
                print(f"{seed} {sentence!r}: accepted, {wrong}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Run, write the counts as JSON, and end with status 1 after any finding."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path, help="where the counts go")
    parser.add_argument("--keep", type=Path, help="write the first file here and judge nothing")
    options = parser.parse_args()
    if options.keep:
        judge_first(options.keep, tamper_of(options.seed)[0])
        return
    began = time.process_time()
    found = campaign(options.seed, options.count, options.minutes)
    counts = ("cases", "refused", "harmless", "executed", "wrong", "disagreements")
    told = {
        "campaign": "tampers",
        "command": f"{COMMAND} --count {found['cases']} --seed {options.seed}",
    }
    told |= {name: found[name] for name in counts}
    told["seconds_cpu"] = round(time.process_time() - began)
    text = json.dumps(told, indent=1)
    print(text)
    if options.json:
        options.json.parent.mkdir(exist_ok=True)
        options.json.write_text(text + "\n")
    sys.exit(bool(found["wrong"] or found["disagreements"]))


if __name__ == "__main__":
    main()
