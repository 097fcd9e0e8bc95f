"""The locks pin what constraints.txt pins, and every file in them has a hash."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def pins(path):
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\\n]+)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("name", ["runtime", "dev", "uv"])
def test_locks_are_in_step_with_the_constraints(name):
    path = ROOT / ".ci" / "locks" / f"{name}.txt"
    locked, wanted = pins(path), pins(ROOT / "constraints.txt")
    assert {package: locked[package] for package in locked.keys() & wanted} == {
        package: wanted[package] for package in locked.keys() & wanted
    }
    entries = re.split(r"^(?=[A-Za-z0-9])", path.read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)


def test_only_torch_is_constrained_and_not_locked():
    locked = pins(ROOT / ".ci" / "locks" / "dev.txt")
    assert pins(ROOT / "constraints.txt").keys() - locked.keys() <= {"torch"}
