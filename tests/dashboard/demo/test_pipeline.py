"""Stages of the demonstration on a small data set."""

from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcp_dashboard.demo import pipeline
from dcp_dashboard.demo.pipeline import (
    DemoConfig,
    Placed,
    Setting,
    choose_batch,
    compile_batch,
    executed_setting,
    planned_setting,
)
from dcp_dsl import DatasetError, Spec, read_dataset
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, simulate

LENGTHS = (40, 90, 30, 70)


@pytest.fixture
def batch(tmp_path):
    """Rows of a data set that fill 200 tokens, compiled."""
    rows = {"length": LENGTHS, "header_len": [10] * 4, "answer_lens": [[n - 10] for n in LENGTHS]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    spec = Spec.from_text('mask mine = causal\nfor "*/rows.parquet" use mine\n')
    dataset = read_dataset(tmp_path / "rows.parquet")
    attachment = spec.attachment((tmp_path / "rows.parquet").as_posix(), dataset.columns)
    setting = Setting(200, ModelShape(2, 1, 16, 4), Cluster(2, 2))
    return spec, dataset, attachment, setting


def test_a_batch_is_compiled_as_its_mask_says(batch):
    made = compile_batch(*batch)
    chosen = choose_batch(LENGTHS, 200)
    assert np.diff(made.sparsity.batch.cu_seqlens).tolist() == [LENGTHS[i] for i in chosen]
    assert made.sparsity.num_pairs == sum(n * (n + 1) // 2 for n in (LENGTHS[i] for i in chosen))
    assert made.provenance.origin == f"rows.parquet, rows {', '.join(map(str, chosen))}"
    assert made.provenance.mask == "mine"
    assert len(made.provenance.samples) == len(made.names) == len(chosen)
    assert [name.split(":")[0] for name in made.names] == [f"row {i}" for i in chosen]
    *rest, setting = batch
    with pytest.raises(DatasetError, match="has 20 tokens or fewer, the shortest has 30"):
        compile_batch(*rest, Setting(20, setting.shape, setting.cluster))


def test_the_report_of_a_batch_counts_its_blocks_and_pairs(batch, tmp_path):
    made, setting = compile_batch(*batch), batch[-1]
    plans = tuple(
        build_plan(made.sparsity, setting.shape, setting.cluster, PlanConfig(name))
        for name in ("static:contiguous", "static:zigzag")
    )
    traces = tuple(map(simulate, plans))
    found = pipeline._batch_report(Placed(made, plans, traces, tmp_path / "a.dcpplan"))
    lengths = [LENGTHS[i] for i in choose_batch(LENGTHS, 200)]
    sparsity, of_sequence = made.sparsity, np.searchsorted(
        made.sparsity.batch.cu_seqlens, made.sparsity.q_bounds[:-1], side="right"
    )  # fmt: skip
    assert asdict(found) | {"compile_s": 0, "methods": 0, "best_static": 0} == {
        "plan": "a.dcpplan", "tokens": sum(lengths), "sequences": len(lengths),
        "block_size": sparsity.block_q, "nodes": 2, "devices": 4, "pairs": sparsity.num_pairs,
        "density": 1.0, "sparsity": 1 - sparsity.num_pairs / sum(n**2 for n in lengths),
        "full_blocks": int((sparsity.kind == 2).sum()),
        "partial_blocks": int((sparsity.kind == 1).sum()),
        "empty_blocks": sum(int((of_sequence == s).sum()) ** 2 for s in set(of_sequence.tolist()))
        - sparsity.num_blocks,
        "compile_s": 0, "methods": 0, "best_static": 0,
    }  # fmt: skip
    assert found.compile_s == made.compile_s
    for method, plan, trace in zip(found.methods, plans, traces, strict=True):
        transfers, node = plan.transfers, setting.cluster.node_of_device
        crosses = node[transfers.source] != node[transfers.target]
        back = transfers.is_backward
        assert method.method == plan.partitioner
        assert method.bytes_forward == transfers.size_bytes[~back].sum()
        assert method.bytes_backward == transfers.size_bytes[back].sum()
        assert method.bytes_between_nodes == transfers.size_bytes[crosses].sum()
        assert method.predicted_s == trace.seconds()
        work = np.bincount(plan.tiles.device, plan.tiles.pairs, 4)
        assert method.compute_imbalance == pytest.approx(work.max() / work.mean())
        tokens = np.bincount(plan.blocks.owner, plan.blocks.num_tokens, 4)
        assert method.over_caps == (("tokens",) if tokens.max() > 1.1 * tokens.mean() else ())
    fastest = min(found.methods, key=lambda method: method.predicted_s)
    assert found.best_static["of_all"] == fastest.method


def test_settings_are_those_of_the_paper_and_of_the_run(tmp_path):
    setting = planned_setting()
    assert (setting.cluster.nodes, setting.cluster.devices_per_node) == (4, 8)
    assert setting.shape == ModelShape(q_heads=8, kv_heads=2, head_dim=128, dtype_bytes=2)
    config = DemoConfig(tmp_path, ranks=3, tokens=999)
    setting = executed_setting(config)
    assert (setting.tokens, setting.cluster.nodes, setting.cluster.num_devices) == (999, 1, 3)
    assert setting.shape == ModelShape(q_heads=4, kv_heads=2, head_dim=64, dtype_bytes=4)
    assert (DemoConfig(tmp_path).ranks, DemoConfig(tmp_path).seed) == (4, 0)
