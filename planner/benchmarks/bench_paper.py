"""The microbenchmark of DCP (SOSP'25), Figs. 13 and 14, under our cost model, beside the paper's.

    python planner/benchmarks/bench_paper.py --json OUT        # --table OUT prints the tables

4 nodes of 8 A100, 131,072 tokens a batch, 8 query and 2 key/value heads of 128, length scales 0.5
to 4, four masks, forward and backward; the mean over the batches. Bars are digitised from the
authors' plots. Lengths are mimics (`paper_setting`): a bar is matched in kind, not batch by batch.

- `dcp-like`: KaHyPar's placement as it comes on blocks of `--block` tokens, every block sent by its
  owner to each device that needs it, five divisions. Its bars are those of DCP.
- `ours`: the planner's default on blocks that it chooses, routed by node.
- `static:*`: our static layouts on the same blocks, sent by the owner.
- `RFA_ring`, `RFA_zigzag`, `TE`: by formula. Their causal bars at scales 2 and 4 fitted bandwidth
  and latency between nodes; those at 0.5 and 1, and all bars of DCP, check them. Other masks do not
  change what `TE` sends; it is predicted as if it computed a causal mask, which hides behind that.
"""

import json
import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from paper_setting import CLUSTER, RINGS, batches_of, ring_seconds
from recorded_masks import DATA, sequences_of, usual_cut
from recording import Row, geomean, machine, markdown, provenance, shown, write

from dcp_dsl import BlockSparsity, block_sparsity
from dcp_planner import (
    PARTITIONERS,
    ModelShape,
    PlanConfig,
    build_plan,
    cut_blocks,
    fastest_block_size,
    predict,
)
from dcp_planner.model.problem import build_workload
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.partitioners import static_layouts
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.simulation.simulator import Prediction

SCHEMA = "dcp.bench_paper/1"
SHAPE = ModelShape(q_heads=8, kv_heads=2, head_dim=128, dtype_bytes=2)
SCALES = ("0.5", "1", "2", "4")
FITTED_SCALES = ("2", "4")
MASKS: dict[str, dict[str, float]] = {
    "causal": {},
    "causal_blockwise": {"block_size": 256, "k_local": 2},
    "lambda": {"n_starting": 64, "l_pretrain": 4096},
    "shared_question": {"question_proportion": 0.2, "n_answers": 4},
}
BAR_OF = {"dcp-like": "DCP", **{ring: ring for ring in RINGS}}
"""Bars by method."""


@click.command()
@click.option("--batches", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N settings.")
@click.option("--block", type=click.IntRange(min=128), default=2048, show_default=True)
@click.option("--ours", default="", help="Partitioner of ours.  [default: the planner's]")
@click.option("--json", "out", type=click.Path(dir_okay=False), help="File to write.")
@click.option("--table", type=click.Path(exists=True), help="Print the errors in such a file.")
@click.option("--full", is_flag=True, help="With --table: speed-ups by setting and all bars, too.")
def main(out: str | None, table: str | None, full: bool, **options: Any) -> None:
    """Run the benchmark, or print the tables of its results."""
    if table is not None:
        document = json.loads(Path(table).read_text())
        click.echo(to_tables(document) if full else error_table(document))
        return
    click.echo(to_tables(run(options, None if out is None else Path(out))))


def run(options: dict[str, Any], out: Path | None) -> dict[str, Any]:
    """Predict every setting; the file is written anew after each (`Any`: click's values, JSON)."""
    bars = json.loads((DATA / "paper_micro_digitised.json").read_text())
    document: dict[str, Any] = {
        "schema": SCHEMA, "machine": machine(), "seed": 0, "batches": options["batches"],
        "block": options["block"], "cluster": CLUSTER.name, "rows": [], "errors": {},
    }  # fmt: skip
    settings = [
        (dataset, scale, mask)
        for dataset in ("ldc", "longalign") for scale in SCALES for mask in MASKS
    ]  # fmt: skip
    for dataset, scale, mask in settings[: options["limit"]]:
        click.echo(f"{dataset} x {scale}, {mask}", err=True)
        predicted = predict_setting(dataset, scale, mask, options)
        ours = predicted["ours"]
        for method, times in predicted.items():
            document["rows"].append(
                {"dataset": dataset, "scale": scale, "mask": mask, "method": method}
                | summed_up(times, ours)
                | bars_of(bars[dataset], scale, mask, method)
            )
        document["errors"] = errors_of(document["rows"])
        if out is not None:
            write(out, document)
    return document


def predict_setting(
    dataset: str, scale: str, mask: str, options: dict[str, Any]
) -> dict[str, list[Prediction]]:
    """Return the predicted times of each batch by method (`Any`: click's values)."""
    found: dict[str, list[Prediction]] = {"dcp-like": [], "ours": []}
    for lengths in batches_of(dataset, float(scale), options["batches"]):
        workload = {"id": dataset, "mask": mask, "mask_params": MASKS[mask], "seqlens": lengths}
        sequences = sequences_of(workload)
        grid = block_sparsity(sequences, options["block"], options["block"])
        found["dcp-like"].append(predict_dcp_like(grid))
        sparsity = usual_cut(workload, CLUSTER)
        chosen = {"partitioner": options["ours"]} if options["ours"] else {}
        config = PlanConfig(routing="node", partials="input", **chosen)
        block = fastest_block_size([sequences], SHAPE, CLUSTER, config)
        found["ours"].append(
            predict(build_plan(cut_blocks(sequences, block), SHAPE, CLUSTER, config))
        )
        for name in static_layouts(SHAPE, CLUSTER):
            config = PlanConfig(partitioner=name, routing="direct", partials="input")
            found.setdefault(name, []).append(predict(build_plan(sparsity, SHAPE, CLUSTER, config)))
        for ring in RINGS if mask == "causal" else ("TE",):
            times = (
                ring_seconds(ring, lengths, SHAPE, CLUSTER, is_backward=side)
                for side in (False, True)
            )
            found.setdefault(ring, []).append(Prediction(*times))
    return found


def predict_dcp_like(sparsity: BlockSparsity) -> Prediction:
    """Predict KaHyPar's placement without repair or refinement, without routing."""
    config = PlanConfig(partitioner="kahypar", routing="direct", divisions=5)
    workload = build_workload(sparsity, SHAPE)
    placement = PARTITIONERS["kahypar"].place(workload, CLUSTER, config)
    schedule = make_schedule(workload, placement, CLUSTER, config)
    return predict(assemble(workload, CLUSTER, placement, schedule, "dcp-like"))


def summed_up(times: list[Prediction], ours: list[Prediction]) -> Row:
    """Return the mean times of a method, and the worst batch of ours against it."""
    ratios = [theirs.seconds / own.seconds for theirs, own in zip(times, ours, strict=True)]
    return {
        "forward_s": statistics.mean(t.forward_s for t in times),
        "backward_s": statistics.mean(t.backward_s for t in times),
        "ours_speedup_worst_batch": min(ratios),
        "batch_s": [t.seconds for t in times],
    }


def bars_of(bars: dict[str, Any], scale: str, mask: str, method: str) -> Row:
    """Return the digitised bars of a method, ``None`` where there are none (`Any`: JSON)."""
    values: dict[str, float | None] = {}
    for name, key in (("forward", "FW"), ("backward", "BW")):
        if method in RINGS and mask != "causal":
            bar = bars["masks"][scale][mask][f"{method}_{key}"]
        elif method in RINGS:
            bar = bars["causal_frameworks"][scale][key][method]
        else:
            bar = bars["masks"][scale][mask][f"DCP_{key}"] if method == "dcp-like" else None
        values[f"bar_{name}_s"] = None if bar is None else bar / 1e3
    return values


def errors_of(rows: list[Row]) -> dict[str, Any]:
    """Compare predictions with bars by method, apart for the scales that were fitted."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["method"] in BAR_OF:
            groups.setdefault(f"{row['method']}, {_use_of(row)}", []).append(row)
    result = {}
    for name, chosen in groups.items():
        ratios = list(_over_bars(chosen))
        errors = [math.exp(abs(math.log(ratio))) - 1 for ratio in ratios]
        result[name] = {
            "bars": len(ratios),
            "predicted_over_bar": geomean(ratios),
            "median_error": statistics.median(errors),
            "worst_error": max(errors),
        }
    return result


def _use_of(row: Row) -> str:
    """Name the group of a bar: fitted, checked, or of a sparse mask."""
    if row["mask"] != "causal":
        return "sparse masks"
    is_fitted = row["method"] in RINGS and row["scale"] in FITTED_SCALES
    return "causal, fitted" if is_fitted else "causal, checked"


def _over_bars(rows: Iterable[Row]) -> Iterable[float]:
    for row in rows:
        for side in ("forward", "backward"):
            if row[f"bar_{side}_s"] is not None:
                yield row[f"{side}_s"] / row[f"bar_{side}_s"]


def to_tables(document: dict[str, Any]) -> str:
    """Return the Markdown tables: speed-ups by setting, all bars, errors (`Any`: JSON)."""
    header = ("lengths, mask", "ours ms", "DCP-like", "best static", "ours against it",
              "worst batch", "ours against TE", "DCP's bar", "best bar of others / DCP's",
              )  # fmt: skip
    settings: dict[tuple[str, str, str], list[Row]] = {}
    for row in document["rows"]:
        settings.setdefault((row["dataset"], row["scale"], row["mask"]), []).append(row)
    lines = [_setting_line(key, rows) for key, rows in settings.items()]
    return "\n".join([markdown(header, lines), "", bar_table(settings), "", error_table(document)])


def error_table(document: dict[str, Any]) -> str:
    """Return how far predictions are from the bars of each method (`Any`: JSON)."""
    errors = [
        [name, str(e["bars"]), shown(e["predicted_over_bar"]),
         shown(e["median_error"], ".0%"), shown(e["worst_error"], ".0%")]
        for name, e in document["errors"].items()
    ]  # fmt: skip
    text = f"Mean of {document['batches']} batches, forward and backward"
    heads = ("bars", "number", "predicted / bar", "median error", "worst")
    return f"{markdown(heads, errors)}\n{provenance(document, text)}"


def bar_table(settings: dict[tuple[str, str, str], list[Row]]) -> str:
    """Return every bar in ms with the error of its prediction, by setting and method."""
    sides = [(name, side) for name in BAR_OF for side in ("forward", "backward")]
    header = ("bar in ms, error", *(f"{BAR_OF[name]} {side}" for name, side in sides))
    lines = []
    for (dataset, scale, mask), rows in settings.items():
        by_method = {row["method"]: row for row in rows}
        cells = [_bar_cell(by_method.get(name), side) for name, side in sides]
        lines.append([f"{dataset} x {scale}, {mask}", *cells])
    return markdown(header, lines)


def _bar_cell(row: Row | None, side: str) -> str:
    bar = row[f"bar_{side}_s"] if row else None
    return f"{bar * 1e3:.1f}, {row[f'{side}_s'] / bar - 1:+.0%}" if row and bar else "-"


def _setting_line(key: tuple[str, str, str], rows: list[Row]) -> list[str]:
    by_method = {row["method"]: row for row in rows}
    ours, dcp = by_method["ours"], by_method["dcp-like"]
    others = [row for name, row in by_method.items() if name not in ("ours", "dcp-like")]
    best = min(others, key=_total)
    # The worst batch against the best static method of each batch, not of their mean.
    batches = zip(ours["batch_s"], *(row["batch_s"] for row in others), strict=True)
    worst = min(min(theirs) / own for own, *theirs in batches)
    bars = [row["bar_forward_s"] + row["bar_backward_s"] for row in others if row["bar_forward_s"]]
    bar = dcp["bar_forward_s"] + dcp["bar_backward_s"]
    dataset, scale, mask = key
    return [
        f"{dataset} x {scale}, {mask}", shown(_total(ours), ".1f", 1e3),
        shown(_total(dcp), ".1f", 1e3), f"{shown(_total(best), '.1f', 1e3)} ({best['method']})",
        f"{_total(best) / _total(ours):.2f}", f"{worst:.2f}",
        f"{_total(by_method['TE']) / _total(ours):.2f}" if "TE" in by_method else "-",
        shown(bar, ".1f", 1e3),
        f"{min(bars) / bar:.2f}" if bars else "-",
    ]  # fmt: skip


def _total(row: Row) -> float:
    return float(row["forward_s"] + row["backward_s"])


if __name__ == "__main__":
    main()
