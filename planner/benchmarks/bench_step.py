"""Whole training steps: `plan_step` beside published ways to deal documents to devices.

    python planner/benchmarks/bench_step.py --json OUT        # --table OUT prints the table
    python planner/benchmarks/bench_step.py --validate --json OUT   # estimates beside plans

A file that exists keeps the settings that a run leaves out, so that several runs fill it.

Global batches are drawn by `DISTRIBUTIONS` until packs of 131,072 tokens fill every replica and
micro-batch. The model is llama-8b on H100s; pipeline runs share a mesh of 64 devices per stage. All
policies are priced by the same estimate (`dcp_planner.step.iteration`), messages included.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recording import Row, machine, markdown, shown, write

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import PlanConfig, build_plan, preset
from dcp_planner.simulation.simulator import clocks_of
from dcp_planner.step.iteration import Groups, attention_seconds, unevenness
from dcp_planner.step.plan_step import choose_level, even
from dcp_planner.step.policies import RIVALS, StepProblem, StepSetting
from dcp_planner.step.report import PolicyReport, StepReport, compare_policies
from dcp_planner.step.setting import Documents, StepMesh, step_model

SCHEMA = "dcp.bench_step/1"
BUDGET = 131_072
LONGEST = 131_072
MESHES = ((8, 8), (4, 16), (16, 4), (2, 32))
IN_FULL = StepMesh(8, 8, micro_batches=4)
"""The mesh whose results hold the parts of every policy's time, for the picture in docs."""
COMMIT = machine()["commit"]
"""The commit that runs, whatever is checked out meanwhile."""
Draw = Callable[[np.random.Generator, int], Documents]


def _causal(tokens: np.ndarray) -> Documents:
    return Documents.causal(tokens.astype(np.int64))


def _window(tokens: np.ndarray, window: int) -> np.ndarray:
    short = np.minimum(tokens, window).astype(np.float64)
    return short * (short + 1) / 2 + (tokens - short) * window


def longalign(rng: np.random.Generator, count: int) -> Documents:
    """Draw lengths like LongAlign's: 8k and more, one in ten doubled; causal."""
    tokens = np.minimum(8000 + rng.exponential(9500, count), 64_000)
    tokens = np.where(rng.random(count) < 0.1, 2 * tokens, tokens)
    return _causal(np.minimum(tokens, LONGEST))


def ldc_lengths(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw lengths like long data collections': many short, few very long."""
    kind = rng.random(count)
    short, middle, long = (
        np.exp(rng.normal(np.log(median), spread, count))
        for median, spread in ((2200, 1.0), (9000, 0.7), (45_000, 0.8))
    )
    tokens = np.where(kind < 0.55, short, np.where(kind < 0.85, middle, long))
    return np.clip(tokens, 64, LONGEST).astype(np.int64)


def ldc(rng: np.random.Generator, count: int) -> Documents:
    """Draw documents of `ldc_lengths`, causal."""
    return _causal(ldc_lengths(rng, count))


def ldc_local(rng: np.random.Generator, count: int) -> Documents:
    """Draw the same under five layers of window 1,024 to one causal layer."""
    tokens = ldc_lengths(rng, count)
    pairs = (5 * _window(tokens, 1024) + tokens * (tokens + 1) / 2.0) / 6
    return Documents(tokens, pairs)


def mixed(rng: np.random.Generator, count: int) -> Documents:
    """Draw the same, every second document under a window of 4,096."""
    tokens = ldc_lengths(rng, count)
    is_local = rng.random(count) < 0.5
    pairs = np.where(is_local, _window(tokens, 4096), tokens * (tokens + 1) / 2.0)
    return Documents(tokens, pairs)


def sft(rng: np.random.Generator, count: int) -> Documents:
    """Draw chats: a thousand tokens, one in a thousand long; causal."""
    tokens = rng.exponential(1000, count)
    long = rng.normal(37_000, 15_000, count)
    tokens = np.where(rng.random(count) < 0.0011, long, tokens)
    return _causal(np.clip(tokens, 32, LONGEST))


def grpo(rng: np.random.Generator, count: int) -> Documents:
    """Draw a prompt with eight answers that do not see each other."""
    prompt = np.exp(rng.normal(np.log(1500), 0.8, count)).astype(np.int64) + 1
    answers = np.exp(rng.normal(np.log(2500), 0.9, (count, 8)))
    answers = np.minimum(answers, (LONGEST - prompt[:, None]) // 8).astype(np.int64) + 1
    alone = prompt * (prompt + 1) / 2.0
    pairs = alone + (answers * prompt[:, None] + answers * (answers + 1) / 2.0).sum(1)
    tokens = np.minimum(prompt + answers.sum(1), LONGEST)
    return Documents(tokens, pairs)


DISTRIBUTIONS: dict[str, Draw] = {
    "LongAlign-like": longalign,
    "LDC-like": ldc,
    "LDC-like, 5 local : 1": ldc_local,
    "mixed masks": mixed,
    "SFT-like": sft,
    "GRPO-like": grpo,
}


def draw_step(draw: Draw, seed: int, packs: int) -> Documents:
    """Draw documents until `packs` packs in their order are full."""
    found = draw(np.random.default_rng(seed), packs * BUDGET // 500)
    used = pack = count = 0
    for size in found.tokens.tolist():
        if used + size > BUDGET:
            pack, used = pack + 1, 0
            if pack == packs:
                break
        used, count = used + size, count + 1
    return Documents(found.tokens[:count], found.pairs[:count])


@click.command()
@click.option("--steps", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--only", multiple=True, help="A distribution; repeat.  [default: all]")
@click.option("--json", "out", type=click.Path(dir_okay=False), help="File to write.")
@click.option("--table", type=click.Path(exists=True), help="Print the table of such a file.")
@click.option("--validate", is_flag=True, help="Compare estimates with simulated plans.")
def main(
    steps: int, only: tuple[str, ...], out: str | None, table: str | None, validate: bool
) -> None:
    """Run the benchmark, or print the table of its results."""
    if table is not None:
        click.echo(to_table(json.loads(Path(table).read_text())))
        return
    document = _started(out)
    if validate:
        document["estimate"] = _validate()
    for name in () if validate else only or DISTRIBUTIONS:
        for replicas, ranks in MESHES:
            for micro_batches, stages in ((1, 1), (4, 1), (8, 4)):
                row = run(name, StepMesh(replicas, ranks, micro_batches, stages), steps)
                document["rows"] = _put(document["rows"], row)
                click.echo(_line(row), err=True)
                if out is not None:
                    write(Path(out), document)
    if out is not None:
        write(Path(out), document)
    click.echo(to_table(document))


def _started(out: str | None) -> dict[str, Any]:
    """Return the document that a run adds to (`Any`: JSON)."""
    if out is not None and Path(out).exists():
        return dict(json.loads(Path(out).read_text())) | {"machine": machine()}
    return {"schema": SCHEMA, "machine": machine(), "rows": [], "estimate": None}


def _put(rows: list[Row], row: Row) -> list[Row]:
    """Put a row into its place, instead of an older one of the same setting."""
    names = list(DISTRIBUTIONS)

    def key(one: Row) -> tuple[int, int, int]:
        meshes = [f"{replicas}x{ranks}" for replicas, ranks in MESHES]
        return (
            names.index(one["distribution"]), meshes.index(one["mesh"]), one["micro_batches"]
        )  # fmt: skip

    return sorted([*(old for old in rows if key(old) != key(row)), row], key=key)


def run(name: str, mesh: StepMesh, steps: int) -> Row:
    """Plan and price one setting."""
    setting = StepSetting(mesh, step_model("llama-8b"), preset("h100-dgx", nodes=8), BUDGET)
    packs = mesh.replicas * mesh.micro_batches
    drawn = [draw_step(DISTRIBUTIONS[name], seed, packs) for seed in range(steps)]
    cpu = []
    for documents in drawn[:5]:
        start = time.process_time()
        compare_policies([documents], setting, [])
        cpu.append(time.process_time() - start)
    report = compare_policies(drawn, setting, RIVALS)
    parts = {policy.name: policy.to_json() for policy in report.policies}
    return {
        "distribution": name,
        "mesh": f"{mesh.replicas}x{mesh.context_ranks}",
        "micro_batches": mesh.micro_batches,
        "stages": mesh.stages,
        "plan_cpu_s": statistics.median(cpu),
        "speedup": {rival: report.speedup_over(rival) for rival in report.rivals},
        "worst": {rival: _worst(report, rival) for rival in report.rivals},
        "over_balance": report.policies[0].mean("balance"),
        "bound": statistics.geometric_mean(_bound(step, setting) for step in drawn),
        "max_tokens": report.policies[0].mean("max_tokens"),
        "most_tokens": max(time.max_tokens for time in report.policies[0].times),
        "time_alone": _time_alone(report, drawn, setting),
        "step_s": report.policies[0].mean("seconds"),
        "steps": steps,
        "commit": COMMIT,
        "levels": report.levels,
        **({"policies": parts} if mesh == IN_FULL else {}),
    }


def _bound(step: Documents, setting: StepSetting) -> float:
    """Return the least time over perfect balance that the estimate allows."""
    problem = StepProblem.of(step, setting)
    return bound_seconds(problem) * setting.mesh.devices / float(problem.seconds.sum())


def bound_seconds(problem: StepProblem) -> float:
    """Return a time that no plan of this estimate beats, without messages; O(N log devices).

    Each document takes at least its work on the fewest devices, a power of two, that may hold its
    tokens and compute it in that time; all devices together compute no faster than each.
    """
    devices = problem.setting.mesh.devices
    widths = np.minimum(2 ** np.arange(devices.bit_length() + 1), devices).astype(np.float64)
    uneven = 1 + unevenness(widths, problem.setting.cluster)[:, None]
    work = problem.linear + problem.attention * uneven
    fits = problem.documents.tokens / widths[:, None] <= problem.room
    fits[-1] = True

    def least(limit: float) -> float:
        able = fits & (work / widths[:, None] <= limit)
        able[-1] = True
        return float(np.where(able, work, np.inf).min(0).sum()) / devices

    low, high = float(problem.seconds.sum()) / devices, 2 * float(work[-1].sum()) / devices
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if least(middle) <= middle else (middle, high)
    return high


def _time_alone(report: StepReport, drawn: list[Documents], setting: StepSetting) -> Row:
    """Return the means of plans that time alone chooses: what even tokens cost."""
    levels = {p.name: p.times for p in report.policies[1:] if not p.is_rival}
    chosen = []
    for place, documents in enumerate(drawn):
        considered = {name: times[place] for name, times in levels.items()}
        problem = StepProblem.of(documents, setting)
        chosen.append(considered[choose_level(considered, problem.most_tokens, even_price=0.0)])
    return PolicyReport("time alone", tuple(chosen)).to_json()


def _worst(report: StepReport, rival: str) -> float:
    """Return the smallest speedup over a rival on any step."""
    times = {policy.name: policy.times for policy in report.policies}
    pairs = zip(times["plan_step"], times[rival], strict=True)
    return min(theirs.seconds / ours.seconds for ours, theirs in pairs)


def _line(row: Row) -> str:
    return json.dumps(
        {key: row[key] for key in ("distribution", "mesh", "micro_batches", "speedup")}
    )


def to_table(document: dict[str, Any]) -> str:
    """Return the table of a run (`Any`: JSON)."""
    header = [
        "documents", "steps", "mesh", "micro-batches", "stages", "over round-robin",
        "over the best rival", "worst step", "over balance", "at least", "tokens max",
        "worst step", "time alone: time", "tokens max", "CPU ms",
    ]  # fmt: skip
    lines = []
    for row in document["rows"]:
        best = min(row["speedup"], key=row["speedup"].get)
        lines.append(
            [
                row["distribution"],
                str(row["steps"]),
                row["mesh"],
                str(row["micro_batches"]),
                str(row["stages"]),
                shown(row["speedup"]["round-robin"]),
                f"{shown(row['speedup'][best])} ({best})",
                shown(min(row["worst"].values())),
                shown(row["over_balance"]),
                shown(row["bound"]),
                shown(row["max_tokens"]),
                shown(row["most_tokens"]),
                shown(row["time_alone"]["step_s"] / row["step_s"]),
                shown(row["time_alone"]["max_tokens"]),
                shown(row["plan_cpu_s"], ".0f", 1e3),
            ]
        )
    commits = ", ".join(dict.fromkeys(row["commit"] for row in document["rows"]))
    note = (
        f"Geometric means of predicted times; {document['machine']['processor']}; rows of {commits}"
    )
    return f"{markdown(header, lines)}\n\n{note}.\n{_estimate_text(document['estimate'])}"


def _estimate_text(estimate: dict[str, Any] | None) -> str:
    """Write how far the estimate is from simulated plans (`Any`: JSON)."""
    if estimate is None:
        return ""
    told = [
        f"{name} ({found['plans']} plans): half within {found['half']:.1%}, nine of ten within "
        f"{found['nine_of_ten']:.1%}, worst {found['worst']:.1%} off"
        for name, found in estimate["errors"].items()
    ]
    return f"Estimates of attention beside simulated plans, {'; '.join(told)}.\n"


FITTED = ("LongAlign-like", "LDC-like"), range(3)
"""Distributions and seeds of the plans to which the constants of the estimate were fitted."""


def _validate() -> dict[str, Any]:
    """Compare estimates with simulated plans: those of the fit, and others (`Any`: JSON)."""
    rows = [
        _estimated(name, width, seed)
        for names, seeds in (FITTED, (FITTED[0], range(3, 6)), (("SFT-like",), range(2)))
        for name in names
        for width in (8, 16, 32, 64)
        for seed in seeds
    ]
    errors = {}
    groups = {
        "fitted": [row for row in rows if row["is_fitted"]],
        "other seeds": [r for r in rows if not r["is_fitted"] and r["distribution"] in FITTED[0]],
        "another distribution, SFT-like": [r for r in rows if r["distribution"] == "SFT-like"],
    }
    for label, own in groups.items():
        off = np.abs([row["plan_s"] / row["estimate_s"] - 1 for row in own])
        half, most = np.quantile(off, (0.5, 0.9)).tolist()
        errors[label] = {
            "plans": len(own), "half": half, "nine_of_ten": most, "worst": float(off.max())
        }  # fmt: skip
    return {"errors": errors, "rows": rows}


def _estimated(name: str, width: int, seed: int) -> Row:
    """Estimate the first group of a step, and simulate its plan."""
    model, cluster = step_model("llama-8b"), preset("h100-dgx", nodes=8)
    config = PlanConfig(
        "native", budget="fast", compute_tolerance=0.03, token_tolerance=0.05, partials="input"
    )
    mask = Spec.from_text("mask m = causal").mask("m")
    mesh = StepMesh(8, 8)
    documents = draw_step(DISTRIBUTIONS[name], seed, mesh.replicas)
    problem = StepProblem.of(documents, StepSetting(mesh, model, cluster, BUDGET))
    _, _, _, rows = next(iter(even(width, 0.02)(problem).groups()))
    own = replace(cluster, nodes=width // 8)
    tokens = documents.tokens[rows]
    forms = [mask.compile(Sample({}, int(size))) for size in tokens]
    block = 1024 if width < 64 else 2048
    plan = build_plan(block_sparsity(forms, block, block), model.shape, own, config)
    group = Groups(
        tokens.astype(np.float64), documents.pairs[rows],
        np.zeros(len(rows), np.int64), np.array([float(width)]),
    )  # fmt: skip
    return {
        "distribution": name, "devices": width, "seed": seed,
        "is_fitted": name in FITTED[0] and seed in FITTED[1],
        "estimate_s": float(attention_seconds(group, model.shape, own)[0]),
        # Of the devices: the linear part of a layer hides the host.
        "plan_s": sum(one.device_ns for one in clocks_of(plan).values()) / 1e9,
    }  # fmt: skip


if __name__ == "__main__":
    main()
