"""Draw the pictures of the documents from results of benchmarks.

```
python docs/make_pictures.py   # writes the pictures below into docs/
```

`step.svg` shows where the time of a training step goes, by policy. `front.svg` shows the front of
`dcpm plan train.dcpm --mask causal --sample 'len = 65536' --sample 'len = 40960' --sample 'len =
16384' --cluster a100-p4de:4x8 --front --json`, whose output is `docs/front.json`. The other two
show errors of the cost model: `residuals.svg` predicted over published times of attention,
`calibration.svg` predicted over measured times of plans on a calibrated machine. `emulated.svg`
shows times of plans over the sockets of emulated clusters.
"""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "linear_s": ("linear part", "#4c78a8"),
    "attention_s": ("attention", "#72b7b2"),
    "waiting_s": ("waiting for slower devices", "#e45756"),
    "bubble_s": ("pipeline fill and drain", "#bab0ac"),
}
POLICIES = ("round-robin", "megatron:dp_balanced", "wlb-llm", "distca", "plan_step")
METHODS = {
    "RFA_ring": ("ring", "#4c78a8"),
    "RFA_zigzag": ("zigzag ring", "#72b7b2"),
    "TE": ("TransformerEngine", "#f58518"),
    "dcp-like": ("DCP", "#e45756"),
}
Row = dict[str, Any]  # Any: JSON


def draw_step(rows: list[Row]) -> Figure:
    """Draw the LDC-like steps on 8 replicas of 8 devices, four micro-batches."""
    row = next(
        row
        for row in rows
        if (row["distribution"], row["mesh"], row["micro_batches"]) == ("LDC-like", "8x8", 4)
    )
    figure, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
    for place, name in enumerate(reversed(POLICIES)):
        left = 0.0
        for part, (label, colour) in PARTS.items():
            seconds = row["policies"][name][part]
            axes.barh(
                place, seconds, left=left, color=colour, height=0.62,
                label=label if place == 0 and seconds > 1e-6 else None,
            )  # fmt: skip
            left += seconds
        axes.text(left, place, f" {left:.1f} s", va="center")
    axes.set_yticks(range(len(POLICIES)), reversed(POLICIES))
    axes.set_xlabel("predicted seconds of a step, mean")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.legend(loc="outside upper center", ncols=len(PARTS), frameon=False)
    return figure


def draw_residuals(rows: list[Row]) -> Figure:
    """Draw a point for each bar of the DCP paper, forward and backward."""
    figure, both = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    for axes, is_causal in zip(both, (True, False), strict=True):
        for method, (label, colour) in METHODS.items():
            points = [
                (1e3 * row[f"bar_{side}_s"], row[f"{side}_s"] / row[f"bar_{side}_s"])
                for row in rows
                if row["method"] == method and (row["mask"] == "causal") == is_causal
                for side in ("forward", "backward")
                if row[f"bar_{side}_s"]
            ]
            if points:
                axes.scatter(*zip(*points, strict=True), s=14, color=colour, label=label)
        axes.set(xscale="log", yscale="log", xlabel="milliseconds in the paper")
        axes.set_xticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
        axes.minorticks_off()
        axes.set_title("causal mask" if is_causal else "sparse masks")
        axes.axhline(1, color="#888", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set_ylabel("predicted over published")
    both[0].set_yticks([0.25, 0.5, 1, 2, 4, 8], ["1/4", "1/2", "1", "2", "4", "8"])
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside upper center", ncols=4,
                  frameon=False)  # fmt: skip
    return figure


def draw_calibration(runs: list[Row]) -> Figure:
    """Draw a point for each plan that a calibration predicted and ran, on two ranks."""
    figure, both = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained", sharey=True)
    for axes, is_busy in zip(both, (False, True), strict=True):
        chosen = [run for run in runs if (run["ranks"], run["is_busy"]) == (2, is_busy)]
        ratios: dict[str, list[float]] = {}
        for check in (check for run in chosen for check in run["checks"]):
            ratio = check["predicted_s"] / check["measured_s"]
            ratios.setdefault(check["plan"].replace(", ", ",\n"), []).append(ratio)
        for place, values in enumerate(ratios.values()):
            axes.scatter([place] * len(values), values, s=16, color="#4c78a8", alpha=0.7)
        axes.axhspan(1 / 1.15, 1.15, color="#72b7b2", alpha=0.25, linewidth=0)
        axes.axhline(1, color="#888", linewidth=0.8)
        axes.set_xticks(range(len(ratios)), list(ratios), fontsize=8)
        axes.set_yscale("log")
        axes.set_yticks([0.5, 0.7, 1, 1.4], ["0.5", "0.7", "1", "1.4"])
        axes.minorticks_off()
        axes.set_title("quiet machine" if not is_busy else "machine that calls itself busy")
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set_ylabel("predicted over measured")
    return figure


def draw_front(points: list[Row]) -> Figure:
    """Draw every point of a front; its colour shows the imbalance of compute, its size memory."""
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    sent = [(p["forward_inter"] + p["backward_inter"]) / 1e6 for p in points]
    dots = axes.scatter(
        [1e3 * p["seconds"] for p in points], sent, c=[p["compute"] for p in points],
        s=[20 + p["memory_bytes"] / 1e6 for p in points], cmap="viridis",
    )  # fmt: skip
    for letter, point, size in zip("abcdefghijklmnopqrstuvwxyz", points, sent, strict=False):
        at = (1e3 * point["seconds"], size)
        axes.annotate(letter, at, xytext=(6, 5), textcoords="offset points")
    axes.set(xlabel="predicted milliseconds", ylabel="MB between nodes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(0.1)
    figure.colorbar(dots, label="compute, most over mean")
    return figure


def draw_emulated(rows: list[Row]) -> Figure:
    """Draw a point for each plan: predicted and over sockets of an emulated cluster."""
    figure, axes = plt.subplots(figsize=(5.2, 4.6), layout="constrained")
    colours = {"default": "#3949ab", "rival": "#e0a458", "other": "#b0b7c3"}
    shown = {"default": "dcp-dsl", "rival": "placements of other systems", "other": "other layouts"}
    for name, colour in colours.items():
        chosen = [row for row in rows if _kind_of(row["layout"]) == name]
        axes.scatter(
            [1e3 * row["predicted_s"] for row in chosen],
            [1e3 * statistics.median(row["sockets_s"]) for row in chosen],
            s=14, color=colour, alpha=0.8, label=shown[name],
        )  # fmt: skip
    ends = [f(1e3 * row["predicted_s"] for row in rows) for f in (min, max)]
    axes.plot(ends, ends, color="#888", linewidth=0.8)
    for scale, ticks in ((axes.set_xscale, axes.set_xticks), (axes.set_yscale, axes.set_yticks)):
        scale("log")
        ticks([5, 10, 20, 40], ["5", "10", "20", "40"])
    axes.minorticks_off()
    axes.set(xlabel="predicted milliseconds", ylabel="milliseconds over emulated sockets")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _kind_of(layout: str) -> str:
    return layout if layout == "default" else "rival" if layout.startswith("rival ") else "other"


PICTURES: dict[str, tuple[str, Callable[[list[Row]], Figure]]] = {
    "step": ("planner/benchmarks/results/step.json", draw_step),
    "front": ("docs/front.json", draw_front),
    "residuals": ("planner/benchmarks/results/paper.json", draw_residuals),
    "calibration": ("runtime/benchmarks/results/calibration.json", draw_calibration),
    "emulated": ("runtime/benchmarks/results/emulated.json", draw_emulated),
}
"""Results and drawing of each picture, by its name."""


def main() -> None:
    """Write all pictures."""
    for name, (results, draw) in PICTURES.items():
        mpl.rcParams["svg.hashsalt"] = name  # so that every call writes the same file
        document = json.loads((ROOT / results).read_text())
        rows = document.get("rows") or document.get("front") or document["runs"]
        draw(rows).savefig(ROOT / f"docs/{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
