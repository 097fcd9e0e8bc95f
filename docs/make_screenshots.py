"""Make the pictures of the dashboard in docs/pictures: plan, run, serve, and photograph each page.

```
python docs/make_screenshots.py            # all; or names of pictures: overview mask
```

The script makes all it shows in a temporary folder: sequences of a fixed seed, plans for two
simulated nodes, and one small plan that really runs on four ranks of this machine, so that
predicted and measured times stand beside each other. Only the measured times differ from call to
call. `training` shows two runs of a few steps on two ranks, one of them slowed down: one run
without feedback of rates, one with it. The script needs the extras of `dev` and Chromium.
"""

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, quote, urljoin, urlsplit

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from dcp_dashboard import start_server

PICTURES = Path(__file__).resolve().parent / "pictures"
SCENARIO = PICTURES.parents[1] / "tests" / "runtime" / "rates_scenario.py"
SEED = 7
WIDTH, HEIGHT, SCALE = 1440, 900, 1.5
COLOURS = 160
"""Size of a picture's palette. A page has few colours, most of them in anti-aliased text."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]

SPEC = """dcpm 1
# An answer sees the question and itself, not the other answers.
segment part = question[question_len] branch answer[answer_lens]*

mask shared_question = causal and (k in question or same(answer))
mask streaming_llm(sink: tokens = 64, window: tokens = 1k) =
  causal and (k < sink or q - k < window)

sample tiny(question_len = 4, answer_lens = [3, 5])
check shared_question total

for "*" having answer_lens use shared_question
"""
BROKEN = SPEC.replace("= causal and (k in question", "= casual and (k in question")


def write_rows(path: Path, rows: int = 64) -> None:
    """Write questions with two to six answers, their lengths spread as those of chats are."""
    random = np.random.default_rng(SEED)
    with path.open("w", encoding="utf-8") as out:
        for _ in range(rows):
            question = int(np.clip(random.lognormal(7.6, 0.8), 200, 20_000))
            answers = np.clip(random.lognormal(6.6, 0.9, random.integers(2, 7)), 64, 9000)
            lengths = answers.astype(int).tolist()
            row = {"question_len": question, "answer_lens": lengths}
            out.write(json.dumps({**row, "length": question + sum(lengths)}) + "\n")


def dcpm(folder: Path, *arguments: str) -> None:
    """Run a command of the project in a folder, as a person would."""
    program = Path(sys.executable).with_name("dcpm")
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"dcpm {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr}")


def make_plans(folder: Path) -> None:
    """Fill a folder with all that the pages show: plans, a run, a planned data set."""
    (folder / "train.dcpm").write_text(SPEC, encoding="utf-8")
    write_rows(folder / "chats.jsonl")
    data = ("plan", "train.dcpm", "--dataset", "chats.jsonl")
    batch = (*data, "--tokens", "65536", "--cluster", "a100-p4de:2x8")
    dcpm(folder, *batch, "--out", "shared-question.dcpplan")
    dcpm(folder, *batch, "--backend", "static:zigzag", "--out", "zigzag.dcpplan")
    streaming = ("--mask", "streaming_llm", "--batch", "1", "--out", "streaming.dcpplan")
    dcpm(folder, *batch, *streaming)
    many = ("--batches", "8", "--against", "static", "--budget", "fast", "--out", "chats")
    dcpm(folder, *batch, *many)
    small = ("--tokens", "8192", "--cluster", "cpu-gloo:1x4", "--heads", "8/2/64")
    dcpm(folder, *data, *small, "--out", "run.dcpplan")
    dcpm(folder, "run", "run.dcpplan", "--verify", "--trace", "run.dcpplan")


def train(folder: Path) -> None:
    """Train on two ranks, the second of them slow, without and with feedback of rates."""
    for name, feedback in (("equal-shares", "off"), ("measured-rates", "on")):
        (folder / name).mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}  # fmt: skip
        ranks = [
            subprocess.Popen(
                [sys.executable, SCENARIO, folder / name, feedback], stdout=subprocess.DEVNULL,
                env={**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank},
            )
            for rank in ("0", "1")
        ]  # fmt: skip
        statuses = [rank.wait() for rank in ranks]
        if any(statuses):
            sys.exit("the training run failed")


def settle(page: Page) -> None:
    """Wait until every chart of a page is drawn and no request is open."""
    page.wait_for_selector("#page > *")  # the page itself comes with a request of its own
    page.wait_for_load_state("networkidle")
    page.wait_for_function(  # charts in closed sections are loaded when these are opened
        "() => [...document.querySelectorAll('[data-state=loading], .dash-graph')].every((host) =>"
        " host.closest('details:not([open])') || host.querySelector('.main-svg'))"
    )
    page.wait_for_timeout(400)  # transitions of colours and the frame after them


def go(page: Page, path: str) -> None:
    """Open a page below the address of the server and wait for it."""
    page.goto(urljoin(page.url, path))
    settle(page)


def plan_path(page: Page, name: str) -> str:
    """Return the address of a plan's page, looked up in the list."""
    go(page, "/")
    link = page.locator(f"a[href^='/plan/']:has-text('{name}')").first
    return link.get_attribute("href") or sys.exit(f"no plan {name} in the list")


def overview(page: Page) -> None:
    """Show the answers of a plan: its costs, its idlest devices, what it gains, its figures."""
    go(page, plan_path(page, "shared-question"))


def mask(page: Page) -> None:
    """Show the mask so near that tiles show single pairs."""
    go(page, plan_path(page, "run") + "/mask?tokens=1900-3100-1900-3100&colour=device")
    page.wait_for_selector(".dcp-mask[data-detail=shown]")


def run(page: Page) -> None:
    """Show the run's whole timeline, predicted above measured."""
    go(page, plan_path(page, "run") + "/timeline")


def timeline(page: Page) -> None:
    """Show the longest wait of the run, with an arrow for the message that ends it."""
    path = plan_path(page, "run")
    go(page, path)
    waits = page.locator("[data-sel][data-time]").filter(has_text="arrives from device").last
    told = r"Device (\d+) waits .* until the last message, (\w+ \d+), arrives from device (\d+)"
    found = re.search(told, waits.inner_text())
    if found is None:
        sys.exit(f"expected a finding about the longest wait, got: {waits.inner_text()}")
    time = waits.get_attribute("data-time")
    direction = "backward" if "(backward)" in waits.inner_text() else "forward"
    words = f"gpu {found[1]} from {found[3]} {found[2]} {direction}"
    shown = f"{path}/timeline?source=measured"
    go(page, f"{shown}&find={quote(words)}")
    page.locator("button[aria-label='Next match']").click()
    page.wait_for_url("**sel=event.*")
    selected = parse_qs(urlsplit(page.url).query)["sel"][0]
    go(page, f"{shown}&sel={selected}&time={time}")


def compare(page: Page) -> None:
    """Compare two placements of one batch."""
    ours, theirs = plan_path(page, "shared-question"), plan_path(page, "zigzag")
    go(page, f"/compare?a={ours.rsplit('/', 1)[1]}&b={theirs.rsplit('/', 1)[1]}")


def dataset(page: Page) -> None:
    """Show the report of a planned data set."""
    go(page, "/")
    page.locator("a[href^='/dataset/']").first.click()
    page.wait_for_selector(".dash-graph .main-svg")
    settle(page)


def edit(page: Page) -> None:
    """Show the editor with a misspelt name, its squiggle and its quick fix."""
    go(page, "/edit?spec=std:shared_question")
    page.wait_for_selector("#edit[data-state=drawn]")
    page.wait_for_selector("[data-part=picture][data-state=drawn]")
    page.focus("#edit .cm-content")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(BROKEN)
    page.wait_for_selector(".cm-lintRange-error")
    page.wait_for_selector(".dcp-fix")
    page.mouse.move(2, 2)
    settle(page)


def training(page: Page) -> None:
    """Compare two runs: rank 1 is slow in both, and the plans of the second run know it."""
    go(page, "/")
    names = ("equal-shares", "measured-rates")
    links = [page.locator(f"a[href^='/run/']:has-text('{name}')").first for name in names]
    first, second = (link.get_attribute("href").rsplit("/", 1)[1] for link in links)
    go(page, f"/run/{first}/{second}")
    page.wait_for_selector("#run-chart .main-svg")


def plans(page: Page) -> None:
    """Show the list of the folder, without the path of the temporary folder around it."""
    go(page, "/")
    page.get_by_text(re.compile(r" in /\S+$")).evaluate(
        "(line) => { line.textContent = line.textContent.replace(/in \\S*\\//, 'in '); }"
    )


SHOTS: dict[str, tuple[Callable[[Page], None], str, int]] = {
    "overview": (overview, "light", 1252),
    "overview-dark": (overview, "dark", 1252),
    "timeline": (timeline, "light", 600),
    "run": (run, "light", 780),
    "mask": (mask, "light", 880),
    "compare": (compare, "light", HEIGHT),
    "dataset": (dataset, "light", 560),
    "edit": (edit, "light", HEIGHT),
    "list": (plans, "light", HEIGHT),
    "training": (training, "light", 1270),
}
"""By the name of a picture: how to show it, the theme, the height of the window in CSS pixels."""


def photograph(browser: Browser, base: str, name: str) -> None:
    """Show one page in a window of its own and write it as a PNG with a palette."""
    show, theme, height = SHOTS[name]
    context = browser.new_context(
        viewport={"width": WIDTH, "height": height},
        device_scale_factor=SCALE,
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
    )
    page = context.new_page()
    page.set_default_timeout(120_000)  # a first preview compiles the planner
    page.goto(base)
    show(page)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    context.close()
    # Median cut would give the few pixels of a legend another colour.
    small = image.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(PICTURES / f"{name}.png", optimize=True)


def main() -> None:
    """Make the pictures named in the arguments, or all."""
    names = sys.argv[1:] or list(SHOTS)
    unknown = sorted(set(names) - set(SHOTS))
    if unknown:
        sys.exit(f"expected names of {', '.join(SHOTS)}; got {', '.join(unknown)}")
    names_of_chromium = ("chromium", "chromium-browser", "chromium-headless-shell")
    chromium = next(filter(None, map(shutil.which, names_of_chromium)), None)
    if chromium is None:
        sys.exit("Chromium is missing: apt-get install chromium")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "runs"
        folder.mkdir()
        print("planning and running", file=sys.stderr)
        if names != ["training"]:
            make_plans(folder)
        if "training" in names:
            train(folder)
        with start_server(folder) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            for name in names:
                photograph(browser, server.url, name)
                size = (PICTURES / f"{name}.png").stat().st_size
                print(f"{name}.png  {size / 1000:,.0f} kB", file=sys.stderr)
            browser.close()


if __name__ == "__main__":
    main()
