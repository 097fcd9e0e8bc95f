"""Draw where the time of a training step goes, by policy, from the results of `bench_step.py`.

```
python docs/make_step_picture.py          # writes docs/step.svg
```
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "planner/benchmarks/results/step.json"
PARTS = {
    "linear_s": ("linear part", "#4c78a8"),
    "attention_s": ("attention", "#72b7b2"),
    "waiting_s": ("waiting for slower devices", "#e45756"),
    "bubble_s": ("pipeline fill and drain", "#bab0ac"),
}
SHOWN = ("round-robin", "megatron:dp_balanced", "wlb-llm", "distca", "plan_step")


def main() -> None:
    """Draw the LDC-like steps on 8 replicas of 8 devices, four micro-batches."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "step"
    from matplotlib import pyplot as plt

    rows = json.loads(RESULTS.read_text())["rows"]
    row = next(
        row
        for row in rows
        if (row["distribution"], row["mesh"], row["micro_batches"]) == ("LDC-like", "8x8", 4)
    )
    figure, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
    for place, name in enumerate(reversed(SHOWN)):
        left = 0.0
        for part, (label, colour) in PARTS.items():
            seconds = row["policies"][name][part]
            axes.barh(
                place, seconds, left=left, color=colour, height=0.62,
                label=label if place == 0 and seconds > 1e-6 else None,
            )  # fmt: skip
            left += seconds
        axes.text(left, place, f" {left:.1f} s", va="center")
    axes.set_yticks(range(len(SHOWN)), reversed(SHOWN))
    axes.set_xlabel("predicted seconds of a step, mean")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.legend(loc="outside upper center", ncols=len(PARTS), frameon=False)
    figure.savefig(ROOT / "docs/step.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
