"""What the first plan after an installation has to compile."""

import json
import subprocess
import sys

import click.testing
from numba import njit

from dcp_planner.commands.plan import plan
from dcp_planner.jit import INT, announced, compiled, inner

_COUNT = """
import importlib, json, pkgutil
import numpy as np
from numba.core.registry import CPUDispatcher
import dcp_planner
from dcp_dsl import Sample, Spec
from dcp_planner import Cluster, ModelShape, build_plan, cut_blocks, choose_block_size
from dcp_planner import validate
cluster = Cluster(2, 2)
mask = Spec.from_text("mask m = causal").mask("m")
for lengths in ([4000, 100], [90]):
    forms = [mask.bind(Sample(length=n)) for n in lengths]
    plan = build_plan(cut_blocks(forms, choose_block_size(forms, cluster)), ModelShape(), cluster)
    validate(plan)
found = {}
for module in pkgutil.walk_packages(dcp_planner.__path__, "dcp_planner."):
    if "worker" not in module.name:
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, CPUDispatcher):
                found[f"{value.py_func.__module__}.{name}"] = len(value.signatures)
print(json.dumps(found))
"""


def test_every_compiled_function_is_compiled_once(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    found = json.loads(run.stdout)
    assert len(found) > 20
    assert {name: count for name, count in found.items() if count > 1} == {}
    assert run.stderr == ""


def test_compiling_is_told_once():
    told = []
    double = njit(lambda x: x + x)
    with announced(lambda: told.append(1)):
        assert told == []
        double(1)
        double(1.0)
    njit(lambda x: x)(1)
    assert told == [1]
    with announced(lambda: told.append(1)):
        double(1)  # compiled already
    assert told == [1]


def test_plan_says_that_the_planner_is_compiled(tmp_path, monkeypatch):
    from dcp_planner.batches import planning

    plan_batch = planning.plan_batch

    def on_an_empty_cache(batch, how):
        njit(lambda x: x)(1)
        return plan_batch(batch, how)

    spec = tmp_path / "a.dcpm"
    spec.write_text("mask m = causal\n")
    options = ["--sample", '{"len": 64}', "--mask", "m", "--cluster", "1x2", "--json"]

    def said():
        run = click.testing.CliRunner().invoke(plan, [str(spec), *options])
        assert run.exit_code == 0, run.output
        assert json.loads(run.stdout)["schema"]
        return run.stderr.count("compiling the planner (once per installation)")

    said()
    assert said() == 0
    monkeypatch.setattr(planning, "plan_batch", on_an_empty_cache)
    assert said() == 1


def test_what_cannot_be_cached_is_compiled_all_the_same():
    made = {}
    exec(compile("def f(x): return x + 1", "<nowhere>", "exec"), made)
    assert compiled(made["f"])(1) == 2
    assert len(inner(INT(INT))(made["f"]).signatures) == 1


def test_what_calls_changed_code_of_another_file_is_compiled_anew(tmp_path):
    function = "@inner(INT(INT))\ndef {0}(x):\n    return {1}\n"
    (tmp_path / "middle.py").write_text(
        "from dcp_planner.jit import INT, inner\nfrom called import f\n"
        + function.format("g", "2 * f(x)")
    )
    (tmp_path / "caller.py").write_text(
        "from dcp_planner.jit import compiled\nfrom middle import g\n"
        "@compiled\ndef h(x):\n    return g(x)\nprint(h(1), len(h.stats.cache_hits))\n"
    )
    said = []
    for added in (1, 1, 20):
        (tmp_path / "called.py").write_text(
            "from dcp_planner.jit import INT, inner\n" + function.format("f", f"x + {added}")
        )
        run = subprocess.run(
            [sys.executable, "-B", "-c", "import caller"],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
        said.append(run.stdout.split())
    assert said == [["4", "0"], ["4", "1"], ["42", "0"]]
