"""The list of plans and what it leads to: files that change, examples, reports, comparisons."""

import json

import numpy as np
import pytest
from canvases import centres

from dcp_dashboard import start_server
from dcp_dashboard.api.encoding import KIND_COLOURS
from dcp_dashboard.api.mask import CHANGE_COLOURS
from dcp_dashboard.library.folder import plan_key
from dcp_planner import LANES, read_plan, simulate, write_plan

DROP = """([name, bytes]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], name));
  for (const kind of ["dragover", "drop"]) {
    document.body.dispatchEvent(
      new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }
}"""


@pytest.fixture(scope="module")
def server(paired_folder):
    with start_server(paired_folder) as running:
        yield running


@pytest.fixture
def own(visit, tmp_path):
    """A server over a folder that the test may change."""
    with visit.serving(tmp_path):
        yield tmp_path


ONE_ROW = "() => document.querySelectorAll('.dcp-plans tbody tr').length === 1"


def test_search_and_comparing_two_plans(visit):
    page = visit.open("?sort=tokens")
    page.wait_for_selector("table.dcp-plans")
    page.keyboard.press("/")
    page.keyboard.type("zigzag.dcp")
    page.wait_for_function(ONE_ROW)
    assert page.url.endswith("?sort=tokens&q=zigzag.dcp")
    assert page.evaluate("document.activeElement.id") == "search"
    page.reload()
    page.wait_for_function(ONE_ROW)
    assert page.input_value("#search") == "zigzag.dcp"
    page.click(".dcp-plans >> text=zigzag.dcpplan")
    page.click(".dcp-title >> text='Compare'")
    page.wait_for_selector("#compare-b")
    assert page.input_value("#compare-a").startswith("zigzag.dcpplan · predicted")
    page.click("#compare-b")
    page.click("[role=option]:visible >> text=contiguous.dcpplan · predicted")
    page.wait_for_selector(".dcp-verdict")
    a, b = (plan_key(f"{name}.dcpplan") for name in ("zigzag", "contiguous"))
    assert page.url.endswith(f"/compare?a={a}&as=simulated&b={b}&bs=simulated")


def test_a_file_is_opened_by_button_and_by_drop(visit, own, served_folder):
    page = visit.open("")
    page.wait_for_selector("text=No plans here yet")
    page.wait_for_load_state("networkidle")  # the page is not made again under the focus
    with page.expect_file_chooser() as chooser:
        page.press("#open-file", "Enter")
    chooser.value.set_files(served_folder / "small.dcpplan")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    assert list(own.iterdir()) == []
    page.click(".dcp-nav >> text=Plans")
    page.wait_for_selector("[aria-label='This session'] >> text=small.dcpplan")
    whole = (served_folder / "deep" / "large.dcpplan").read_bytes()
    page.evaluate(DROP, ["dropped.dcpplan", list(whole)])
    page.wait_for_url("**/plan/*")
    page.wait_for_selector("text=dropped.dcpplan")


def test_a_file_that_is_no_plan_is_a_sentence(visit, own, served_folder, small_plan):
    write_plan(own / "p.dcpplan", small_plan)
    page = visit.open("")
    page.wait_for_selector("table.dcp-plans")
    page.evaluate(DROP, ["wrong.dcpplan", [1, 2, 3]])
    page.wait_for_selector("#open-status.dcp-bad")
    assert page.inner_text("#open-status").startswith("wrong.dcpplan: expected a whole zip archive")
    assert [text for text in visit.errors if "400" not in text] == []
    visit.errors.clear()  # the browser logs the refusal itself


def test_examples_of_an_empty_folder_are_planned_while_one_waits(visit, own):
    page = visit.open("")
    page.wait_for_selector("#make-examples")
    page.evaluate(
        """() => {
          const { dataset } = document.getElementById("make-examples");
          dataset.examples = JSON.stringify(JSON.parse(dataset.examples).slice(1, 2));
        }"""
    )  # the others are planned by a test without a browser
    page.click("#make-examples")
    page.wait_for_selector("[aria-label='This session'] tbody tr", timeout=120_000)
    names = page.locator("[aria-label='This session'] .dcp-file").all_inner_texts()
    assert names == ["example: documents, zigzag"]
    assert list(own.iterdir()) == []


def test_a_changed_file_is_announced_and_never_swapped(visit, own, small_plan, large_plan):
    path = own / "p.dcpplan"
    write_plan(path, small_plan)
    page = visit.open(f"plan/{plan_key('p.dcpplan')}/mask")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    assert page.locator(".dcp-changed").is_hidden()
    write_plan(path, large_plan)
    page.wait_for_selector("text=p.dcpplan has changed on disk")
    before = visit.distinct(".dcp-mask")
    page.click(".dcp-changed >> text=Reload")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    assert visit.distinct(".dcp-mask") > before
    path.unlink()
    page.wait_for_selector("text=p.dcpplan was deleted or moved")


def test_a_planned_data_set_leads_to_its_plans(visit, own, small_plan):
    times = {"predicted_forward_s": 1.0, "predicted_backward_s": 2.0}
    batches = [
        {"index": i, "tokens": 2048 - i, "mask": "causal", "file": f"b{i}.dcpplan", **times,
         "devices": 1, "token_imbalance": 1.0,
         "against": {"static:ring": {"predicted_forward_s": 3.0, "predicted_backward_s": 3.0,
                                     "token_imbalance": 1.0}}}
        for i in range(3)
    ]  # fmt: skip
    report = {"schema": "dcp.batches/1", "dataset": "rows.parquet", "is_complete": True,
              "cluster": {"name": "h100-dgx"},
              "shape": {"q_heads": 8, "kv_heads": 2, "head_dim": 128},
              "batches": batches, "distribution": {}, "speedup": {}, "notes": []}  # fmt: skip
    (own / "report.dcpbatches.json").write_text(json.dumps(report))
    write_plan(own / "b1.dcpplan", small_plan)
    page = visit.open("")
    page.click("text=rows.parquet")
    told = "If attention takes 30 % of a step, a step is 1.18\u00d7 (1.18 to 1.18) as fast"
    page.wait_for_selector(f"text={told}")
    page.fill("#dcp-share", "100")
    all_of_it = "text=If attention takes 100 % of a step, a step is 2.00\u00d7"
    page.wait_for_selector(all_of_it)
    page.wait_for_url("**?share=100")
    page.reload()
    page.wait_for_selector(all_of_it)
    page.select_option(".dcp-gain select", "llama-8b")  # 96 s of attention outweigh the rest
    page.wait_for_selector("text=A step of llama-8b is 2.00\u00d7")
    page.wait_for_url("**model=llama-8b*")
    assert page.locator("#dcp-share").is_hidden()
    page.click("th >> text=Tokens")
    page.wait_for_selector("th[aria-sort=descending] >> text=Tokens")
    assert page.locator("[aria-label=Batches] tbody td").first.inner_text() == "0"
    page.click("text=b1.dcpplan")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")


TIMELINES = ("#compare-timeline-a", "#compare-timeline-b")


@pytest.fixture(scope="module")
def plans(paired_folder):
    return {n: read_plan(paired_folder / f"{n}.dcpplan").plan for n in ("zigzag", "contiguous")}


def opened(visit, query):
    page = visit.open(f"compare?{query}")
    for selector in TIMELINES:
        page.wait_for_selector(f"{selector}[data-state=drawn]")
    return page


def query_of(a="zigzag", b="contiguous"):
    return f"a={plan_key(f'{a}.dcpplan')}&b={plan_key(f'{b}.dcpplan')}"


def ends_of_longest(trace, until_ns):
    """Points near both ends of the longest computations, as shares of a timeline of 4 devices."""
    compute = np.flatnonzero(trace.lane == LANES.index("compute"))
    length = (trace.end_ns - trace.start_ns)[compute]
    points = []
    for event in compute[np.argsort(-length)[:3]]:
        start, end = int(trace.start_ns[event]), int(trace.end_ns[event])
        row = (int(trace.device[event]) + 0.48) / 4
        near = (0.9 * start + 0.1 * end, 0.1 * start + 0.9 * end)
        points.extend((at / until_ns, row) for at in near)
    return points


def test_two_plans_side_by_side(visit, plans):
    page = opened(visit, query_of())
    a, b = (simulate(plans[name]).seconds() for name in ("zigzag", "contiguous"))
    verdict = page.locator(".dcp-verdict").inner_text()
    assert verdict.startswith("B takes" if b < a else "A takes")
    cells = page.locator("tr[data-figure=time] td").all_inner_texts()
    assert cells[2].startswith("+" if b > a else "−")  # noqa: RUF001 - a minus
    assert cells[3].endswith("B worse" if b > a else "B better")
    page.wait_for_selector("#moves[data-state=drawn]")
    tiles, points = plans["zigzag"].tiles, centres(plans["zigzag"])
    moved = tiles.device != plans["contiguous"].tiles.device
    expected = [CHANGE_COLOURS[int(is_moved)] for is_moved in moved]
    assert len(set(expected)) == 2
    assert visit.colours_at("#moves", points) == expected
    traces = [simulate(plans[name]) for name in ("zigzag", "contiguous")]
    until = max(int(trace.end_ns.max()) for trace in traces)
    for selector, trace in zip(TIMELINES, traces, strict=True):  # one axis, though both also ran
        found = visit.colours_at(selector, ends_of_longest(trace, until))
        assert found == [KIND_COLOURS["attention"]] * 6
    whole = [visit.digest(selector) for selector in TIMELINES]
    visit.hover_at(TIMELINES[0], 0.02, 0.05)
    page.mouse.wheel(0, -400)
    zoomed = [visit.digest(selector) for selector in TIMELINES]
    assert all(one != other for one, other in zip(whole, zoomed, strict=True))  # one axis
    page.keyboard.press("0")
    text = visit.hover_at("#moves", *points[0])
    assert f"A: device {tiles.device[0]}" in text
    page.wait_for_selector("#deltas .bars .point path")
    assert page.locator("#deltas .bars .point").count() == 5 * 4


def test_pickers_and_swap_change_the_address(visit):
    page = opened(visit, query_of())
    first = page.locator(".dcp-verdict").inner_text()
    page.click("[aria-label='Swap A and B']")
    page.wait_for_function(
        "(text) => document.querySelector('.dcp-verdict')?.innerText !== text", arg=first
    )
    key = plan_key("contiguous.dcpplan")
    assert f"/compare?a={key}&as=simulated" in page.url
    visit.settle()  # answers that come later draw the pickers anew
    picker = page.get_by_role("textbox", name="B")
    picker.click()
    wanted = "contiguous.dcpplan · measured"
    # The answer to a search draws the options anew, and then none of them is marked.
    with page.expect_response(lambda answer: wanted in (answer.request.post_data or "")):
        picker.fill(wanted)
    page.get_by_role("option", name=wanted).click()
    page.wait_for_selector("text=/The prediction takes 20.? ?% less time than the run/")
    assert page.url.endswith(f"?a={key}&as=simulated&b={key}&bs=measured")
    page.go_back()
    page.wait_for_selector("#moves")


def test_pickers_are_alike_before_anything_is_chosen(visit):
    page = visit.open("compare")
    page.wait_for_selector("text=Choose two plans")
    boxes = [page.get_by_role("textbox", name=name).bounding_box() for name in "AB"]
    assert boxes[0]["width"] == boxes[1]["width"] > 400
    assert boxes[0]["y"] == boxes[1]["y"]
