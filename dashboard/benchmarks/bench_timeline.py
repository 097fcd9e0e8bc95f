"""How fast the timeline appears and zooms in headless Chromium, beside bars drawn by Plotly.

A synthetic trace of 64 devices goes the way of every trace: plan file, data API, canvas. The
baseline is a Plotly bar chart of far fewer marks, zoomed by as many steps in the same browser.

    .venv/bin/python dashboard/benchmarks/bench_timeline.py [--events 50000] [--repeats 5] [--json]

CPU per step is main-thread task time (``Performance.getMetrics``) over all steps, so it counts
script, style, layout and paint, and not the time that a step waits for the next frame.
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
from dcp_dashboard.folder import plan_key
from dcp_dsl import BatchShape, BlockSparsity, Slabs
from dcp_planner import LANES, Cluster, ModelShape, PlanConfig, Trace, build_plan, write_plan

DEVICES = 64
STEPS = 30
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def main() -> None:
    """Measure and print a table, or with ``--json`` one document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--bars", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options)
    report = {"schema": "dcp.bench.timeline/1", **surroundings(), **vars(options), "rows": rows}
    if options.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{report['machine']}, {report['cores']} cores, Chromium {report['chromium']}")
    for row in rows:
        print(f"{row['what']:<52} {row['median']:>9.1f} {row['unit']}  (+/- {row['spread']:.1f})")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:  # Any: JSON values
    """Run the browser; one row per figure with its median and half the range."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_file(Path(folder) / "bench.dcpplan", options.events, options.seed)
        with start_server(folder) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            for _ in range(options.repeats + 1):  # the first one warms the caches
                context = browser.new_context(viewport={"width": 1440, "height": 900})
                page = context.new_page()
                first, ours, hover, empty = time_canvas(page, server.url)
                bars = time_bars(page, server.url, options.bars, options.seed)
                context.close()
                for name, value in (
                    ("first timeline drawn after navigation", first),
                    ("canvas, CPU per wheel step", ours),
                    ("canvas, CPU per hover", hover),
                    ("nothing, CPU per step of the measurement itself", empty),
                    (f"Plotly bars, {options.bars} marks, CPU per zoom step", bars),
                ):
                    found.setdefault(name, []).append(value)
            browser.close()
    return [
        {
            "what": name,
            "unit": "ms",
            "median": statistics.median(values[1:]),
            "spread": (max(values[1:]) - min(values[1:])) / 2,
        }
        for name, values in found.items()
    ]


def time_canvas(page: Page, url: str) -> tuple[float, float, float, float]:
    """Open the plan; give ms to the first timeline, CPU ms per wheel step, hover and nothing."""
    page.goto(f"{url}plan/{plan_key('bench.dcpplan')}")
    page.wait_for_selector(".dcp-timeline[data-state=drawn]")
    first = page.evaluate(
        "performance.getEntriesByType('mark').find((m) => m.name.includes('timeline')).startTime"
    )
    page.wait_for_selector("#traffic .main-svg")
    page.wait_for_timeout(500)
    target = page.locator(".dcp-timeline .dcp-marks")
    target.scroll_into_view_if_needed()
    box = target.bounding_box()
    assert box is not None, "a drawn timeline has a place on the page"
    left, top = box["x"], box["y"]
    page.mouse.move(left + 700, top + 100)

    def wheel(step: int) -> None:
        page.mouse.wheel(0, -60 if step % 10 < 5 else 59)

    def hover(step: int) -> None:
        page.mouse.move(left + 200 + 20 * step, top + 60 + 10 * step)

    empty = cpu_per_step(page, lambda _: None)
    return first, cpu_per_step(page, wheel), cpu_per_step(page, hover), empty


def time_bars(page: Page, url: str, marks: int, seed: int) -> float:
    """Give the CPU ms of one zoom step of a Plotly bar chart with `marks` bars."""
    page.goto(url)
    page.wait_for_selector("table")
    page.add_script_tag(url=f"{url}_dash-component-suites/plotly/package_data/plotly.min.js")
    rng = np.random.default_rng(seed)
    bars = {
        "type": "bar", "orientation": "h", "width": 0.8,
        "base": np.sort(rng.uniform(0, 1e6, marks)).tolist(), "x": [400] * marks,
        "y": rng.integers(0, DEVICES, marks).tolist(),
    }  # fmt: skip
    page.evaluate(
        "(bars) => { const d = document.createElement('div'); d.id = 'bars';"
        " document.body.prepend(d); return Plotly.newPlot(d, [bars], {height: 700}); }",
        bars,
    )

    def zoom(step: int) -> None:
        page.evaluate("(range) => Plotly.relayout('bars', {'xaxis.range': range})",
                      [1e4 * (step % 10), 1e6 - 1e4 * (step % 10)])  # fmt: skip

    return cpu_per_step(page, zoom)


def cpu_per_step(page: Page, step: Callable[[int], None]) -> float:
    """Give main-thread milliseconds per step, each followed by a drawn frame."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    before = task_seconds(session)
    for number in range(STEPS):
        step(number)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return 1e3 * (task_seconds(session) - before) / STEPS


def task_seconds(session: Any) -> float:  # Any: Playwright's CDP session
    """Give the seconds that the page's main thread has been busy so far."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


def write_file(path: Path, events: int, seed: int) -> None:
    """Write a plan for 64 devices with a synthetic trace of about `events` events."""
    tokens, block = 65_536, 1024
    blocks = tokens // block
    rows, columns = np.tril_indices(blocks)
    half = block * (block + 1) // 2
    cuts = np.arange(0, tokens + 1, block)
    sparsity = BlockSparsity(
        BatchShape.of([tokens]), block, block, cuts, cuts,
        np.concatenate([[0], np.cumsum(np.arange(1, blocks + 1))]), columns,
        np.where(rows == columns, 1, 2), np.where(rows == columns, half, block**2),
        Slabs(tokens, [0], [tokens], [0], [1], [0], [1]),
    )  # fmt: skip
    cluster = Cluster(nodes=DEVICES // 8)
    plan = build_plan(sparsity, ModelShape(), cluster, PlanConfig(partitioner="static:zigzag"))
    write_plan(path, plan, (synthetic_trace(events, seed),))


def synthetic_trace(events: int, seed: int) -> Trace:
    """Make a trace whose lanes are busy about three quarters of one second."""
    rng = np.random.default_rng(seed)
    per_lane = events // (DEVICES * len(LANES))
    size = per_lane * DEVICES * len(LANES)
    gaps = rng.exponential(1.0, (DEVICES * len(LANES), 2 * per_lane)) + 0.01
    gaps[:, ::2] /= 3  # pauses are shorter than events
    edges = (np.cumsum(gaps, axis=1) / gaps.sum(axis=1, keepdims=True) * 1e9).astype(np.int64)
    device, lane = np.divmod(np.repeat(np.arange(DEVICES * len(LANES)), per_lane), len(LANES))
    is_message = (lane == LANES.index("send")) | (lane == LANES.index("receive"))
    names = np.array(["attention", "kv 1", "kv 2", "wait"])[lane]
    return Trace(
        "simulated", edges[:, ::2].ravel(), edges[:, 1::2].ravel(), device, lane,
        edges[:, ::2].ravel() > 4e8, rng.integers(0, 4, size),
        np.where(is_message, (device + 1) % DEVICES, -1), np.where(is_message, 4096, 0),
        tuple(names.tolist()),
    )  # fmt: skip


def surroundings() -> dict[str, Any]:  # Any: JSON values
    """Say on what machine and with which versions this ran."""
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
        sys.exit("bench_timeline: Chromium is missing; install it: apt-get install chromium")
    return found


if __name__ == "__main__":
    main()
