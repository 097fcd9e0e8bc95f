"""The recipe for torchtitan, with its patch, trains as one process does."""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PATCH = HERE.parent.parent / "examples" / "torchtitan.patch"


@pytest.mark.dist
def test_two_ranks_give_loss_and_gradients_of_one(tmp_path, start_ranks):
    """Of torchtitan where it is installed, else of a stand-in with the same call sites.

    CI has no torchtitan: it asks for `datasets` below 4.8, and the locks have 5.2.
    """
    found = find_spec("torchtitan")
    package = HERE / "torchtitan_stand_in" / "torchtitan"
    if found is not None and found.submodule_search_locations:
        package = Path(found.submodule_search_locations[0])
    shutil.copytree(package, tmp_path / "torchtitan", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", "-C1", "--unsafe-paths", PATCH], cwd=tmp_path, check=True)
    patched = tmp_path / "torchtitan" / "distributed" / "context_parallel" / "api.py"
    assert "moves_keys" in patched.read_text()
    script = HERE / "torchtitan_ranks.py"
    assert start_ranks(2, script, tmp_path, tmp_path) == ["equal\n"] * 2
