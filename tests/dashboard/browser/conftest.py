"""A real browser: every page that a test opens may log no error and ask no other host."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from canvases import READ
from chromium import find_chromium
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

from dcp_dashboard import RunningServer, start_server
from dcp_dashboard.library.folder import plan_key
from dcp_planner import preset
from dcp_planner.step import Documents, StepMesh, StepSetting, plan_step, step_model, write_step

CHROMIUM = find_chromium()
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip

HERE = Path(__file__).parent
VIEWPORT = {"width": 1440, "height": 900}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a browser; without one it says what to install."""
    missing = pytest.mark.skipif(
        CHROMIUM is None, reason="Chromium is missing: apt-get install chromium-headless-shell"
    )
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(missing)


DISTINCT = """(canvas) => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(data.buffer)).size;
}"""
DIGEST = """(canvas) => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let sum = 0;
  for (const pixel of new Uint32Array(data.buffer)) sum = (Math.imul(sum, 31) + pixel) | 0;
  return sum;
}"""


@dataclass
class Visit:
    """An open page and everything that went wrong on it."""

    page: Page
    origin: RunningServer
    answering: RunningServer
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    pending: set[Request] = field(default_factory=set)

    @property
    def base(self) -> str:
        return self.origin.url

    def open(self, path: str) -> Page:
        """Show a page of the application, by its own navigation where it runs already.

        A document that is loaded anew compiles its scripts again, two thirds of the cost of a test.
        """
        if self.page.url.startswith(self.base):
            self.page.evaluate("dcp.state.flush()")
            if self.page.url == self.base + path:  # the address holds all that is selected or shown
                self.page.evaluate("scrollTo(0, 0)")
                self.requests.append(self.page.url)  # it is shown as if it had come now
                return self.page
            self.leave()
            self.page.evaluate("(path) => dcp.navigation.open(path)", f"/{path}")
            self.page.wait_for_selector("main >> text=got /nowhere", state="detached")
        else:
            self.page.goto(self.base + path)
        return self.page

    def leave(self) -> None:
        """Ask for a page that does not exist, so that nothing of the last one is left."""
        self.page.evaluate("dcp.navigation.open('/nowhere')")
        self.page.wait_for_selector("main >> text=got /nowhere", state="attached")

    def answer(self, server: RunningServer) -> None:
        """Let the application of a server answer at our address, where scripts stay compiled."""
        if self.answering is server:
            return
        if self.page.url.startswith(self.base):
            self.leave()
        self.settle()  # the next application may know nothing of what is asked for
        self.origin._waitress.application = server._waitress.application
        self.answering = server

    def settle(self) -> None:
        """Wait until the server has answered all that the page asked for."""
        limit_s = time.monotonic() + 20
        while self.pending:
            assert time.monotonic() < limit_s, [request.url for request in self.pending]
            self.page.wait_for_timeout(5)

    @contextmanager
    def serving(self, folder: Path) -> Iterator[None]:
        """Serve another folder at our address."""
        before = self.answering
        with start_server(folder) as other:
            self.answer(other)
            try:
                yield
            finally:
                self.answer(before)

    def open_plan(self, name: str) -> Page:
        self.open(f"plan/{plan_key(name)}")
        self.page.wait_for_selector(".dcp-mask[data-state=drawn]")
        self.page.wait_for_selector(".dcp-timeline[data-state=drawn]", state="attached")
        return self.page

    def colours_at(self, selector: str, points: list[tuple[float, float]]) -> list[str]:
        """Colours of a canvas at points given as shares of its width and height."""
        return self.page.eval_on_selector(f"{selector} .dcp-pixels", READ, points)

    def distinct(self, selector: str) -> int:
        """Count the colours that a canvas shows."""
        return self.page.eval_on_selector(f"{selector} .dcp-pixels", DISTINCT)

    def digest(self, selector: str, layer: str = "pixels") -> int:
        """A number for a layer of a canvas, once a frame has drawn what another set."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame("
            "() => setTimeout(done, 0))))"
        )
        return self.page.eval_on_selector(f"{selector} .dcp-{layer}", DIGEST)

    def hover_at(self, selector: str, x: float, y: float) -> str:
        """Hover over a point of a canvas, given as shares; give the text of the tooltip."""
        canvas = self.page.locator(f"{selector} .dcp-pixels")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        self.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        tooltip = self.page.locator(f"{selector} .dcp-tooltip")
        tooltip.wait_for(state="visible")
        return tooltip.inner_text()


@pytest.fixture
def small_step(tmp_path) -> Path:
    """A planned step whose documents lie on two nodes, on one, and on single devices."""
    documents = Documents.causal([60_000, 20_000, *[3_000] * 60])
    model, cluster = step_model("llama-8b"), preset("h100-dgx", 2, 4)
    plan = plan_step(documents, StepSetting(StepMesh(2, 4, 2), model, cluster, token_budget=80_000))
    path = tmp_path / "a.dcpstep.json"
    write_step(path, plan, documents)
    return path


@pytest.fixture(scope="session")
def origin(served_folder) -> Iterator[RunningServer]:
    """The server behind the one address of all tests; which application answers changes."""
    with start_server(served_folder) as running:
        yield running


@pytest.fixture(scope="session")
def server(served_folder) -> Iterator[RunningServer]:
    """The server whose application answers; files of tests have others."""
    with start_server(served_folder) as running:
        yield running


@pytest.fixture(scope="session")
def editing_server(served_folder) -> Iterator[RunningServer]:
    """A server of its own: plans made here stay in its session, where lists would show them."""
    with start_server(served_folder) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


def new_context(browser: Browser, scheme: str) -> BrowserContext:
    return browser.new_context(viewport=VIEWPORT, color_scheme=scheme)


@pytest.fixture(scope="session")
def shared_context(browser) -> Iterator[BrowserContext]:
    """One cache for all tests that leave nothing behind: Plotly is compiled once."""
    context = new_context(browser, "light")
    yield context
    context.close()


def watched(context: BrowserContext, origin: RunningServer) -> Visit:
    page = context.new_page()
    page.set_default_timeout(20_000)
    visit = Visit(page, origin, origin)
    page.on("console", lambda m: visit.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: visit.errors.append(str(error)))
    page.on("request", lambda request: visit.requests.append(request.url))
    page.on("request", lambda request: visit.pending.add(request))
    page.on("requestfinished", lambda request: visit.pending.discard(request))
    page.on("requestfailed", lambda request: visit.pending.discard(request))
    return visit


@pytest.fixture(scope="session")
def shared_visit(shared_context, origin) -> Visit:
    """One document for all tests that leave no setting behind."""
    return watched(shared_context, origin)


@pytest.fixture
def visit(browser, server, shared_context, shared_visit, request) -> Iterator[Visit]:
    """A page of 1440 x 900; the test fails if it logs an error or asks another host.

    With the parameter `fresh` the page is new, with `light` or `dark` its context too.
    """
    kind = getattr(request, "param", None)
    context = new_context(browser, kind) if kind in ("light", "dark") else shared_context
    shared_visit.answer(server)
    visit = watched(context, shared_visit.origin) if kind else shared_visit
    page = visit.page
    if kind is None:
        page.set_viewport_size(VIEWPORT)
        page.emulate_media(color_scheme="light")
        page.mouse.move(0, 0)
        visit.errors.clear()
        visit.requests.clear()
    yield visit
    page.unroute_all()
    if kind:
        page.close()
    if context is not shared_context:
        context.close()
    ours = (visit.base, "data:", "blob:")
    outside = [url for url in visit.requests if not url.startswith(ours)]
    assert visit.requests
    assert outside == []
    assert visit.errors == []
