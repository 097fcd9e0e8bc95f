"""Measure how soon the editor answers a key in headless Chromium: underline, picture, preview.

A text of fifty lines stands in the editor; a letter makes one name unknown, a second key takes it
away again. Times begin with the key's event and end with the frame behind the change of the page.

    .venv/bin/python dashboard/benchmarks/bench_editor.py [--json OUT] [--repeats 15]
    .venv/bin/python dashboard/benchmarks/bench_editor.py --table JSON
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from headless import VIEWPORT, browser_machine, launch
from playwright.sync_api import Page, sync_playwright
from recording import report

from dcp_dashboard import start_server
from dcp_dashboard.editing.routes import make_worker
from dcp_dashboard.library.folder import plan_key
from dcp_dsl import check_report

TEXT = Path(__file__).parent / "data" / "fifty.dcpm"
LAST_LINE = "\nmask bench = causal"

# Notes the time of the latest key, and of the first frame in which each thing became visible since.
WATCH = """() => {
  const seen = (window.seen = {});
  const part = (name) => document.querySelector(`[data-part="${name}"]`);
  const states = {
    underlined: () => Boolean(document.querySelector('.cm-lintRange-error')),
    clean: () => !document.querySelector('.cm-lintRange-error'),
    picture: () => part('picture').dataset.state === 'drawn',
    preview: () => part('cards').hasAttribute('aria-busy') === false,
  };
  let before = {};
  const look = () => {
    for (const [name, holds] of Object.entries(states)) {
      const now = holds();
      if (now && before[name] === false) {
        requestAnimationFrame(
          () => setTimeout(() => { seen[name] = performance.now() - window.key; }));
      }
      before[name] = now;
    }
  };
  look();
  new MutationObserver(look).observe(document.getElementById('edit'),
    { subtree: true, childList: true, attributes: true });
  document.addEventListener('keydown', () => {
    window.key = performance.now();
    for (const name of Object.keys(seen)) delete seen[name];
  }, true);
}"""


def main() -> None:
    """Measure, or print the table of earlier results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    report(parser, run, table)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; return the document."""
    repeats = options.repeats
    rows = [*measure_page(repeats), *measure_previews(repeats), *measure_checker(repeats)]
    return {
        "schema": "dcp.bench.editor/2",
        "machine": browser_machine(),
        "seed": 0,
        "rows": rows,
    }


def measure_page(repeats: int) -> list[dict[str, Any]]:  # Any: JSON values
    """Type into the page; give a row per figure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fifty.dcpm"
        path.write_text(TEXT.read_text(encoding="utf-8") + LAST_LINE, encoding="utf-8")
        with start_server(folder) as server, sync_playwright() as playwright:
            browser = launch(playwright)
            page = browser.new_page(viewport=VIEWPORT)
            weights: dict[str, float] = {}
            page.on("response", lambda r: weights.update({r.url: weigh(r)}))
            url = f"{server.url}edit?spec={plan_key('fifty.dcpm')}"
            opened = [open_editor(page, url) for _ in range(4)][1:]  # the first one starts workers
            weight = sum(size for name, size in weights.items() if "plotly" not in name) / 1e6
            times = [press_keys(page) for _ in range(repeats + 2)][2:]
            browser.close()
    rows = [
        row("navigation to the editor", "ms", opened),
        *(row(what, "ms", [found[name] for found in times]) for name, what in NAMES.items()),
        row("page weight as sent, without Plotly", "MB", [weight]),
    ]
    return rows


NAMES = {
    "underlined": "key to underline",
    "clean": "key that mends to no underline",
    "picture": "key that mends to the picture",
    "preview": "key that mends to the preview of a plan",
}


def weigh(response: Any) -> float:  # Any: Playwright's response
    """Return the bytes of a response's body, 0 without one."""
    return float(response.headers.get("content-length", 0))


def open_editor(page: Page, url: str) -> float:
    """Open the page; give the milliseconds until the editor is there."""
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector("#edit[data-state=drawn]")
    shown = page.evaluate("performance.getEntriesByName('dcp drawn: editor')[0].startTime")
    page.wait_for_selector("[data-part=picture][data-state=drawn]")
    page.wait_for_selector("[data-part=cards][data-tokens]", timeout=120_000)
    page.focus(".cm-content")
    page.keyboard.press("Control+End")
    page.evaluate(WATCH)
    return float(shown)


def press_keys(page: Page) -> dict[str, float]:
    """Type an error and remove it; return the milliseconds until each reaction."""
    page.wait_for_timeout(600)
    page.keyboard.press("x")
    page.wait_for_function("() => 'underlined' in window.seen")
    found = {"underlined": page.evaluate("window.seen.underlined")}
    page.wait_for_timeout(400)
    page.keyboard.press("Backspace")
    names = ["clean", "picture", "preview"]
    page.wait_for_function("(names) => names.every((name) => name in window.seen)", arg=names)
    return found | {name: page.evaluate(f"window.seen.{name}") for name in names}


def measure_checker(repeats: int) -> list[dict[str, Any]]:  # Any: JSON values
    """Time the same check without a browser."""
    text = TEXT.read_text(encoding="utf-8") + LAST_LINE
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        check_report(text + "x")
        times.append(1e3 * (time.perf_counter() - start))
    alone = times[2:]
    return [
        row("baseline: the check alone, text with the error", "ms", alone),
        row("baseline: language server, its pause and the check", "ms", [150 + t for t in alone]),
    ]


def measure_previews(repeats: int) -> list[dict[str, Any]]:  # Any: JSON values
    """Time previews of a moderate batch in a worker, from request to answer."""
    worker = make_worker("plan")
    asked = {
        "task": "preview", "text": "", "mask": "streaming(64, 4k)", "sample": "131072",
        "nodes": 4, "devices_per_node": 8,
    }  # fmt: skip
    rows = []
    for method in ("static:zigzag", "native", "portfolio"):
        times = []
        for _ in range(repeats + 2):
            start = time.perf_counter()
            worker.call({**asked, "method": method}, 60)
            times.append(1e3 * (time.perf_counter() - start))
        rows.append(row(f"preview of 131,072 tokens on 4 x 8 devices, {method}", "ms", times[2:]))
    worker.close()
    return rows


def row(what: str, unit: str, values: list[float]) -> dict[str, Any]:  # Any: JSON values
    """Return median and spread of a figure."""
    ordered = sorted(values)
    return {
        "what": what,
        "unit": unit,
        "median": round(statistics.median(ordered), 2),
        "p10": round(ordered[len(ordered) // 10], 2),
        "p90": round(ordered[(9 * len(ordered)) // 10 if len(ordered) > 1 else 0], 2),
    }


def table(document: dict[str, Any]) -> str:  # Any: JSON values
    """Return the Markdown table of a document."""
    lines = ["| what | median | 10 % to 90 % |", "|---|--:|--:|"]
    for found in document["rows"]:
        unit = found["unit"]
        spread = f"{found['p10']:g} to {found['p90']:g} {unit}"
        lines.append(f"| {found['what']} | {found['median']:g} {unit} | {spread} |")
    where = document["machine"]
    lines += [
        "",
        f"{where['processor']}, {where['cores']} cores, Chromium {where['chromium']}, Python "
        f"{where['python']}, commit {where['commit']}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
