"""Measure in headless Chromium how fast a selection reaches every view and a large mask.

A plan of 64 devices with a trace of 50,000 events: clicks in the mask, in the balance and on a
finding, each until the frame that shows it in all views. A causal mask of 1,024 blocks (524,800
tiles): recolouring, hovering, a wheel step. Beside it a Plotly heatmap of as many cells.

    .venv/bin/python dashboard/benchmarks/bench_selection.py [--json OUT] [--repeats 5]
    .venv/bin/python dashboard/benchmarks/bench_selection.py --table JSON

CPU is main-thread task time (``Performance.getMetrics``) per step: script, style, layout and
paint, not the time that a step waits for the next frame.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from dcp_dashboard import start_server
from dcp_dashboard.library.folder import plan_key
from dcp_dsl import BlockSparsity, Slabs
from dcp_dsl.forms import BatchShape
from dcp_planner import LANES, Cluster, ModelShape, Plan, PlanConfig, Trace, build_plan, write_plan

DEVICES = 64
STEPS = 16
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
TARGETS = {"click": 60.0, "recolour": 10.0, "hover": 2.0}
FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


def main() -> None:
    """Measure and print a table, or with ``--table`` print one of earlier results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--blocks", type=int, default=1_024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="OUT", type=Path)
    parser.add_argument("--table", metavar="JSON", type=Path)
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    document = {
        "schema": "dcp.bench.selection/1", **surroundings(), "seed": options.seed,
        "events": options.events, "blocks": options.blocks, "repeats": options.repeats,
        "rows": measure(options),
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:  # Any: JSON values
    """Run the browser; one row per figure."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        small = causal_plan(64, 1_024)
        write_plan(
            Path(folder) / "trace.dcpplan", small, (busy_trace(options.events, options.seed),)
        )
        write_plan(Path(folder) / "mask.dcpplan", causal_plan(options.blocks, 128))
        with start_server(folder) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            for _ in range(options.repeats + 1):  # the first one warms the caches
                context = browser.new_context(viewport={"width": 1440, "height": 900})
                page = context.new_page()
                for name, value in {
                    **time_selection(page, server.url),
                    **time_mask(page, server.url),
                    **time_heatmap(page, server.url, options.blocks),
                }.items():
                    found.setdefault(name, []).append(value)
                context.close()
            browser.close()
    return [row(name, values[1:]) for name, values in found.items()]


def time_selection(page: Page, url: str) -> dict[str, float]:
    """Return the CPU ms per click until the frame that shows the selection in all views."""
    page.goto(f"{url}plan/{plan_key('trace.dcpplan')}")
    for name in (".dcp-mask", ".dcp-timeline", "#traffic", "#balance"):
        page.wait_for_selector(f"{name}[data-state=drawn]", timeout=60_000)
    page.wait_for_timeout(500)
    mask = page.locator(".dcp-mask .dcp-pixels").bounding_box()
    bars = page.locator("#balance svg >> nth=0").bounding_box()
    assert mask is not None, "a drawn mask has a place on the page"
    assert bars is not None, "drawn bars have a place on the page"

    def in_mask(step: int) -> None:
        at = 0.1 + 0.05 * step
        page.mouse.click(mask["x"] + at * mask["width"], mask["y"] + (at + 0.04) * mask["height"])

    def in_bars(step: int) -> None:
        page.mouse.click(bars["x"] + (step + 0.5) * bars["width"] / DEVICES, bars["y"] + 20)

    def by_key(step: int) -> None:
        page.keyboard.press("." if step % 8 < 4 else ",")

    return {
        "nothing, the measurement itself": cpu_per_step(page, lambda _: None),
        "click on a tile, shown in all views": cpu_per_step(page, in_mask),
        "click on a bar, shown in all views": cpu_per_step(page, in_bars),
        "next division by key, shown in all views": cpu_per_step(page, by_key),
    }


def time_mask(page: Page, url: str) -> dict[str, float]:
    """Return the CPU ms per recolouring, hover and wheel step of the large mask."""
    page.goto(f"{url}plan/{plan_key('mask.dcpplan')}/mask")
    page.wait_for_selector(".dcp-mask[data-state=drawn]", timeout=120_000)
    page.wait_for_timeout(500)
    first = page.evaluate(
        "performance.getEntriesByType('mark').find((m) => m.name.includes('Mask')).startTime"
    )
    box = page.locator(".dcp-mask .dcp-pixels").bounding_box()
    assert box is not None, "a drawn mask has a place on the page"

    def hover(step: int) -> None:
        page.mouse.move(box["x"] + 60 + 7 * step, box["y"] + 300 + 9 * step)

    def wheel(step: int) -> None:
        page.mouse.wheel(0, -60 if step % 10 < 5 else 59)

    drawn = [
        float(page.evaluate(
            "(colour) => { dcp.state.set({ colour });"
            " return Number(document.querySelector('.dcp-mask').dataset.frameMs); }",
            ["division", "fetch", "density", "device"][step % 4],
        ))
        for step in range(STEPS)
    ]  # fmt: skip
    page.wait_for_timeout(500)
    return {
        "large mask drawn after navigation": first,
        "large mask, recolour": statistics.median(drawn),
        "large mask, CPU per hover": cpu_per_step(page, hover),
        "large mask, CPU per wheel step": cpu_per_step(page, wheel),
    }


def time_heatmap(page: Page, url: str, size: int) -> dict[str, float]:
    """Return the CPU ms of one recolouring of a Plotly heatmap of size x size cells."""
    page.goto(url)
    page.wait_for_selector("table.dcp-plans")
    page.add_script_tag(url=f"{url}_dash-component-suites/plotly/package_data/plotly.min.js")
    page.evaluate(
        "(size) => { const d = document.createElement('div'); d.id = 'cells';"
        " document.body.prepend(d); const z = Array.from({length: size}, (_, y) =>"
        " Array.from({length: size}, (_, x) => (x <= y ? (x * 7 + y) % 64 : null)));"
        " return Plotly.newPlot(d, [{type: 'heatmap', z, colorscale: 'Viridis'}],"
        " {width: 900, height: 900}); }",
        size,
    )

    def recolour(step: int) -> None:
        name = "Viridis" if step % 2 else "Cividis"
        page.evaluate("(name) => Plotly.restyle('cells', {colorscale: name})", name)

    return {"Plotly heatmap of as many cells, recolour": cpu_per_step(page, recolour, 4)}


def cpu_per_step(page: Page, step: Callable[[int], None], steps: int = STEPS) -> float:
    """Return main-thread milliseconds per step, each followed by a drawn frame."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    before = task_seconds(session)
    for number in range(steps):
        step(number)
        page.evaluate(FRAME)
    return 1e3 * (task_seconds(session) - before) / steps


def task_seconds(session: Any) -> float:  # Any: Playwright's CDP session
    """Return the seconds that the page's main thread has been busy so far."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


def causal_plan(blocks: int, tokens: int) -> Plan:
    """Plan one causal sequence of so many blocks for 64 devices."""
    rows, columns = np.tril_indices(blocks)
    cuts = np.arange(0, blocks * tokens + 1, tokens)
    half = tokens * (tokens + 1) // 2
    total = blocks * tokens
    sparsity = BlockSparsity(
        BatchShape.of([total]), tokens, tokens, cuts, cuts,
        np.concatenate([[0], np.cumsum(np.arange(1, blocks + 1))]), columns,
        np.where(rows == columns, 1, 2), np.where(rows == columns, half, tokens**2),
        Slabs(total, [0], [total], [0], [1], [0], [1]),
    )  # fmt: skip
    config = PlanConfig(partitioner="static:zigzag", divisions=4)
    return build_plan(sparsity, ModelShape(), Cluster(nodes=DEVICES // 8), config)


def busy_trace(events: int, seed: int) -> Trace:
    """Make a trace whose lanes are busy about three quarters of one second."""
    rng = np.random.default_rng(seed)
    lanes = DEVICES * len(LANES)
    each = events // lanes
    gaps = rng.exponential(1.0, (lanes, 2 * each)) + 0.01
    gaps[:, ::2] /= 3  # pauses are shorter than events
    edges = (np.cumsum(gaps, axis=1) / gaps.sum(axis=1, keepdims=True) * 1e9).astype(np.int64)
    device, lane = np.divmod(np.repeat(np.arange(lanes), each), len(LANES))
    is_message = (lane == LANES.index("send")) | (lane == LANES.index("receive"))
    names = np.array(["attention", "kv 1", "kv 2", "wait for inputs 1"])[lane]
    start, kind = edges[:, ::2].ravel(), np.array([0, 3, 4, 5])[lane]
    table = [
        start, edges[:, 1::2].ravel(), start, device, kind, start > 4e8,
        rng.integers(0, 4, len(start)), np.where(is_message, (device + 1) % DEVICES, -1),
        np.where(is_message, 4096, 0), np.where(is_message, 0, -1),
    ]  # fmt: skip
    return Trace.of_rows("simulated", np.column_stack(table), names.tolist())


def row(what: str, values: list[float]) -> dict[str, Any]:  # Any: JSON values
    """Return one figure with its median and half of its range."""
    target = next((ms for word, ms in TARGETS.items() if word in what), None)
    return {
        "what": what, "unit": "ms", "median": round(statistics.median(values), 2),
        "spread": round((max(values) - min(values)) / 2, 2),
        "target": None if what.startswith("Plotly") else target,
    }  # fmt: skip


def table(document: dict[str, Any]) -> str:  # Any: JSON values
    """Write the figures as Markdown."""
    lines = [
        "| main thread, ms | median | ± | wanted |",
        "|---|---:|---:|---:|",
    ]
    for entry in document["rows"]:
        wanted = f"{entry['target']:g}" if entry["target"] else ""
        lines.append(
            f"| {entry['what']} | {entry['median']:.1f} | {entry['spread']:.1f} | {wanted} |"
        )
    lines.append("")
    lines.append(
        f"{document['events']:,} events on {DEVICES} devices; a mask of {document['blocks']:,} "
        f"blocks. {document['machine']}, {document['cores']} cores, Chromium "
        f"{document['chromium']}, commit {document['commit']}, {document['repeats']} repeats."
    )
    return "\n".join(lines)


def surroundings() -> dict[str, Any]:  # Any: JSON values
    """Return the machine and the versions with which this ran."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    ).stdout.strip()  # fmt: skip
    browser = subprocess.run([chromium(), "--version"], capture_output=True, text=True, check=True)
    return {
        "machine": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "commit": commit,
        "chromium": browser.stdout.split()[1],
        "versions": {name: version(name) for name in ("dash", "plotly", "numpy", "playwright")},
    }


def chromium() -> str:
    """Find the browser, or end with what to install."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        sys.exit("bench_selection: Chromium is missing; install it: apt-get install chromium")
    return found


if __name__ == "__main__":
    main()
