"""Every mask of the standard library, planned and run: exact against the dense oracle.

The default run covers every mask, number of ranks, placement and way of routing; the slow one is
their product.
"""

from itertools import product
from pathlib import Path

import pytest
import torch

from dcp_dsl import Sample, block_sparsity, dense_mask, load
from dcp_grammar import MASKS
from dcp_planner import PARTITIONERS, Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime import RunConfig, open_world, run_plan

FILES = sorted(Path(str(MASKS)).glob("*.dcpm"))
LIBRARY = [path for path in FILES if "@keys" not in path.read_text()]  # of one sequence
COPIES = 3  # of the sample of each mask: a packed batch
PLACEMENTS = [p for p in ("static:zigzag", "native", "kahypar") if p in PARTITIONERS]
HEADS = [(2, 2), (4, 2), (3, 1)]
CASES = [
    pytest.param(path, 1 + i % 8, PLACEMENTS[i % len(PLACEMENTS)], HEADS[i % 3], id=path.stem)
    for i, path in enumerate(LIBRARY)
]
PRODUCT = [
    pytest.param(path, ranks, placement, HEADS[1], id=f"{path.stem}-{ranks}-{placement}")
    for path, ranks, placement in product(LIBRARY, range(1, 9), PLACEMENTS)
]


def bind(path):
    """Return the mask with parameters small enough for its sample, and the sample."""
    spec = load(path)
    sample = spec.sample("tiny")
    params = spec.scope.masks[path.stem].params
    small = ", ".join(
        f"{p.name.text} = {2 if p.type.text == 'tokens' else 1}"
        for p in params
        if p.type.text in ("tokens", "int")
    )
    mask = spec.mask(f"{path.stem}({small})" if small else path.stem)
    return mask, Sample({c: sample.columns[c] for c in mask.columns}, sample.length)


def plan_of(path, ranks, placement, heads):
    mask, sample = bind(path)
    sparsity = block_sparsity([mask.compile(sample)] * COPIES, 4, 4)
    nodes = 2 if ranks % 2 == 0 else 1
    config = PlanConfig(partitioner=placement, routing="node" if nodes == 2 else "direct")
    shape = ModelShape(*heads, 8, 4)
    plan = build_plan(sparsity, shape, Cluster(nodes, ranks // nodes), config)
    dense = torch.block_diag(*[torch.tensor(dense_mask(mask, sample))] * COPIES).bool()
    return plan, dense.numpy()


def check(lab, path, ranks, placement, heads):
    plan, dense = plan_of(path, ranks, placement, heads)
    got = lab.check_plan(plan, dense, ranks)
    blind = ~dense.any(1)
    assert (got["out"][blind] == 0).all()
    assert (got["dq"][blind] == 0).all()


@pytest.mark.parametrize(("path", "ranks", "placement", "heads"), CASES)
def test_library_mask_is_exact(lab, path, ranks, placement, heads):
    check(lab, path, ranks, placement, heads)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "ranks", "placement", "heads"), PRODUCT)
def test_library_mask_is_exact_on_every_world(lab, path, ranks, placement, heads):
    check(lab, path, ranks, placement, heads)


@pytest.mark.dist
@pytest.mark.parametrize(
    "ranks", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_library_masks_are_verified_on_real_processes(ranks):
    with open_world(ranks, timeout_s=60) as world:
        for path in LIBRARY[ranks::9]:
            plan, _ = plan_of(path, ranks, "static:zigzag", HEADS[1])
            result = run_plan(plan, RunConfig(ranks, verify=True, check_finite=True), world)
            assert result.verified, (path.stem, result.errors)
