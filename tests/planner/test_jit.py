"""What the first plan after an installation has to compile."""

import json
import subprocess
import sys

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
for module in pkgutil.iter_modules(dcp_planner.__path__, "dcp_planner."):
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
