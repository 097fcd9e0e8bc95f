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
import statistics
import tempfile
from pathlib import Path
from typing import Any

from headless import VIEWPORT, browser_machine, cpu_per_step, launch
from playwright.sync_api import Page, sync_playwright
from recording import report
from synthetic import DEVICES, causal_plan, synthetic_trace

from dcp_dashboard import start_server
from dcp_dashboard.library.folder import plan_key
from dcp_planner import write_plan

STEPS = 16
TARGETS = {"click": 60.0, "recolour": 10.0, "hover": 2.0}


def main() -> None:
    """Measure and print a table, or with ``--table`` print one of earlier results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--blocks", type=int, default=1_024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    report(parser, run, table)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the document."""
    return {
        "schema": "dcp.bench.selection/2", "machine": browser_machine(), "seed": options.seed,
        "events": options.events, "blocks": options.blocks, "repeats": options.repeats,
        "rows": measure(options),
    }  # fmt: skip


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:  # Any: JSON values
    """Run the browser; one row per figure."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        small = causal_plan(64, 1_024)
        write_plan(
            Path(folder) / "trace.dcpplan", small, (synthetic_trace(options.events, options.seed),)
        )
        write_plan(Path(folder) / "mask.dcpplan", causal_plan(options.blocks, 128))
        with start_server(folder) as server, sync_playwright() as playwright:
            browser = launch(playwright)
            for _ in range(options.repeats + 1):  # the first one warms the caches
                context = browser.new_context(viewport=VIEWPORT)
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
        "nothing, the measurement itself": cpu_per_step(page, lambda _: None, STEPS),
        "click on a tile, shown in all views": cpu_per_step(page, in_mask, STEPS),
        "click on a bar, shown in all views": cpu_per_step(page, in_bars, STEPS),
        "next division by key, shown in all views": cpu_per_step(page, by_key, STEPS),
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
        "large mask, CPU per hover": cpu_per_step(page, hover, STEPS),
        "large mask, CPU per wheel step": cpu_per_step(page, wheel, STEPS),
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
    where = document["machine"]
    lines.append("")
    lines.append(
        f"{document['events']:,} events on {DEVICES} devices; a mask of {document['blocks']:,} "
        f"blocks. {where['processor']}, {where['cores']} cores, Chromium "
        f"{where['chromium']}, commit {where['commit']}, {document['repeats']} repeats."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
