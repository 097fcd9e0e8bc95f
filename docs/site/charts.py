"""The page of benchmarks: a chart for each committed JSON of results that a picture helps."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import savings_table  # noqa: E402  # the ratios of the table in questions.md

OURS, OTHERS, THIRD = "#3949ab", "#b0b7c3", "#e0a458"
Report = dict[str, Any]  # Any: JSON


def demo(axes: Axes, report: Report) -> None:
    """Draw predicted times of the demonstration's plans beside the best static layout."""
    names = [mask["mask"].split("(")[0] for mask in report["masks"]]
    series: dict[str, list[float]] = {"dcp-dsl": [], "KaHyPar, refined": [], "best static": []}
    for mask in report["masks"]:
        planned = mask["planned"]
        took = {m["method"]: 1e3 * m["predicted_s"] for m in planned["methods"]}
        methods = "portfolio", "kahypar", planned["best_static"]["of_all"]
        for values, method in zip(series.values(), methods, strict=True):
            values.append(took[method])
    _bars(axes, names, series, "predicted milliseconds")


def savings(axes: Axes, report: Report) -> None:
    """Draw how many times faster plans are, as predicted here and as the paper measured."""
    ratios = [savings_table.ratios(report, mask) for mask in savings_table.MASKS]
    for place, both in enumerate(ratios):
        for shift, values, colour in zip((0.17, -0.17), both, (OURS, THIRD), strict=True):
            axes.plot([min(values), max(values)], [place + shift] * 2, color=colour, alpha=0.4)
            axes.plot(sorted(values), [place + shift] * len(values), "o", color=colour, ms=4)
    axes.plot([], [], "o", color=OURS, label="predicted: dcp-dsl over the best static layout")
    axes.plot([], [], "o", color=THIRD, label="measured by the paper: DCP over the best ring")
    axes.axvline(1, color="#777", lw=0.8)
    axes.set_yticks(range(len(ratios)), list(savings_table.MASKS.values()))
    axes.set_xlabel("times as fast; a point for each setting")
    axes.legend(frameon=False, fontsize=8)


def planners(axes: Axes, report: Report) -> None:
    """Draw planning time against what plans gain, a point for each method."""
    for name, figures in report["geomeans"]["4x8"].items():
        gain, seconds = figures.get("speedup_vs_best_static"), figures.get("plan_s_median")
        if gain is None or not seconds:
            continue
        colour = OURS if name.split(":")[0] in ("portfolio", "native") else OTHERS
        axes.plot(seconds, gain, "o", color=colour)
        axes.annotate(name, (seconds, gain), fontsize=7, xytext=(4, 3), textcoords="offset points")
    axes.set_xscale("log")
    axes.axhline(1, color="#777", lw=0.8)
    axes.set_xlabel("seconds to plan a batch, median of 60")
    axes.set_ylabel("times the best static layout")


def scale(axes: Axes, report: Report) -> None:
    """Draw planning time by size of the batch and the cluster."""
    rows = report["rows"]
    names = list(dict.fromkeys(row["size"] for row in rows))
    kinds = dict.fromkeys(row["batch"] for row in rows)
    took = {(row["size"], row["batch"]): row["plan_s"] for row in rows}
    series = {kind: [took[size, kind] for size in names] for kind in kinds}
    _bars(axes, [f"{name} devices" for name in names], series, "seconds to plan, log scale")
    axes.set_xscale("log")


def blocks(axes: Axes, report: Report) -> None:
    """Draw the time to find non-empty blocks beside `create_block_mask` of PyTorch."""
    rows = [row for row in report["torch"] if row["tokens"] == 32768]
    names = [f"{row['mask']}, 32k tokens" for row in rows]
    series = {
        "dcp-dsl": [row["ours"]["median_ms"] for row in rows],
        "create_block_mask, compiled": [row["compiled_ms"] for row in rows],
    }
    _bars(axes, names, series, "milliseconds on a CPU, log scale")
    axes.set_xscale("log")


def _bars(axes: Axes, names: list[str], series: dict[str, list[float]], unit: str) -> None:
    """Draw groups of horizontal bars with their figures."""
    height = 0.8 / len(series)
    for index, ((label, values), colour) in enumerate(
        zip(series.items(), (OURS, OTHERS, THIRD), strict=False)
    ):
        places = [len(names) - 1 - at + 0.4 - height * (index + 0.5) for at in range(len(names))]
        bars = axes.barh(places, values, height * 0.9, color=colour, label=label)
        axes.bar_label(bars, [f"{value:.3g}" for value in values], fontsize=7, padding=2)
    axes.set_yticks([len(names) - 1 - at for at in range(len(names))], names)
    axes.set_xlabel(unit)
    axes.margins(x=0.12)
    axes.legend(frameon=False, fontsize=8)


CHARTS: tuple[tuple[str, Callable[[Axes, Report], None], str, str, str], ...] = (
    ("Plans of the demonstration", demo, "docs/demo.json",
     "Batches of 131,072 tokens on 32 simulated A100s, forward and backward of one layer.",
     "[All figures](demo.md)"),
    ("What plans save", savings, "planner/benchmarks/results/paper.json",
     "Settings of the paper, 32 A100s. Nobody has measured our plans on GPUs.",
     "[What this means](questions.md#what-does-it-save-me)"),
    ("Planners", planners, "planner/benchmarks/results/plan.json",
     "Sixty batches on 4 nodes of 8 devices. Right is slower, up is better. Blue: our own search.",
     "[All figures](benchmarks/planner.md)"),
    ("Planning at scale", scale, "planner/benchmarks/results/scale.json",
     "The fast search, without the simulator's choice among several plans.",
     "[All figures](benchmarks/planner.md)"),
    ("Blocks of a mask", blocks, "dcp_dsl/benchmarks/results/blocks.json",
     "From a mask to the exact pairs of every non-empty block, beside PyTorch's FlexAttention.",
     "[All figures](benchmarks/dcp_dsl.md)"),
)  # fmt: skip
PICTURES = """## Elsewhere

![Where the time of a training step goes, by policy](step.svg)

[Whole training steps](steps.md).

![Predicted over published times of attention](residuals.svg)

[How far predictions are off](cost-model.md#how-far-off-it-is).

![Losses of training under DCP and densely](loss_parity.svg)

[What changes in the numbers](training.md#what-changes-in-my-numbers).
"""


def page(folder: Path) -> str:
    """Draw all charts into a folder beside the page, and return the page."""
    folder.mkdir(parents=True)
    lines = ["# Charts of benchmarks", "", "Drawn from the JSON that the benchmarks wrote.", ""]
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dcp-dsl", "font.size": 9}):
        for title, draw, source, said, link in CHARTS:
            report = json.loads((ROOT / source).read_text(encoding="utf-8"))
            figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
            draw(axes, report)
            axes.spines[["top", "right"]].set_visible(False)
            name = f"{draw.__name__}.svg"
            figure.savefig(folder / name, metadata={"Date": None})
            plt.close(figure)
            commit = report.get("machine", {}).get("commit")
            origin = f"`{source}`" + (f", commit {commit}" if commit else "")
            lines += [f"## {title}", "", f"{said} {link}; {origin}.", ""]
            lines += [f"![{title}](charts/{name})", ""]
    return "\n".join(lines) + "\n" + PICTURES
