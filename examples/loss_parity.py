"""Measure whether training under DCP gives the losses of training on one process, and draw them.

```
python examples/loss_parity.py --steps 200 --out docs/loss_parity.json      # make loss-parity
```

For every mask, one process trains with dense masked attention and four with DCP, with the same seed
and batches, in float32 and in bfloat16. In bfloat16 two more dense runs add in other orders: they
show how far apart equal runs may be. The script writes the JSON after every run, and at the end the
curves as a picture beside it.

Runs that the file holds already are kept, so a long measurement can be interrupted, and masks or
bfloat16 can be added later.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

EXAMPLES = Path(__file__).resolve().parent
SCHEMA = "dcp.loss_parity/1"
MASKS = ("causal", "streaming_llm", "shared_question")
FLOAT32_RUNS = {"dense": ("dense", "float32"), "dcp": ("dcp", "float32")}
BFLOAT16_RUNS = {
    "dense_bfloat16": ("dense", "bfloat16"),
    "dense_reversed_bfloat16": ("dense-reversed", "bfloat16"),
    "dense_rotated_bfloat16": ("dense-rotated", "bfloat16"),
    "dcp_bfloat16": ("dcp", "bfloat16"),
}
"""Attention and element type of every run, by its name in the JSON."""


def main() -> None:
    """Make the missing runs, write JSON and picture, and print a line per mask."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--skip-bfloat16", action="store_true", help="only float32, less than half of the time"
    )
    arguments = parser.parse_args()
    document = begin(arguments.out, arguments.steps, arguments.ranks)
    wanted = FLOAT32_RUNS if arguments.skip_bfloat16 else {**FLOAT32_RUNS, **BFLOAT16_RUNS}
    for mask in arguments.masks.split(","):
        losses = document["losses"].setdefault(mask, {})
        for name, (attention, dtype) in wanted.items():
            if name not in losses:
                ranks = arguments.ranks if attention == "dcp" else 1
                losses[name] = run(mask, arguments.steps, ranks, attention, dtype)
                judge(mask, document)
                write(document, arguments.out)
        print(f"{mask}: {verdict(mask, document)}", flush=True)
    write(document, arguments.out)
    draw(document, arguments.out.with_suffix(".svg"))


def begin(path: Path, steps: int, ranks: int) -> dict[str, Any]:
    """Read the earlier measurement, or begin a new one."""
    if not path.exists():
        return {
            "schema": SCHEMA,
            "steps": steps,
            "ranks": ranks,
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "versions": {"torch": version("torch"), "python": platform.python_version()},
            "max_relative_difference": {},
            "bfloat16": {},
            "losses": {},
        }
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = [document.get(name) for name in ("schema", "steps", "ranks")]
    if found != [SCHEMA, steps, ranks]:
        sys.exit(
            f"{path}: expected a measurement of {steps} steps on {ranks} ranks, got schema, steps "
            f"and ranks {found}; give the same numbers to add to it, or another --out"
        )
    return document


def write(document: dict[str, Any], path: Path) -> None:
    """Write the JSON; an interruption leaves the old file or the new one."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def judge(mask: str, document: dict[str, Any]) -> None:
    """Compare the finished runs of a mask."""
    losses = document["losses"][mask]
    if losses.keys() >= FLOAT32_RUNS.keys():
        difference = max(relative_difference(losses["dense"], losses["dcp"]))
        document["max_relative_difference"][mask] = difference
    if losses.keys() >= BFLOAT16_RUNS.keys():
        *dense, dcp = (losses[name] for name in BFLOAT16_RUNS)
        pairs = {"dcp": [(one, dcp) for one in dense], "dense_runs": combinations(dense, 2)}
        found: dict[str, float] = {}
        for name, runs in pairs.items():  # between DCP and dense runs, and among dense runs
            differences = [relative_difference(one, other) for one, other in runs]
            found[name] = max(map(max, differences))
            found[f"{name}_median"] = max(map(median, differences))
        document["bfloat16"][mask] = found


def verdict(mask: str, document: dict[str, Any]) -> str:
    """Return one line on what the runs of a mask show."""
    dense = document["losses"][mask]["dense"]
    text = (
        f"loss {dense[0]:.3f} to {dense[-1]:.3f} in {len(dense)} steps; largest relative "
        f"difference {document['max_relative_difference'][mask]:.1e} in float32"
    )
    if mask in document["bfloat16"]:
        found = document["bfloat16"][mask]
        text += (
            f"; in bfloat16 {found['dcp']:.1e}, median {found['dcp_median']:.1e} (among dense runs "
            f"{found['dense_runs']:.1e}, median {found['dense_runs_median']:.1e})"
        )
    return text


def run(mask: str, steps: int, ranks: int, attention: str, dtype: str) -> list[float]:
    """Train in new processes and return the loss of every step."""
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        losses = Path(folder, "losses.json")
        options = {
            "--mask": mask, "--steps": str(steps), "--attention": attention, "--dtype": dtype,
            "--losses": str(losses),
        }  # fmt: skip
        flat = [word for option in options.items() for word in option]
        done = subprocess.run(
            [*start, str(EXAMPLES / "train_gpt.py"), *flat],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"training {' '.join(flat)} failed:\n{done.stderr[-4000:]}")
        return json.loads(losses.read_text(encoding="utf-8"))


def relative_difference(one: list[float], other: list[float]) -> list[float]:
    """Return ``|a - b| / |a|`` of every step."""
    return [abs(a - b) / abs(a) for a, b in zip(one, other, strict=True)]


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw the loss curves of each mask, and their differences below."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "dcp"  # the same picture for the same numbers
    from matplotlib import pyplot as plt

    masks = list(document["losses"])
    size = (4 * len(masks), 5)
    figure, axes = plt.subplots(2, len(masks), figsize=size, sharex=True, squeeze=False)
    for column, mask in enumerate(masks):
        runs = document["losses"][mask]
        above, below = axes[0][column], axes[1][column]
        above.set_title(mask)
        above.plot(
            runs["dense"], color="#0072b2", linewidth=3, alpha=0.45, label="dense, 1 process"
        )
        label = f"DCP, {document['ranks']} ranks"
        above.plot(runs["dcp"], color="#d55e00", linewidth=1, label=label)
        found = relative_difference(runs["dense"], runs["dcp"])
        below.plot(found, color="#d55e00", linewidth=1, label="float32, dense and DCP")
        if mask in document["bfloat16"]:
            dense, *others, dcp = (runs[name] for name in BFLOAT16_RUNS)
            for other in others:
                label = "bfloat16, two dense runs" if other is others[0] else None
                found = relative_difference(dense, other)
                below.plot(found, color="#999999", linewidth=0.6, label=label)
            found = relative_difference(dense, dcp)
            below.plot(found, color="#0072b2", linewidth=0.8, label="bfloat16, dense and DCP")
        below.axhline(1e-4, color="#666666", linewidth=0.8, linestyle="--")
        below.set_yscale("log")
        below.set_ylim(1e-9, 1)
        below.set_xlabel("step")
    axes[0][0].set_ylabel("loss per token")
    axes[1][0].set_ylabel("relative difference")
    axes[0][0].legend(frameon=False)
    figure.legend(*axes[1][0].get_legend_handles_labels(), frameon=False, ncols=3, loc="lower left")
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
