"""Measure in headless Chromium how fast the timeline appears, zooms and answers.

Synthetic traces of 64 devices go the way of every trace: plan file, data API, canvas. The baseline
is a Plotly bar chart of far fewer marks, zoomed by as many steps in the same browser.

    .venv/bin/python dashboard/benchmarks/bench_timeline.py [--json OUT] [--events 50000,1000000]
    .venv/bin/python dashboard/benchmarks/bench_timeline.py --table OUT

CPU per step is what the page's main thread computed over all steps (``Performance.getMetrics`` in
thread time, so neighbours on the machine count little), less that of as many empty steps: script,
style, layout and paint, not the time that a step waits for the next frame.
"""

import argparse
import gzip
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from headless import FRAME, VIEWPORT, browser_machine, cpu_per_step, launch
from playwright.sync_api import Browser, Page, sync_playwright
from recording import report
from synthetic import DEVICES, causal_plan, synthetic_trace

from dcp_dashboard import start_server
from dcp_dashboard.library.folder import plan_key
from dcp_planner import (
    simulate,
    to_perfetto,
    write_plan,
)

STEPS = 30
TIMELINE = ".dcp-timeline"
CLICK = """async (at) => {
  const target = document.querySelector('.dcp-timeline .dcp-marks');
  const box = target.getBoundingClientRect();
  const facts = {
    clientX: box.left + at[0], clientY: box.top + at[1], button: 0, pointerId: 1, bubbles: true,
  };
  target.setPointerCapture = () => {};
  const begun = performance.now();
  target.dispatchEvent(new PointerEvent('pointerdown', facts));
  target.dispatchEvent(new PointerEvent('pointerup', facts));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return [performance.now() - begun, JSON.stringify(window.dcp.state.get().sel || null)];
}"""
RECOLOUR = """async (mode) => {
  const host = document.querySelector('.dcp-mask');
  window.dcp.state.set({ colour: mode });
  host.dataset.mode = mode;
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return Number(host.dataset.frameMs);
}"""

Rows = dict[str, tuple[str, list[float]]]


def main() -> None:
    """Measure and print a table, or with ``--json`` write one document too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", default="50000,1000000", help="sizes of the traces")
    parser.add_argument("--bars", type=int, default=2_000)
    parser.add_argument("--blocks", type=int, default=1024, help="of the mask's side; 0: none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    report(parser, run, table)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the document."""
    settings = {"events": options.events, "repeats": options.repeats, "seed": options.seed}
    document = {"schema": "dcp.bench.timeline/3", "machine": browser_machine(), **settings}
    document["rows"] = measure(options)
    return document


def table(document: dict[str, Any]) -> str:  # Any: JSON values
    """Return the report as Markdown."""
    where = document["machine"]
    lines = [
        f"{where['processor']}, {where['cores']} cores, Chromium {where['chromium']}, medians of "
        f"{document['repeats']}:",
        "",
        "| what | median | spread |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {row['what']} | {row['median']:,.1f} {row['unit']} | {row['spread']:.1f} |"
        for row in document["rows"]
    ]
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:  # Any: JSON values
    """Run the browser; one row per figure with its median and half the range."""
    found: Rows = {}
    sizes = [int(size) for size in options.events.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            trace = synthetic_trace(size, options.seed)
            write_plan(Path(folder) / f"{size}.dcpplan", causal_plan(64, 1024), (trace,))
        if options.blocks:
            plan = causal_plan(options.blocks, 256)
            write_plan(Path(folder) / "mask.dcpplan", plan, (simulate(plan),))
        with start_server(folder) as server, sync_playwright() as playwright:
            browser = launch(playwright)
            for number in range(options.repeats + 1):  # the first one warms the caches
                note = noter(found, is_kept=number > 0)
                for size in sizes:
                    visit(browser, server.url, size, note)
                time_bars(browser, server.url, options.bars, options.seed, note)
            if options.blocks:
                time_mask(browser, server.url, options.blocks, noter(found, is_kept=True))
            browser.close()
    time_perfetto(max(sizes), options.seed, noter(found, is_kept=True))
    return [
        {
            "what": name,
            "unit": unit,
            "median": statistics.median(values),
            "spread": (max(values) - min(values)) / 2,
        }
        for name, (unit, values) in found.items()
    ]


Note = Callable[[str, float, str], None]


def noter(found: Rows, *, is_kept: bool) -> Note:
    """Return a function that writes figures down."""

    def note(what: str, value: float, unit: str = "ms") -> None:
        if is_kept:
            found.setdefault(what, (unit, []))[1].append(value)

    return note


def visit(browser: Browser, url: str, size: int, note: Note) -> None:
    """Open the timeline's page of a trace, zoom, drag, hover and click."""
    context = browser.new_context(viewport=VIEWPORT)
    page = context.new_page()
    page.set_default_timeout(120_000)
    weights: dict[str, int] = {}
    page.on("response", lambda answer: weigh(answer, weights))
    what = f"{size:,} events: "
    page.goto(f"{url}plan/{plan_key(f'{size}.dcpplan')}/timeline")
    page.wait_for_selector(f"{TIMELINE}[data-state=drawn]")
    mark = "performance.getEntriesByType('mark').find((m) => /timeline/i.test(m.name)).startTime"
    note(f"{what}timeline drawn after navigation", page.evaluate(mark), "ms")
    page.wait_for_timeout(500)
    if size < 100_000:
        note("page weight without its data", sum_of(weights, is_data=False) / 1e3, "kB")
    note(f"{what}data", sum_of(weights, is_data=True) / 1e3, "kB")
    box = page.locator(f"{TIMELINE} .dcp-marks").bounding_box()
    assert box is not None, "a drawn timeline has a place on the page"
    left, top = box["x"], box["y"]
    page.mouse.move(left + 700, top + 100)
    empty = cpu_per_step(page, lambda _: None, STEPS)

    def wheel(step: int) -> None:
        page.mouse.wheel(0, -60 if step % 10 < 5 else 59)

    def hover(step: int) -> None:
        page.mouse.move(left + 200 + 20 * (step % 30), top + 60 + 10 * (step % 40))

    note(f"{what}CPU per wheel step", cpu_per_step(page, wheel, STEPS) - empty, "ms")
    note(f"{what}CPU per hover", cpu_per_step(page, hover, STEPS) - empty, "ms")
    page.mouse.down()
    drag = cpu_per_step(
        page, lambda step: page.mouse.move(left + 500 + step % 7 * 9, top + 90), STEPS
    )
    page.mouse.up()
    note(f"{what}CPU per drag step", drag - empty, "ms")
    page.keyboard.press("0")
    clicks = [click for step in range(20) if (click := time_click(page, step))]
    note(f"{what}click to selection drawn", statistics.median(clicks), "ms")
    context.close()


def time_click(page: Page, step: int) -> float | None:
    """Return ms from a click to the next frame, if it selected something."""
    page.evaluate("() => window.dcp.state.set({ sel: null })")
    page.evaluate(FRAME)
    spent, chosen = page.evaluate(CLICK, [200 + 40 * step, 50 + 11 * step])
    return None if chosen == "null" else float(spent)


def weigh(answer: Any, weights: dict[str, int]) -> None:  # Any: Playwright's response
    """Note the bytes of an answer as they travel."""
    length = answer.headers.get("content-length")
    weights[answer.url] = int(length) if length else 0


def sum_of(weights: dict[str, int], *, is_data: bool) -> int:
    """Return the bytes of a plan's data, or of everything else except Plotly."""
    return sum(
        size for url, size in weights.items()
        if ("/api/" in url) == is_data and "plotly.min" not in url
    )  # fmt: skip


def time_bars(browser: Browser, url: str, marks: int, seed: int, note: Note) -> None:
    """Time zoom steps of a Plotly bar chart with `marks` bars."""
    context = browser.new_context(viewport=VIEWPORT)
    page = context.new_page()
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

    note(f"Plotly, {marks:,} bars: CPU per zoom step", cpu_per_step(page, zoom, STEPS), "ms")
    context.close()


def time_mask(browser: Browser, url: str, blocks: int, note: Note) -> None:
    """Time how long another colouring of a large mask takes."""
    context = browser.new_context(viewport=VIEWPORT)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{url}plan/{plan_key('mask.dcpplan')}")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    page.wait_for_timeout(500)
    for mode in ("division", "density", "fetch", "device", "division", "device"):
        note(f"mask of {blocks:,}² blocks: recolour", page.evaluate(RECOLOUR, mode), "ms")
    context.close()


def time_perfetto(size: int, seed: int, note: Note) -> None:
    """Time the export of a trace, and say how large it is."""
    trace = synthetic_trace(size, seed)
    for _ in range(3):
        begun = time.process_time()
        data = to_perfetto(trace)
        note(f"{size:,} events: CPU of the Perfetto file", 1e3 * (time.process_time() - begun))
    note(f"{size:,} events: the Perfetto file, gzip", len(gzip.compress(data, 1)) / 1e6, "MB")


if __name__ == "__main__":
    main()
