"""Draw the pictures of concepts.md from the values that the code of that page computes.

```
python docs/concept_pictures.py   # writes concept_mask.svg, _blocks, _placement and _timeline
```
"""

import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from dcp_planner import LANES

DOCS = Path(__file__).resolve().parent
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")  # of devices
DARK, LIGHT, EMPTY = "#2f4b7c", "#9db4d6", "#ffffff"
Made = dict[str, Any]  # Any: the names of the page


def made() -> Made:
    """Run the examples of the page and return the names that they define."""
    names: Made = {}
    for example in doctest.DocTestParser().get_examples((DOCS / "concepts.md").read_text("utf-8")):
        exec(compile(example.source, "concepts.md", "single"), names)
    return names


def mask(axes: Axes, names: Made) -> None:
    """Draw the mask, a pixel per 32 tokens."""
    tokens, step = names["sample"].length, 32
    seen = names["mask"].tile(0, tokens, 0, tokens)[::step, ::step]
    axes.imshow(seen, cmap=mpl.colors.ListedColormap([EMPTY, DARK]), extent=(0, tokens, tokens, 0))
    columns = names["sample"].columns
    for border in np.cumsum([columns["question_len"], *columns["answer_lens"]])[:-1]:
        axes.axvline(border, color="#bbb", lw=0.6)
        axes.axhline(border, color="#bbb", lw=0.6)


def _cells(axes: Axes, names: Made, colours: list[str], q: Any, k: Any) -> None:
    """Fill blocks with colours; Any: integer arrays of their row and column."""
    blocks = names["plan"].blocks
    for row, column, colour in zip(q, k, colours, strict=True):
        left, top = blocks.start[column], blocks.start[row]
        size = blocks.end[column] - left, blocks.end[row] - top
        axes.add_patch(
            plt.Rectangle((left, top), *size, facecolor=colour, edgecolor="#fff", lw=0.5)
        )
    tokens = names["sample"].length
    axes.set(xlim=(0, tokens), ylim=(tokens, 0), aspect="equal")


def blocks(axes: Axes, names: Made) -> None:
    """Draw full blocks dark and partial blocks light."""
    tiles, bounds = names["plan"].tiles, names["plan"].blocks
    size = bounds.end - bounds.start
    is_full = tiles.pairs == size[tiles.q_block] * size[tiles.kv_block]
    _cells(axes, names, [DARK if f else LIGHT for f in is_full], tiles.q_block, tiles.kv_block)


def placement(axes: Axes, names: Made) -> None:
    """Draw blocks by device, and the owners of queries at the left edge."""
    tiles, owned = names["plan"].tiles, names["plan"].blocks
    _cells(axes, names, [COLOURS[d] for d in tiles.device], tiles.q_block, tiles.kv_block)
    for start, end, owner in zip(owned.start, owned.end, owned.owner, strict=True):
        axes.plot([-300, -300], [start, end], color=COLOURS[owner], lw=4, clip_on=False)
    axes.legend(
        handles=[mpl.patches.Patch(color=c, label=f"device {d}") for d, c in enumerate(COLOURS)],
        frameon=False, loc="upper right", fontsize=8,
    )  # fmt: skip


def timeline(axes: Axes, names: Made) -> None:
    """Draw what devices compute, and below it what they send and receive."""
    trace = names["trace"]
    for lane, device, start, end in zip(
        trace.lane, trace.device, trace.start_ns, trace.end_ns, strict=True
    ):
        if LANES[lane] == "wait":
            continue
        is_compute = LANES[lane] == "compute"
        colour = COLOURS[device] if is_compute else "#8a94a3"
        place, height = (device + 0.1, 0.5) if is_compute else (device + 0.65, 0.2)
        axes.broken_barh([(start / 1e6, (end - start) / 1e6)], (place, height), color=colour, lw=0)
    axes.set(ylim=(4, 0), xlabel="milliseconds, forward then backward")
    axes.set_yticks(np.arange(4) + 0.5, [f"device {d}" for d in range(4)])


PICTURES: tuple[tuple[Callable[[Axes, Made], None], tuple[float, float]], ...] = (
    (mask, (4.2, 4)), (blocks, (4.2, 4)), (placement, (4.2, 4)), (timeline, (8, 2.6)),
)  # fmt: skip


def main() -> None:
    """Write the pictures."""
    names = made()
    for draw, size in PICTURES:
        mpl.rcParams["svg.hashsalt"] = draw.__name__  # so that every call writes the same file
        mpl.rcParams["font.size"] = 9
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        draw(axes, names)
        if draw is not timeline:
            axes.set(xlabel="keys", ylabel="queries", xticks=[], yticks=[])
            axes.yaxis.labelpad = 14 if draw is placement else 4
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(DOCS / f"concept_{draw.__name__}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
