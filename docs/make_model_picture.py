"""Draw predicted over published times of attention: the residuals of the cost model.

```
python docs/make_model_picture.py         # writes docs/residuals.svg
```
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "planner/benchmarks/results/paper.json"
METHODS = {
    "RFA_ring": ("ring", "#4c78a8"),
    "RFA_zigzag": ("zigzag ring", "#72b7b2"),
    "TE": ("TransformerEngine", "#f58518"),
    "dcp-like": ("DCP", "#e45756"),
}


def main() -> None:
    """Draw a point for each bar of the DCP paper, forward and backward."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "residuals"
    from matplotlib import pyplot as plt

    rows = json.loads(RESULTS.read_text())["rows"]
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
    figure.savefig(ROOT / "docs/residuals.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
