"""The playground says what the product says, without numpy and without a network."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import build_playground as build
import numpy as np
import pytest
from chromium import find_chromium
from reference import Reference
from second_oracle_crosses import AlignedText, CrossText
from second_oracle_texts import Text

from dcp_dsl import DCPError, Sample, Spec, SpecError, check_report, dense_mask
from dcp_grammar import MASKS

ROOT = Path(__file__).resolve().parent.parent
PLAYGROUND = ROOT / "docs" / "playground"
LIBRARY = sorted(MASKS.glob("*.dcpm"))
LEAK = """segment part = question[question_len] answer[answer_lens]*
mask leaky = k in question or same(answer)
check leaky implies causal
"""
ROW_DISTANCES = (  # W212, on small samples and on one as long as the number in the mask
    "segment part = question[n] branch answer[lens]* mask near = paths and q - k < 2",
    "segment doc = [lens]* mask a = same(doc) and streaming(2, 3)",
    "segment doc = [lens]* mask a = causal and same(doc) and q // 9 == k // 9",
)
WITHOUT_NUMPY = """
import importlib.util, json, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numpy" else found(name, *rest)
import answer
assert not answer.HAS_NUMPY
print(json.dumps([json.loads(answer.answer(text)) for text in json.load(sys.stdin)]))
assert not hasattr(sys.modules["numpy"], "__version__")
"""


def assert_equal(mask, sample):
    rows = Reference.of_mask(mask, sample).rows(mask.core)
    expected = dense_mask(mask, sample)
    drawn = [list(row.to_bytes(expected.shape[1], "little")) for row in rows]
    np.testing.assert_array_equal(np.array(drawn, bool).reshape(expected.shape), expected)


def test_plain_evaluator_draws_the_library_as_the_product_does():
    drawn = 0
    for path in LIBRARY:
        spec = Spec.from_text(path.read_text("utf-8"), path.name)
        for name in spec.samples:
            try:
                mask = spec.mask(path.stem)
            except SpecError:  # a parameter has no default
                continue
            assert_equal(mask, spec.sample(name))
            drawn += 1
    assert drawn >= 30


@pytest.mark.parametrize("kind", [Text, CrossText, AlignedText])
def test_plain_evaluator_draws_random_texts_as_the_product_does(kind):
    drawn = 0
    for seed in range(60):
        text = kind(Random(seed))
        if text.imported:
            continue
        try:
            mask = Spec.from_text(text.source).mask("a")
            columns, length = text.sample()
            sample = Sample(columns, length)
            dense_mask(mask, sample)
        except DCPError:
            continue
        assert_equal(mask, sample)
        drawn += 1
    assert drawn >= 30


def test_checks_say_without_numpy_what_they_say_with_it():
    two = {"cross", "flamingo", "prefill"}  # queries and keys
    texts = [path.read_text("utf-8") for path in LIBRARY[::3]]
    texts += [path.read_text("utf-8") for path in LIBRARY if path.stem in two]
    texts += [f"mask a = {wrong}" for wrong in ("casual", "q < 4", "causal and q < k", "q +")]
    texts += [LEAK, *ROW_DISTANCES]
    paths = [PLAYGROUND, ROOT / "tests" / "dcp_dsl", *os.environ.get("PYTHONPATH", "").split(":")]
    rooms = [ROOT / "dcp_dsl", ROOT / "grammar"]
    path = os.pathsep.join(map(str, [*paths, *rooms]))
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY],
        input=json.dumps(texts), env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    for text, found in zip(texts, json.loads(run.stdout), strict=True):
        report = check_report(text, "mask.dcpm")
        said = [(each["code"], each["message"], each["hint"]) for each in found["findings"]]
        assert said == [(each.code, each.message, each.hint) for each in report.diagnostics]
        assert found["verdicts"] == [verdict.to_json() for verdict in report.verdicts]
        if not report.diagnostics:
            assert len(found["rows"]) == found["tokens"] > 0


def test_every_file_of_the_page_is_put_into_the_site():
    assert all((PLAYGROUND / name).is_file() for name in build.PAGE)
    packed = dict(build.sources())
    wanted = {"answer.py", "reference.py", "dcp_dsl/specs/spec.py", "dcp_grammar/dcpm.lark"}
    assert wanted <= packed.keys()
    lock = json.loads((PLAYGROUND / "package-lock.json").read_text())["packages"]
    wanted = json.loads((PLAYGROUND / "package.json").read_text())["dependencies"]["pyodide"]
    assert lock["node_modules/pyodide"]["version"] == wanted
    assert lock["node_modules/pyodide"]["integrity"].startswith("sha512-")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def playground(tmp_path: Path):
    """Serve the playground, made anew, and give its address."""
    if shutil.which("npm") is None:
        pytest.skip("npm is missing: the playground takes Pyodide from it")
    script = PLAYGROUND / "build_playground.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "playground")], check=True)
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/playground/index.html"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.browser
def test_playground_in_a_browser(playground: str):
    sync_api = pytest.importorskip("playwright.sync_api")
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is missing: apt-get install chromium-headless-shell")
    home = playground.rsplit("/", 2)[0]
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        asked, said = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(playground)
        page.wait_for_selector('body[data-drawn="true"]', timeout=120_000)
        assert page.locator("#verdicts .proved").count() == 3
        assert "429, 61.0 %" in page.inner_text("#figures")

        page.fill("#text", LEAK)
        page.wait_for_selector("#findings >> text=a token sees a later one")
        page.click("text=Show this sample >> nth=0")
        page.wait_for_selector("#caption:has-text('\"len\": 2')")
        link = page.url

        page.fill("#text", "mask a = casual")
        page.click("text=Fix: replace")
        page.wait_for_selector("#verdicts .proved >> nth=1")
        assert page.input_value("#text") == "mask a = causal"

        other = browser.new_page()
        other.goto(link)
        other.wait_for_selector('body[data-drawn="true"]', timeout=120_000)
        assert other.input_value("#text") == LEAK
        assert '"len": 2' in other.inner_text("#caption")
        assert said == []  # not even that it starts without the snapshot
        assert all(url.startswith((home, "data:")) for url in asked)
        browser.close()
