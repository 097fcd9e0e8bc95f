"""Communication runs while devices compute: the share that is exposed, with overlap and without."""

import pytest

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime.emulation.emulate import emulate_once

RANKS = 4


def exposed(plan, *, overlap):
    """Return the share of the time for which the rank that waits longest waits."""
    trace = emulate_once(plan, overlap=overlap)
    return trace.lane_seconds("wait", RANKS).max() / trace.seconds()


def test_a_fifth_at_most_is_exposed_and_without_overlap_more_than_half():
    mask = Spec.from_text("mask m = causal").mask("m")
    sparsity = block_sparsity([mask.bind(Sample(length=32_768))], 1024, 1024)
    # The interpreter runs; devices and links are slow enough that messages weigh as much as tiles.
    cluster = Cluster(devices_per_node=RANKS, flops_per_s=9.6e9, intra_bytes_per_s=2.8e6)
    config = PlanConfig("static:zigzag", divisions=8)
    plan = build_plan(sparsity, ModelShape(1, 1, 16, 4), cluster, config)
    assert exposed(plan, overlap=True) <= 0.2
    assert exposed(plan, overlap=False) > 0.5


def test_nothing_is_exposed_where_nothing_travels():
    mask = Spec.from_text("mask m = causal").mask("m")
    sparsity = block_sparsity([mask.bind(Sample(length=64))] * RANKS, 16, 16)
    plan = build_plan(
        sparsity, ModelShape(1, 1, 16, 4), Cluster(1, RANKS), PlanConfig("static:documents")
    )
    assert not len(plan.transfers)
    assert exposed(plan, overlap=False) == pytest.approx(0)
