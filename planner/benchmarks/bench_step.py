"""Whole training steps: `plan_step` beside published ways to deal documents to devices.

    python planner/benchmarks/bench_step.py --json OUT        # --table OUT prints the table
    python planner/benchmarks/bench_step.py --validate        # estimates beside simulated plans

Global batches are drawn by `DISTRIBUTIONS` until packs of 131,072 tokens fill every replica and
micro-batch. The model is llama-8b on H100s; pipeline runs share a mesh of 64 devices per stage. All
policies are priced by the same estimate (`dcp_planner.step.attention`), messages included.
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

sys.path.insert(0, str(Path(__file__).parent))
from recording import Row, machine, markdown, provenance, shown, write

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import PlanConfig, build_plan, predict, preset
from dcp_planner.step.assignment import StepMesh
from dcp_planner.step.attention import Groups, attention_seconds
from dcp_planner.step.documents import Documents
from dcp_planner.step.model import step_model
from dcp_planner.step.nesting import even
from dcp_planner.step.plan_step import EVEN_TOKENS
from dcp_planner.step.problem import StepProblem
from dcp_planner.step.report import StepReport, StepSetting, compare_policies
from dcp_planner.step.rivals import RIVALS

SCHEMA = "dcp.bench_step/1"
BUDGET = 131_072
LONGEST = 131_072
MESHES = ((8, 8), (4, 16), (16, 4), (2, 32))
IN_FULL = StepMesh(8, 8, micro_batches=4)
"""The mesh whose results hold the parts of every policy's time, for the picture in docs."""
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
    if validate:
        _validate()
        return
    document: dict[str, Any] = {
        "schema": SCHEMA, "machine": machine(), "steps": steps, "rows": [],
    }  # fmt: skip
    for name in only or DISTRIBUTIONS:
        for replicas, ranks in MESHES:
            for micro_batches, stages in ((1, 1), (4, 1), (8, 4)):
                mesh = StepMesh(replicas, ranks, micro_batches, stages)
                document["rows"].append(run(name, mesh, steps))
                click.echo(_line(document["rows"][-1]), err=True)
                if out is not None:
                    write(Path(out), document)
    click.echo(to_table(document))


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
        "even_tokens": _even_tokens(report),
        "steps": steps,
        "levels": report.levels,
        **({"policies": parts} if mesh == IN_FULL else {}),
    }


def _bound(step: Documents, setting: StepSetting) -> float:
    """Return the least time over perfect balance that the estimate allows."""
    problem = StepProblem.of(
        step, setting.mesh, setting.token_budget, setting.model, setting.cluster
    )
    return problem.bound_seconds() * setting.mesh.devices / float(problem.seconds.sum())


def _even_tokens(report: StepReport) -> Row:
    """Return the same figures for the fastest levels whose tokens are even, or nearest to that."""
    levels = [policy.times for policy in report.policies[1:] if not policy.is_rival]
    rivals = {policy.name: policy.times for policy in report.policies if policy.is_rival}
    ours = []
    for times in zip(*levels, strict=True):
        even = [time for time in times if time.max_tokens <= 1 + EVEN_TOKENS + 1e-9]
        nearest = min(times, key=lambda time: time.max_tokens)
        ours.append(min(even or [nearest], key=lambda time: time.seconds))
    ratios = {
        name: [b.seconds / a.seconds for a, b in zip(ours, theirs, strict=True)]
        for name, theirs in rivals.items()
    }
    return {
        "speedup": {name: statistics.geometric_mean(found) for name, found in ratios.items()},
        "worst": min(map(min, ratios.values())),
        "over_balance": statistics.mean(time.balance for time in ours),
        "max_tokens": statistics.mean(time.max_tokens for time in ours),
    }


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
        "documents", "mesh", "micro-batches", "stages", "over round-robin", "over the best rival",
        "worst step", "over balance", "at least", "tokens max", "even tokens: over the best rival",
        "worst step", "over balance", "CPU ms",
    ]  # fmt: skip
    lines = []
    for row in document["rows"]:
        best = min(row["speedup"], key=row["speedup"].get)
        lines.append(
            [
                row["distribution"],
                row["mesh"],
                str(row["micro_batches"]),
                str(row["stages"]),
                shown(row["speedup"]["round-robin"]),
                f"{shown(row['speedup'][best])} ({best})",
                shown(min(row["worst"].values())),
                shown(row["over_balance"]),
                shown(row["bound"]),
                shown(row["max_tokens"]),
                shown(min(row["even_tokens"]["speedup"].values())),
                shown(row["even_tokens"]["worst"]),
                shown(row["even_tokens"]["over_balance"]),
                shown(row["plan_cpu_s"], ".0f", 1e3),
            ]
        )
    note = f"{document['steps']} steps each; geometric means of predicted times"
    return markdown(header, lines) + "\n" + provenance(document, note)


def _validate() -> None:
    """Print estimate and simulated time of the first group of some steps."""
    model, cluster = step_model("llama-8b"), preset("h100-dgx", nodes=8)
    config = PlanConfig("native", budget="fast", compute_tolerance=0.03, token_tolerance=0.05)
    mask = Spec.from_text("mask m = causal").mask("m")
    lines, mesh = [], StepMesh(8, 8)
    for name in ("LongAlign-like", "LDC-like"):
        for width in (8, 16, 32, 64):
            for seed in range(3):
                documents = draw_step(DISTRIBUTIONS[name], seed, mesh.replicas)
                problem = StepProblem.of(documents, mesh, BUDGET, model, cluster)
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
                estimate = float(attention_seconds(group, model.shape, own)[0])
                real = predict(plan).seconds
                lines.append(
                    [name, str(width), shown(estimate, ".1f", 1e3), shown(real, ".1f", 1e3),
                     shown(real / estimate)]
                )  # fmt: skip
    click.echo(markdown(["documents", "devices", "estimate ms", "plan ms", "ratio"], lines))


if __name__ == "__main__":
    main()
