"""The list of plans in a real browser: search, pick, open, examples, and files that change."""

import json

import pytest

from dcp_dashboard.library.folder import plan_key
from dcp_planner import write_plan

DROP = """([name, bytes]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], name));
  for (const kind of ["dragover", "drop"]) {
    document.body.dispatchEvent(
      new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }
}"""


@pytest.fixture
def own(visit, tmp_path):
    """A server over a folder that the test may change."""
    with visit.serving(tmp_path):
        yield tmp_path


ONE_ROW = "() => document.querySelectorAll('.dcp-plans tbody tr').length === 1"


def test_search_and_comparing_two_plans(visit, paired_folder):
    with visit.serving(paired_folder):
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
