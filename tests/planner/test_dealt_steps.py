"""Who computes which documents of a step, and how long each part of it takes, kept as it is.

That every document runs once, and how far a deal is from the best, is asserted in `test_step`.
"""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from short_texts import short

from dcp_dsl import DatasetError
from dcp_planner import Cluster, ModelShape, PlanError, PlanFileError
from dcp_planner.step.file import read_step, write_step
from dcp_planner.step.iteration import predict_step
from dcp_planner.step.plan_step import levels, plan_step
from dcp_planner.step.policies import RIVALS, StepProblem, StepSetting
from dcp_planner.step.report import read_lengths
from dcp_planner.step.setting import (
    MATMUL_PEAK,
    Assignment,
    Documents,
    StepMesh,
    StepModel,
    step_model,
)

TINY = StepModel(ModelShape(2, 1, 8, 2), 3, 1e6, 4e6, 1e12)
CLUSTER = Cluster(
    2, 4, flops_per_s=1e10, inter_bytes_per_s=1e8, intra_bytes_per_s=1e9, kernel_launch_s=1e-5,
    pass_s=2e-5, kernel_tile=16,
)  # fmt: skip
MIXED = Documents(
    np.array([900, 60, 350, 40, 500, 80, 120, 260, 30, 700, 90, 200]),
    np.array([405e3, 1e3, 61e3, 800.0, 25e3, 3e3, 7e3, 9e3, 400.0, 245e3, 4e3, 20e3]),
)
"""Documents, some of them under windows: fewer pairs than causal ones have."""
SETTINGS = {
    "two replicas": (MIXED, StepSetting(StepMesh(2, 4), TINY, CLUSTER, 2400)),
    "micro-batches and stages": (
        MIXED,
        StepSetting(StepMesh(4, 2, 2, stages=3), TINY, CLUSTER, 1000, "step", even_price=0.3),
    ),
    "groups of two": (MIXED, StepSetting(StepMesh(2, 4), TINY, CLUSTER, 2400, widths=(2, 4))),
    "six devices": (
        Documents.causal([300, 200, 100, 400, 50, 60]),
        StepSetting(StepMesh(3, 2), TINY, replace(CLUSTER, devices_per_node=3), 600),
    ),
    "one document": (
        Documents.causal([500]), StepSetting(StepMesh(2, 4), TINY, CLUSTER, 300, even_price=0.0),
    ),
}  # fmt: skip


def told(assignment):
    return "; ".join(
        f"{batch}:{first}+{width} {','.join(map(str, rows))}"
        for batch, first, width, rows in assignment.groups()
    )


def figures(time):
    parts = (time.seconds, time.linear_s, time.attention_s, time.waiting_s, time.bubble_s,
             time.synchronisation_s)  # fmt: skip
    ms = " ".join(f"{1e3 * part:.4g}" for part in parts)
    return f"{ms} ms, {time.balance:.4g} over balance, {time.max_tokens:.4g} of mean tokens"


@pytest.mark.parametrize("name", SETTINGS)
def test_steps(name, snapshots):
    documents, setting = SETTINGS[name]
    problem, texts = StepProblem.of(documents, setting), []
    is_packed = documents.tokens.max() <= setting.token_budget
    for rival in RIVALS if is_packed else ():
        found = rival.assign(problem)
        took = predict_step(
            documents, found, setting.model, setting.cluster,
            synchronisation=setting.synchronisation, sharding=rival.sharding,
        )  # fmt: skip
        texts.append(f"{rival.name}: {told(found)}\n  {figures(took)}")
    plan = plan_step(documents, setting)
    for level, took in plan.considered.items():
        texts.append(f"{level}: {figures(took)}")
    for level, variants in levels(setting.mesh, len(documents), setting.widths).items():
        dealt = {told(variant(problem)) for variant in variants}
        texts.append(f"{level}: {' | '.join(sorted(dealt))}")
    groups = "; ".join(f"{1e3 * a:.4g}, {1e3 * b:.4g}" for a, b in plan.group_seconds)
    texts.append(f"chosen: {plan.policy}: {told(plan.assignment)}\n  {groups} ms")
    for first, width in ((0, 1), (0, 2), (2, 2), (4, 4), (0, setting.mesh.devices)):
        try:
            texts.append(f"batches of {first}+{width}: {plan.batches(first, width)}")
        except PlanError as error:
            texts.append(f"batches of {first}+{width}: {error}")
    snapshots.check(f"step_{name.replace(' ', '_')}", {"step": "\n".join(texts)})


def test_models_and_what_is_refused(snapshots):
    found = {}
    for name in ("llama-8b", "llama-70b", "gemma-3-12b"):
        for device in MATMUL_PEAK:
            model = step_model(name, f"{device}-dgx")
            half = model.with_heads(replace(model.shape, q_heads=8, kv_heads=8))
            found[f"{name} on {device}"] = (
                f"{model.layers} layers, {1e9 * model.token_seconds:.6g} ns a token, "
                f"{model.parameter_bytes:.6g} bytes; of 8 heads {1e9 * half.token_seconds:.6g} ns, "
                f"{half.parameter_bytes:.6g} bytes"
            )
    column = np.array([0, 1], np.int32)
    cases = {
        "empty document": lambda: Documents.causal([3, 0]),
        "no replica": lambda: StepMesh(0, 1), "no stage": lambda: StepMesh(1, 1, 1, 0),
        "no layer": lambda: replace(TINY, layers=0),
        "negative bytes": lambda: replace(TINY, parameter_bytes=-1.0),
        "micro-batch": lambda: Assignment(StepMesh(2, 1), column, column, column + 1),
        "beyond": lambda: Assignment(StepMesh(2, 1), 0 * column, column, column + 1),
        "before": lambda: Assignment(StepMesh(2, 1), 0 * column, -column, column + 1),
        "width": lambda: Assignment(StepMesh(2, 1), 0 * column, column, column),
        "model": lambda: step_model("llama-9b"), "device": lambda: step_model("llama-8b", "tpu"),
        "widths": lambda: levels(StepMesh(2, 3), 5, (4,)),
        "width 0": lambda: levels(StepMesh(2, 3), 5, (0,)),
        "devices": lambda: plan_step(MIXED, StepSetting(StepMesh(2, 3), TINY, CLUSTER, 99)),
        "few": lambda: plan_step(
            Documents.causal([9]), StepSetting(StepMesh(2, 4, 3), TINY, CLUSTER, 99)
        ),
        "long": lambda: plan_step(MIXED, StepSetting(StepMesh(2, 4), TINY, CLUSTER, 401)),
    }  # fmt: skip
    for name, make in cases.items():
        with pytest.raises(PlanError) as caught:
            make()
        found[name] = str(caught.value)
    levels_of = {n: list(levels(StepMesh(4, 3), n)) for n in (7, 10**6, 10**8)}
    found |= {f"levels of {n} documents": "\n".join(names) for n, names in levels_of.items()}
    snapshots.check("step_models", found)


def test_files(tmp_path, snapshots):
    """A written step, what is read of it, and what is refused."""
    path, setting = tmp_path / "a.dcpstep.json", SETTINGS["micro-batches and stages"][1]
    write_step(path, plan_step(MIXED, setting), MIXED)
    document = json.loads(path.read_text())
    read = read_step(path)
    found = {
        "written": short(document),
        "read": short({name: getattr(read, name) for name in read.__slots__[:-1]}),
        "groups": "\n".join(
            short({name: getattr(group, name) for name in group.__slots__}) for group in read.groups
        ),
    }
    group = document["groups"][0]
    for name, value in (
        ("schema", "dcp.step/2"), ("replicas", 0), ("replicas", 1 << 17), ("replicas", 2.0),
        ("replicas", True), ("context_ranks", 1 << 15), ("stages", -1), ("micro_batches", 4097),
        ("micro_batches", 1), ("step_s", -1), ("step_s", float("nan")), ("step_s", True),
        ("over_balance", "1"), ("max_tokens", 1e300), ("groups", None), ("groups", [3]),
        ("group", {"first": 8}), ("group", {"first": 1, "width": 8}), ("group", {"width": 0}),
        ("group", {"micro_batch": 2}), ("group", {"tokens": []}), ("group", {"documents": 4}),
        ("group", {"tokens": [-1]}), ("group", {"tokens": [(1 << 40) + 1]}),
        ("group", {"linear_s": None}), ("group", {"attention_s": "x"}),
    ):  # fmt: skip
        wrong = {name: value} if name != "group" else {"groups": [group | value]}
        path.write_text(json.dumps(document | wrong))
        with pytest.raises(PlanFileError, match="write it again with `dcpm step") as caught:
            read_step(path)
        text = str(caught.value).removeprefix(f"{path}: ").partition("; write it again")[0]
        found[f"{name} {value}"] = text
    path.write_text(json.dumps(document | {"policy": "x" * 300, "replicas": 8, "context_ranks": 1}))
    found["a long name"] = (
        f"{len(read_step(path).policy)} letters, {read_step(path).devices} devices"
    )
    snapshots.check("step_files", found)


def test_lists_of_lengths(tmp_path, monkeypatch, snapshots):
    path = tmp_path / "lengths.json"

    def said(text):
        path.write_text(text)
        try:
            return str(read_lengths(str(path)))
        except DatasetError as error:
            return re.sub("lengths; .*", "lengths; ...", str(error).removeprefix(f"{path}: "))

    most = 2**31 - 1
    texts = [f"[1, {value}]" for value in (most, 0, -1, most + 1, "true", 1.0, '"1"')]
    found = {text: said(text) for text in (*texts, "{}", "[]", "3", "[1")}
    found["deep"] = said("[" * 100_000)
    monkeypatch.setattr("dcp_planner.step.report.MOST_LENGTHS", 2)
    found |= {f"at most two: {text}": said(text) for text in ("[1, 2]", "[1, 2, 3]")}
    monkeypatch.setattr("dcp_planner.step.report.MOST_FILE_BYTES", 6)
    found |= {f"in six bytes: {text}": said(text) for text in ("[1, 2]", "[1, 22]")}
    with pytest.raises(DatasetError, match="cannot be read: No such file or directory"):
        read_lengths(str(tmp_path / "gone.json"))
    snapshots.check("step_lengths", found)


def test_a_file_of_a_step_of_the_limit_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.dcpstep.json"
    write_step(path, plan_step(MIXED, SETTINGS["two replicas"][1]), MIXED)
    size = path.stat().st_size
    monkeypatch.setattr("dcp_planner.step.file.LIMIT_BYTES", size)
    assert read_step(path).micro_batches == 1
    monkeypatch.setattr("dcp_planner.step.file.LIMIT_BYTES", size - 1)
    with pytest.raises(PlanFileError, match=f"expected at most {size - 1} bytes; plan a smaller"):
        read_step(path)
    for path, says in ((tmp_path / "gone", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(PlanFileError, match=f"cannot be read: {says}"):
            read_step(path)
