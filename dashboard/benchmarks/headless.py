"""Run headless Chromium for the dashboard's benchmarks: start it, time steps, report versions."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recording import machine

FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
VIEWPORT = {"width": 1440, "height": 900}
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def launch(playwright: Playwright) -> Browser:
    """Start the browser."""
    return playwright.chromium.launch(executable_path=_chromium(), args=_FLAGS)


def cpu_per_step(page: Page, step: Callable[[int], None], steps: int) -> float:
    """Return CPU milliseconds of the main thread per step, each followed by a drawn frame."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _task_seconds(session)
    for number in range(steps):
        step(number)
        page.evaluate(FRAME)
    spent = _task_seconds(session) - before
    session.detach()
    return 1e3 * spent / steps


def _task_seconds(session: Any) -> float:  # Any: Playwright's CDP session
    """Return the seconds that the page's main thread has computed so far."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


def browser_machine() -> dict[str, Any]:  # Any: JSON values
    """Describe the machine, with the versions of the browser, Dash, Plotly and Playwright."""
    shown = subprocess.run([_chromium(), "--version"], capture_output=True, text=True, check=True)
    chromium = shown.stdout.split()[1]
    return machine("dash", "plotly", "playwright") | {"chromium": chromium}


def _chromium() -> str:
    """Find the browser, or end with what to install."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        sys.exit("Chromium is missing; install it: apt-get install chromium")
    return found
