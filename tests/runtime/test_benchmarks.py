"""Benchmarks that write JSON; what they measure needs a small batch only."""

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType

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
