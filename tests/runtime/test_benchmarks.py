"""Benchmarks that write JSON; what they measure needs a small batch only."""

import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "runtime" / "benchmarks"
SCHEDULE = "megatron.core.pipeline_parallel.hybrid_cp_schedule"


class EverythingEverywhere:
    """Stands for Megatron's scheduler: one group, in which all ranks have all samples."""

    def __init__(self, *_):
        pass

    def get_groups_and_subsamples(self, samples, _):
        return None, [[[number for number, _ in samples]] * 8]


def test_the_benchmark_of_schedulers_writes_its_ratios(tmp_path, monkeypatch, capsys):
    for name in (*(SCHEDULE.rsplit(".", n)[0] for n in (3, 2, 1)), SCHEDULE):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[SCHEDULE].BalancedCPScheduler = EverythingEverywhere
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--batches", "1", "--json", str(out)])
    runpy.run_path(str(BENCHMARKS / "bench_cp_scheduler.py"), run_name="__main__")
    ratios = json.loads(out.read_text())["work_ratios"]
    assert list(ratios) == ["causal", "causal, window of 512"]
    printed = capsys.readouterr().out
    for name, (ratio,) in ratios.items():
        assert 0 < ratio <= 1.01  # perfect balance is no worse than any dealing
        assert f"{name}: {ratio:.2f} x" in printed


@pytest.fixture
def bench_emulated(monkeypatch):
    """Import the benchmark of emulated clusters with the modules beside it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = importlib.import_module("bench_emulated")
    yield found
    for name in ("bench_emulated", "emulated_network", "emulated_ranks"):
        sys.modules.pop(name, None)


def emulated_row(layout, predicted_ms, *sockets_ms, batch="b"):
    return {
        "cluster": "4x4", "order": "grouped", "dilation": 500, "batch": batch, "layout": layout,
        "predicted_s": predicted_ms / 1e3, "fair_s": predicted_ms / 1e3,
        "threads_s": predicted_ms / 1e3, "sockets_s": [ms / 1e3 for ms in sockets_ms],
    }  # fmt: skip


def test_tables_of_emulated_clusters(bench_emulated):
    rows = [
        emulated_row("default", 10, 9, 11, 10), emulated_row("zigzag", 15, 15),
        emulated_row("ring", 12, 12.6), emulated_row("grid", 16, 11.7),
        emulated_row("rival fcp", 11, 13), emulated_row("default", 5, 5, batch="c"),
    ]  # fmt: skip
    table = bench_emulated.to_table({"machine": {"processor": "p", "commit": "c"}, "rows": rows})
    first = next(line for line in table.splitlines() if line.startswith("| 4x4, grouped, b"))
    # The best static layout is ring as predicted, and grid over sockets.
    assert "10.0 > 10.0" in first
    assert first.endswith("| 1.20 > 1.17 |")
    second = next(line for line in table.splitlines() if line.startswith("| 4x4, grouped | 6"))
    # Of 10 pairs of batch b all are at least 5 % apart; grid overtakes ring, zigzag and fcp,
    # and ring overtakes fcp.
    assert second.endswith("| 4 of 10 |")
    assert "| fcp | 1 | 1.10 (1.10 to 1.10) | 1.30 (1.30 to 1.30) |" in table
    assert bench_emulated.to_table({"rows": []}) == "no plan has been measured"


def test_without_namespaces_it_says_why_and_what_else_there_is(bench_emulated, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    bench_emulated.main()
    told = capsys.readouterr().err
    assert "network namespaces need root" in told
    assert "dcpm run PLAN --emulate" in told
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(bench_emulated.emulated_network.shutil, "which", lambda name: None)
    bench_emulated.main()
    assert "ip and tc not found; install iproute2" in capsys.readouterr().err


def test_batches_are_named_counted_or_all(bench_emulated):
    everything = bench_emulated.chosen("all")
    assert [each["id"] for each in bench_emulated.chosen("12")] == [
        each["id"] for each in everything[:: len(everything) // 12][:12]
    ]
    assert [each["id"] for each in bench_emulated.chosen(",".join(bench_emulated.BATCHES))] == [
        *bench_emulated.BATCHES
    ]
    with pytest.raises(SystemExit, match="unknown batch 'x'; expected some of"):
        bench_emulated.chosen("x")


def test_what_is_measured_is_kept_and_not_measured_again(bench_emulated, monkeypatch, tmp_path):
    out, asked = tmp_path / "out.json", []

    def measure(plans, dilation, repeats, folder, done):
        asked.append(len(plans))
        if len(asked) == 1:
            done(0, [(0.01, 0.02)])
            raise KeyboardInterrupt
        for number in range(len(plans)):
            done(number, [(0.01, 0.02)])

    small = bench_emulated.ModelShape(1, 1, 8, 2)
    sparsity = bench_emulated.cut_blocks(
        bench_emulated.sequences_of({"mask": "causal", "mask_params": {}, "seqlens": [512]}), 64
    )
    cluster = bench_emulated.find_cluster("1x2")
    plans = [
        (name, bench_emulated.build_plan(sparsity, small, cluster, bench_emulated.PlanConfig(way)))
        for name, way in (("zigzag", "static:zigzag"), ("ring", "static:ring"))
    ]
    monkeypatch.setattr(bench_emulated, "plans_of", lambda *_: plans)
    monkeypatch.setattr(bench_emulated.emulated_network, "why_not", lambda: "")
    monkeypatch.setattr(bench_emulated.emulated_ranks, "measure", measure)
    batch = bench_emulated.BATCHES[0]
    monkeypatch.setattr(
        sys, "argv",
        ["bench", "--clusters", "1x2", "--batches", batch, "--json", str(out), "--resume"],
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        bench_emulated.main()
    assert [row["layout"] for row in json.loads(out.read_text())["rows"]] == ["zigzag"]
    bench_emulated.main()
    assert asked == [2, 1]
    rows = json.loads(out.read_text())["rows"]
    assert [row["layout"] for row in rows] == ["zigzag", "ring"]
    assert rows[0]["sockets_s"] == [0.03]


@pytest.mark.dist
@pytest.mark.timing
def test_two_devices_over_shaped_sockets(bench_emulated, tmp_path):
    if reason := bench_emulated.emulated_network.why_not():
        pytest.skip(reason)
    sparsity = bench_emulated.cut_blocks(
        bench_emulated.sequences_of({"mask": "causal", "mask_params": {}, "seqlens": [8192]}), 1024
    )
    plan = bench_emulated.build_plan(
        sparsity, bench_emulated.SHAPE, bench_emulated.find_cluster("2x1"),
        bench_emulated.PlanConfig("static:ring"),
    )  # fmt: skip
    found = []
    bench_emulated.emulated_ranks.measure(
        [plan], 500, 2, tmp_path, lambda number, runs: found.append((number, runs))
    )
    ((number, runs),) = found
    assert number == 0
    # No run is faster than its links and kernels; a busy machine may make it slower.
    predicted_s = bench_emulated.simulate(plan).seconds()
    assert min(map(sum, runs)) > 0.9 * predicted_s
    left = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert f"dcp{os.getpid()}" not in left
