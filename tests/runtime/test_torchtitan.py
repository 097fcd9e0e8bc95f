"""torchtitan's trainer under the recipe of the examples trains as one process does."""

import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from stack_features import FEATURES, SLOW, TITAN, features_of

HERE = Path(__file__).parent
STAND_IN = HERE / "torchtitan_stand_in" / "torchtitan"
OF_LATER = {"epochs_of_unequal_batches", "balanced_shares", "settings_that_are_refused"}
"""Checks that also run with what stands in for torchtitan after 0.3."""


def packages():
    """What to run: stand-ins for torchtitan 0.3 and its main branch, and itself where it is.

    CI has no torchtitan: it asks for `datasets` below 4.8, and the locks have 5.2.
    """
    return ["0.3", "main"] + (["installed"] if find_spec("torchtitan") else [])


def cases():
    for feature in features_of(TITAN, "supported") + features_of(TITAN, "refused"):
        marks = [pytest.mark.slow] if feature.check in SLOW else []
        for package in packages():
            if package != "main" or feature.check in OF_LATER:
                name = f"{package}-{feature.name}"
                yield pytest.param(package, feature.check, marks=marks, id=name)


@pytest.fixture(scope="module")
def run(start_ranks, tmp_path_factory):
    """Run checks with a package on two ranks; return those that pass."""

    @cache
    def run(package, *checks):
        source, left_out = STAND_IN, {"0.3": "data", "main": "dataloader.py"}.get(package, "-")
        if package == "installed":
            source = Path(find_spec("torchtitan").submodule_search_locations[0])
        folder = tmp_path_factory.mktemp("ranks")
        ignored = shutil.ignore_patterns("__pycache__", left_out)
        shutil.copytree(source, folder / "torchtitan", ignore=ignored)
        outs = start_ranks(2, HERE / "torchtitan_ranks.py", folder, folder, *checks)
        assert outs[0] == outs[1]
        return outs[0].replace(" passed", "").split()

    return run


@pytest.mark.dist
@pytest.mark.parametrize(("package", "check"), list(cases()))
def test_features(package, check, run):
    wanted = {f.check for f in FEATURES if f.stack == TITAN and f.check}
    wanted = SLOW & wanted if check in SLOW else wanted - SLOW | {"configs_of_the_recipe"}
    if package == "main":
        wanted &= OF_LATER
    assert check in run(package, *sorted(wanted))
