"""Measure the seconds from opening the playground to its first picture, in Chromium.

```
make docs && python docs/playground/measure.py     # wall and CPU seconds of all its processes
```
"""

import functools
import http.server
import shutil
import threading
import time
from pathlib import Path

import psutil
from playwright.sync_api import sync_playwright

SITE = Path(__file__).resolve().parents[2] / "build" / "site"


def spent() -> float:
    """Return the CPU seconds of the browser so far."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def main() -> None:
    """Open the page five times, each time as a new visitor."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    handler.func.log_message = lambda *_: None  # type: ignore[method-assign]  # keep it quiet
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for _ in range(5):
            page = browser.new_context().new_page()
            begin, before = time.perf_counter(), spent()
            page.goto(f"http://127.0.0.1:{server.server_port}/playground/index.html")
            page.wait_for_selector('body[data-drawn="true"]', timeout=120_000)
            print(f"{time.perf_counter() - begin:.2f} s, CPU {spent() - before:.2f} s")


if __name__ == "__main__":
    main()
