"""`dcpm plan` on a data set says where fewer nodes for each batch would be faster."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcp_planner import ModelShape, PlanConfig, build_plan, find_cluster, predict
from dcp_planner.batches.batch import pack_dataset
from dcp_planner.batches.narrower import Comparison
from dcp_planner.batches.planning import PlanningChoices, plan_batch
from dcp_planner.commands.plan import plan

SPEC = 'mask m = causal\nfor "*.jsonl" use m\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.dcpm").write_text(SPEC)
    rows = [{"len": n} for n in (3000, 1200, 700, 2100, 400, 1800, 2500, 900)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def told(folder: Path, cluster: str, *more: str) -> str:
    arguments = [
        str(folder / "a.dcpm"), "--dataset", str(folder / "a.jsonl"), "--tokens", "4k",
        "--cluster", cluster, "--budget", "fast", *more,
    ]  # fmt: skip
    found = CliRunner().invoke(plan, arguments)
    assert found.exit_code == 0, found.output
    return found.stderr


def test_short_batches_on_many_nodes_are_faster_side_by_side(folder: Path) -> None:
    text = told(folder, "a100-p4de:2x2")
    assert "note: 2 groups of 1 x 2 devices, each with a batch of its own" in text
    assert "dcpm step" in text


@pytest.mark.parametrize("more", [["--cluster", "1x4"], ["--backend", "static:zigzag"]])
def test_one_node_and_static_layouts_hear_nothing(folder: Path, more: list[str]) -> None:
    assert "groups of" not in told(folder, "a100-p4de:2x2", *more)


def test_more_groups_than_batches_are_not_offered(folder: Path) -> None:
    rows = (folder / "a.jsonl").read_text().splitlines()
    (folder / "a.jsonl").write_text(rows[0] + "\n")
    assert "groups of" not in told(folder, "a100-p4de:2x2")


def test_the_share_is_that_of_a_plan_on_the_narrow_cluster(folder: Path) -> None:
    from dcp_dsl import load

    wide, narrow = find_cluster("a100-p4de:2x2"), find_cluster("a100-p4de:1x2")
    config = PlanConfig(budget="fast", partials="input", divisions=2)
    choices = PlanningChoices(ModelShape(8, 2, 128), wide, config, 256)
    packed = pack_dataset(load(folder / "a.dcpm"), str(folder / "a.jsonl"), None, 4096)
    batch = packed.batch(0, 256)
    compared = Comparison(choices)
    compared.add(batch, plan_batch(batch, choices))
    found = compared.best()
    assert found is not None
    alone = predict(build_plan(batch[0].sparsity, choices.shape, narrow, config)).seconds
    # A quick search has fewer candidates than a plan, so its estimate is no shorter.
    assert alone / 2 / compared.wide_s <= found.share <= 1.2 * alone / 2 / compared.wide_s
