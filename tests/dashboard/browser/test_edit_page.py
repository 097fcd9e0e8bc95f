"""The editor in a real browser: what it finds, mends, draws and plans."""

import re
from pathlib import Path

import numpy as np
import pytest

from dcp_dashboard import RunningServer
from dcp_dashboard.library.folder import plan_key
from dcp_dsl import Picture, Sample, Spec, dense_mask

EDITOR = "#edit .cm-content"
DRAWN = "[data-part=picture][data-state=drawn]"
ACCENT = "() => getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()"


@pytest.fixture(scope="module")
def server(editing_server) -> RunningServer:
    return editing_server


def open_editor(visit, path="edit"):
    page = visit.open(path)
    page.wait_for_selector("#edit[data-state=drawn]")
    page.wait_for_selector(DRAWN)
    return page


def write(page, text):
    """Replace the whole text as a person does who selects and pastes it."""
    page.focus(EDITOR)
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def wait_for_title(page, title):
    page.wait_for_selector(f"{DRAWN}[data-title='{title}']")


def shown_matrix(visit, size):
    """Return for the middle of each cell of the picture if it has the colour of a pair."""
    middles = [((k + 0.5) / size, (q + 0.5) / size) for q in range(size) for k in range(size)]
    colours = np.array(visit.colours_at(DRAWN, middles)).reshape(size, size)
    assert len(np.unique(colours)) == 2
    return colours == visit.page.evaluate(ACCENT)


def test_an_error_is_underlined_mended_and_drawn(visit):
    page = open_editor(visit)
    title = page.locator(DRAWN).get_attribute("data-title")
    text = "mask near(w: tokens = 5) = casual and q - k < w\nsample s(len = 23)\n"
    write(page, text)
    assert page.wait_for_selector(".cm-lintRange-error").inner_text() == "casual"
    page.wait_for_selector("text=The picture shows the last text without errors")
    assert page.locator("[data-part=picture]").get_attribute("data-title") == title
    assert "E101" in page.locator(".dcp-finding").inner_text()
    assert "casual" in page.locator(".dcp-fix code").all_inner_texts()
    assert "`" not in page.locator(".dcp-finding").inner_text()
    page.hover(".cm-lintRange-error")
    assert "`" not in page.wait_for_selector(".cm-tooltip-lint").inner_text()
    page.click(".dcp-fix")
    wait_for_title(page, "near")
    assert page.locator(".cm-lintRange-error").count() == 0
    mended = text.replace("casual", "causal")
    mask = Spec.from_text(mended).mask("near")
    assert np.array_equal(shown_matrix(visit, 23), dense_mask(mask, Sample(length=23)))
    assert "23" in page.locator(".dcp-edit-numbers").inner_text()
    page.fill("#edit-arguments", "(w = 2)")
    wait_for_title(page, "near(w = 2)")
    narrow = Spec.from_text(mended).mask("near(w = 2)")
    assert np.array_equal(shown_matrix(visit, 23), dense_mask(narrow, Sample(length=23)))
    with page.expect_download() as started:
        page.click("text=Save as SVG")
    assert started.value.suggested_filename == "near_w_2.svg"
    svg = Path(started.value.path()).read_text(encoding="utf-8")
    assert svg == Picture.of(narrow, Sample(length=23)).svg()
    page.click("summary >> text=Rows as text")
    page.wait_for_function(  # the fold tells that it is open once the click is over
        "() => document.querySelector('.dcp-edit-rows pre')?.innerText.includes('query 7: 6-7\\n')"
    )
    page.hover(".cm-line >> text=causal")
    assert "mask causal = k <= q" in page.wait_for_selector(".cm-tooltip .dcp-doc").inner_text()
    page.wait_for_function("() => /call=.*text=/.test(location.hash)")
    page.reload()
    wait_for_title(page, "near(w = 2)")
    assert page.locator(EDITOR).inner_text().rstrip() == mended.rstrip()


def test_the_keyboard_mends_and_leaves_the_editor(visit):
    page = open_editor(visit)
    write(page, "# \U0001f600\nmask a = causal andd q - k < 4")
    page.wait_for_selector(".cm-lintRange-error")
    write(page, "# \U0001f600\nmask a = casual")
    page.wait_for_selector(".cm-lintRange-error >> text=casual")
    page.keyboard.press("Control+.")
    wait_for_title(page, "a")
    assert page.locator(EDITOR).inner_text().endswith("mask a = causal")
    page.keyboard.press("Escape")
    page.keyboard.type(" # ?/.,p0f")  # keys that mean something on the pages of plans
    assert page.locator(EDITOR).inner_text().endswith("causal # ?/.,p0f")
    assert page.locator("dialog[open], [role=dialog]").count() == 0
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.classList.contains('cm-content')")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.classList.contains('cm-content')")
    unnamed = page.evaluate("""() => [...document.querySelectorAll('#edit input, #edit select')]
      .filter((e) => !e.labels?.length && !e.getAttribute('aria-label')).map((e) => e.outerHTML)""")
    assert unnamed == []


def figures(page):
    """The figures of the preview; the planner compiles itself once per installation."""
    page.wait_for_selector("[data-part=cards][data-devices]:not([aria-busy])", timeout=200_000)
    return page.locator("[data-part=cards]")


def make_plan(page):
    page.click("#edit-plan")
    page.wait_for_selector("#edit-job >> text=/Planned in/", timeout=60_000)


def test_settings_are_previewed_planned_pinned_and_compared(visit):
    page = open_editor(visit, "edit?spec=std:sliding")
    assert figures(page).get_attribute("data-devices") == "8"
    page.focus("#edit-nodes")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("[data-part=cards][data-devices='16']")
    assert "on 16 devices" in page.locator("[data-part=preview]").inner_text()
    page.select_option("#edit-method", "static:zigzag")
    page.wait_for_selector("[data-part=preview] >> text=static:zigzag")
    make_plan(page)
    page.click("#edit-pin")
    page.select_option("#edit-method", "native")
    page.wait_for_selector("[data-part=cards] >> text=against B")
    make_plan(page)
    compare = page.locator("a >> text=Compare A with B").get_attribute("href")
    a, b = re.fullmatch(r"/compare\?a=([0-9a-f]{16})&b=([0-9a-f]{16})", compare).groups()
    assert a != b
    with page.expect_download() as started:
        page.click("text=Download .dcpplan >> nth=0")
    assert Path(started.value.path()).read_bytes().startswith(b"PK")
    page.wait_for_function(f"() => location.hash.includes('a={a}&b={b}')")
    page.click(f"a[href='/plan/{a}']")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    assert "16" in page.locator(".dcp-metrics").inner_text()
    page.go_back()
    page.wait_for_selector(f"{DRAWN}[data-title^='sliding(']")
    assert page.locator("a >> text=Compare A with B").get_attribute("href") == compare


def test_the_text_of_a_plan_is_planned_again_for_its_batch_against_it(visit, small_plan):
    key = plan_key("small.dcpplan")
    visit.open_plan("small.dcpplan").click("text=Edit and plan again")
    page = visit.page
    page.wait_for_selector(DRAWN)
    assert page.url.split("#")[0].endswith(f"/edit?spec={key}")
    assert figures(page).get_attribute("data-tokens") == str(small_plan.num_tokens)
    assert figures(page).get_attribute("data-devices") == "4"
    page.wait_for_selector("[data-part=cards] >> text=against B")
    drawn, tokens = page.locator(".dcp-edit-numbers dd").all_inner_texts()[:2]
    assert (drawn, tokens) == ("causal", f"{small_plan.cu_seqlens[1]:,}")
    row = page.locator(".dcp-edit-results p").first.inner_text()
    assert "causal on 4 devices by static:zigzag" in row
    page.click("button >> text=Unpin")
    page.wait_for_function("() => location.hash.includes('b=none')")
    page.reload()
    figures(page)
    assert page.locator(".dcp-edit-results p").count() == 0


def test_a_plan_can_be_cancelled_and_a_killed_process_is_reported(visit, fork_server):
    settings = "sample=own&own=4096&nodes=8&per=8&block=2048&effort=fast"
    page = open_editor(visit, f"edit?spec=mask+long+%3D+causal#{settings}")
    wait_for_title(page, "long")
    page.click("#edit-plan")
    page.wait_for_selector("#edit-job >> text=/placing/", timeout=60_000)
    before = len(fork_server.started)
    page.click("#edit-cancel")
    page.wait_for_selector("#edit-job >> text=Cancelled")
    page.click("#edit-plan")
    page.wait_for_selector("#edit-job >> text=/placing/", timeout=60_000)
    (started,) = fork_server.started[before:]
    started.kill()
    page.wait_for_selector("#edit-job >> text=/the planner .* was killed by SIGKILL/")
    assert page.locator("#edit-plan").is_enabled()


@pytest.mark.parametrize("visit", ["fresh"], indirect=True)
def test_only_its_page_loads_the_editor_which_starts_from_the_library(visit):
    page = visit.open("")
    page.wait_for_selector("table.dcp-plans")
    assert not any("codemirror" in url for url in visit.requests)
    page.click(".dcp-nav >> text=Edit")
    page.wait_for_selector(DRAWN)
    figures(page)
    assert any("codemirror.bundle.js" in url for url in visit.requests)
    page.select_option("[data-part=start]", "std:streaming")
    wait_for_title(page, "streaming(sink = 2, window = 3)")  # of its check: 64, 4k show nothing
    page.select_option("[data-part=start]", "std:grpo")
    wait_for_title(page, "grpo")
    assert page.locator("#edit-name").inner_text() == "grpo.dcpm"
    colour = "(e) => getComputedStyle(e).color"
    keyword = page.eval_on_selector(".tok-keyword", colour)
    assert keyword != page.eval_on_selector(".cm-content", colour)
    page.goto(page.url.split("edit")[0] + "edit?spec=std:nothing")
    assert "there are agent" in page.wait_for_selector("[role=alert]").inner_text()
