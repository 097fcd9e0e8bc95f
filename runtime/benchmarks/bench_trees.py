"""What do trees of rollouts save, and how long does finding them take? A log of each kind.

```
python runtime/benchmarks/bench_trees.py --json runtime/benchmarks/results/trees.json
python runtime/benchmarks/bench_trees.py --table runtime/benchmarks/results/trees.json
```

Each log has about a million random tokens; trees hold at most 131,072. Beside `group_rows` stands a
trie of Python dictionaries. *Prompt only* shares what all rollouts of a task begin with. The step
is predicted for llama-8b on eight H100s with micro-batches of 131,072 tokens.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recording import machine, report

from dcp_planner import preset
from dcp_planner.step.plan_step import plan_step
from dcp_planner.step.policies import StepSetting
from dcp_planner.step.setting import Documents, StepMesh, step_model
from dcp_runtime import group_rows

TOKENS, BUDGET, WORDS = 1_000_000, 131_072, 100_000
REPEATS = 5
Task = list[np.ndarray]  # the rollouts of a task


def text(rng: np.random.Generator, least: int, most: int) -> np.ndarray:
    """Draw tokens, of a number between two."""
    return rng.integers(0, WORDS, rng.integers(least, most + 1))


def answers(rng: np.random.Generator) -> Task:
    """Return 16 answers to one question, as GRPO samples them."""
    prompt = text(rng, 1000, 3000)
    return [np.concatenate([prompt, text(rng, 500, 3500)]) for _ in range(16)]


def turns(rng: np.random.Generator) -> Task:
    """Return a conversation that is logged after each of its turns."""
    found = [text(rng, 500, 1500)]
    for _ in range(12):
        found.append(np.concatenate([found[-1], text(rng, 100, 1200)]))
    return found[1:]


def retries(rng: np.random.Generator) -> Task:
    """Return 12 runs of an agent, most of which go back to a turn of an earlier run."""
    found: list[list[np.ndarray]] = [[text(rng, 1000, 3000)]]
    for _ in range(12):
        base = found[rng.integers(len(found))]
        kept = base[: rng.integers(1, len(base) + 1)]
        found.append([*kept, *(text(rng, 100, 1000) for _ in range(rng.integers(2, 9)))])
    return [np.concatenate(run) for run in found[1:]]


def edits(rng: np.random.Generator) -> Task:
    """Return 10 runs of an agent whose history is shortened: all differ from some place on."""
    run = text(rng, 6000, 9000)
    found = []
    for _ in range(10):
        cut = rng.integers(500, len(run) - 1000)
        run = np.concatenate([run[:cut], text(rng, 50, 200), run[cut + 500 :], text(rng, 200, 900)])
        found.append(run)
    return found


def branches(rng: np.random.Generator) -> Task:
    """Return the leaves of a search: three calls of tools, four results each."""
    level = [text(rng, 1000, 3000)]
    for _ in range(3):
        level = [np.concatenate([run, text(rng, 200, 900)]) for run in level for _ in range(4)]
    return level


KINDS = {
    "16 answers to a question": answers,
    "every turn logged": turns,
    "agents that retry": retries,
    "agents whose history is edited": edits,
    "branching calls of tools": branches,
}


def log_of(kind: str) -> list[Task]:
    """Draw tasks until they have as many tokens as a log."""
    rng, tasks, left = np.random.default_rng(0), [], TOKENS
    while left > 0:
        tasks.append(KINDS[kind](rng))
        left -= sum(map(len, tasks[-1]))
    return tasks


def python_trie(rollouts: Task) -> int:
    """Count the nodes of a trie of dictionaries."""
    root: dict[int, Any] = {}  # Any: such dictionaries
    nodes = 0
    for rollout in rollouts:
        at = root
        for token in rollout.tolist():
            if token not in at:
                at[token] = {}
                nodes += 1
            at = at[token]
    return nodes


def prompt_only(task: Task) -> int:
    """Count the tokens of a task if only what all its rollouts begin with is shared."""
    fewest = min(map(len, task))
    differs = np.any([run[:fewest] != task[0][:fewest] for run in task], axis=0)
    shared = int(differs.argmax()) if differs.any() else fewest
    return sum(map(len, task)) - shared * (len(task) - 1)


def step_seconds(tokens: list[int], pairs: list[int]) -> float:
    """Predict the seconds of a step with documents of some tokens and pairs."""
    count = -(-sum(tokens) // BUDGET) + 1
    setting = StepSetting(
        StepMesh(1, 8, micro_batches=count),
        step_model("llama-8b"),
        preset("h100-dgx", 1, 8),
        token_budget=BUDGET,
    )
    documents = Documents(np.array(tokens), np.array(pairs, np.float64))
    return plan_step(documents, setting).time.seconds


def pairs_of(row: Any) -> int:  # Any: a row of a data set
    """Count the pairs of a tree under `paths`."""
    depth = np.zeros(len(row["tokens"]), np.int64)
    at = 0
    for length, fork in zip(row["branch_lens"].tolist(), row["branch_forks"].tolist(), strict=True):
        first = depth[fork] + 1 if fork >= 0 else 0
        depth[at : at + length] = np.arange(first, first + length)
        at += length
    return int((depth + 1).sum())


def cpu_seconds(task: Any, *arguments: Any) -> float:  # Any: a function and what it takes
    """Return the least CPU seconds of some calls."""
    found = []
    for _ in range(REPEATS):
        start = time.process_time()
        task(*arguments)
        found.append(time.process_time() - start)
    return min(found)


def measure(kind: str) -> dict[str, Any]:
    """Group one log; time it beside a trie in Python."""
    tasks = log_of(kind)
    rollouts = [run for task in tasks for run in task]
    arrays = [{"tokens": run} for run in rollouts]
    lists = [{"tokens": run.tolist()} for run in rollouts]
    trees = group_rows(arrays, token_budget=BUDGET)
    lengths = [len(run) for run in rollouts]
    before = step_seconds(lengths, [n * (n + 1) // 2 for n in lengths])
    after = step_seconds([len(row["tokens"]) for row in trees], [pairs_of(row) for row in trees])
    return {
        "kind": kind,
        **trees.figures(),
        "trie": python_trie(rollouts),
        "prompt_only": sum(map(prompt_only, tasks)),
        "separate_step_s": before,
        "step_s": after,
        "seconds": cpu_seconds(group_rows, arrays),
        "seconds_lists": cpu_seconds(group_rows, lists),
        "seconds_trie": cpu_seconds(python_trie, rollouts),
    }


def table(document: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        "| log | rollouts | tokens | in trees | trie | prompt only | pairs | step "
        "| CPU s: arrays, lists | Python trie |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['kind']} | {row['rollouts']:,} | {row['separate_tokens']:,} "
        f"| {row['tokens']:,} ({row['separate_tokens'] / row['tokens']:.2f}x) "
        f"| {row['trie']:,} | {row['prompt_only']:,} "
        f"| {row['separate_pairs'] / row['pairs']:.2f}x "
        f"| {row['separate_step_s'] / row['step_s']:.2f}x "
        f"| {row['seconds']:.3f}, {row['seconds_lists']:.3f} | {row['seconds_trie']:.2f} |"
        for row in document["rows"]
    ]
    return "\n".join(lines)


def run(_: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the document."""
    rows = [measure(kind) for kind in KINDS]
    return {"schema": "dcp.bench_trees/1", "machine": machine(), "seed": 0, "rows": rows}


if __name__ == "__main__":
    report(argparse.ArgumentParser(description=__doc__.splitlines()[0]), run, table)
