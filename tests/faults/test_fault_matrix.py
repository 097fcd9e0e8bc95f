"""A part of the fault matrix, and that the campaign finds what is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.dist


def run(*command: str) -> tuple[int, dict, str]:
    """Run the campaign; give its exit status, its report and what it told."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True, text=True, timeout=3600, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


WRONG = """
import places
from dcp_dsl import DCPError

class InPlace(places.PlanWrite):
    name = "in place"
    def act(self, armed):
        data = self.target.read_bytes()
        with armed():
            try:
                with open(self.target, "wb", buffering=0) as file:
                    file.write(data)
            except OSError:
                return "refused"
        return "written"

class Aborted(places.Exchange):
    name = "aborted"
    points = (0,)
    def act(self, armed):
        import socket
        one, other = socket.socketpair()
        with armed():
            one.send(b"x")
        return "all batches"

places.PLACES.update({place.name: place for place in (InPlace, Aborted)})
import fault_matrix
run = fault_matrix.run

def both(right, faults, first):
    found = run(right, faults, first) + run(["upload"], ["rmdir"], first)
    return found + run(["in place", "aborted"], ["EIO", "SIGKILL"], 2)

fault_matrix.run = both
fault_matrix.main()
"""
PLACES, FAULTS = ("plan write", "exchange"), ("ENOSPC", "rmdir", "SIGKILL")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Run a part of the matrix, with two places that are wrong; give the report's cells."""
    script = tmp_path_factory.mktemp("faults") / "wrong.py"
    script.write_text(WRONG)
    places = [f"--place={place}" for place in PLACES]
    status, report, _ = run(str(script), "--first=0", *places, *[f"--fault={f}" for f in FAULTS])
    assert status == 1
    return report["cells"]


def test_a_full_disk_a_lost_folder_and_a_kill_abort_nothing_and_tear_no_file(found):
    outcomes = [found[place][fault] for place in PLACES for fault in FAULTS]
    outcomes.append(found["upload"]["rmdir"])
    assert all(outcomes)
    assert not [outcome for outcome in outcomes if "DEFECT" in outcome]


def test_torn_files_and_aborted_runs_are_found(found):
    # Opened but not written: torn. Refused before it was opened: not.
    assert found["in place"]["EIO"]["DEFECT"] >= 1
    assert found["in place"]["EIO"]["refused"] >= 1
    assert found["in place"]["SIGKILL"]["DEFECT"] >= 1
    assert found["aborted"]["EIO"]["DEFECT"] == 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_fault_at_any_place_aborts_a_run_loses_a_batch_or_tears_a_file():
    status, report, told = run(str(HERE / "fault_matrix.py"))
    assert status == 0, told
    assert report["cases"] > 300
