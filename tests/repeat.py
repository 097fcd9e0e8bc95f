"""Run the same tests many times, beside busy processes, and count the red runs.

`make test-flaky` calls this: a test that waits for others must pass whoever else needs the cores.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter


def main() -> None:
    """Run, count, and end with status 1 after any red run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=int)
    parser.add_argument("--load", type=int, default=0, help="busy processes beside the tests")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()
    endless = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(endless) for _ in range(options.load)]
    try:
        failed: Counter[str] = Counter()
        red = sum(_is_red(options.pytest, failed, i + 1) for i in range(options.times))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    passed = options.times - red
    print(f"{passed} of {options.times} runs passed beside {options.load} busy processes")
    for test, times in failed.most_common():
        print(f"{times:4} {test}")
    sys.exit(red > 0)


def _is_red(arguments: list[str], failed: Counter[str], number: int) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *arguments]
    wide = os.environ | {"COLUMNS": "300"}  # pytest cuts a reason at the width of the terminal
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=wide)
    reasons = re.findall(r"^(?:FAILED|ERROR) (.+)", done.stdout, re.MULTILINE)
    failed.update(reason.split()[0] for reason in reasons)
    print(f"run {number}: {done.stdout.strip().splitlines()[-1]}", *reasons, sep="\n  ", flush=True)
    return done.returncode != 0


if __name__ == "__main__":
    main()
