"""Every page as axe-core sees it, light and dark, and in windows of several widths."""

import json
import shutil
from pathlib import Path

import axe_playwright_python
import pytest

from dcp_dashboard.library.folder import plan_key

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
RUN = """async (rules) => {
  const options = { resultTypes: ['violations'] };
  if (rules) options.runOnly = { type: 'rule', values: rules };
  // Not inside charts: axe judges no text of a drawing, and looking at its marks takes seconds.
  // Nor at the fourth row of a table and those below, which look like the first three.
  const exclude = ['.js-plotly-plot', 'tbody tr:nth-child(n+4):not([class])'];
  const { violations } = await axe.run({ exclude }, options);
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 120)}`));
}"""
OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""Rules whose answer depends on light or dark; the document is the same in both."""
PLAN, OTHER = plan_key("zigzag.dcpplan"), plan_key("contiguous.dcpplan")


STOPS = [
    ("", ".dcp-plans tbody tr"),
    (f"plan/{PLAN}?sel=device.1", ".dcp-mask[data-state=drawn]"),
    (f"plan/{PLAN}/timeline?view=table&sel=device.1", ".dcp-timeline[data-state=drawn]"),
    (f"plan/{PLAN}/mask?sel=division.1", ".dcp-mask[data-state=drawn]"),
    (f"compare?a={PLAN}&b={OTHER}", ".main-svg"),
    ("compare", "main h1"),
    (f"dataset/{plan_key('report.dcpbatches.json')}", ".dcp-gain table"),
    (f"step/{plan_key('a.dcpstep.json')}", "#step .main-svg"),
    (f"run/{plan_key('run.dcprun.jsonl')}", "#run-chart .main-svg"),
    ("help", "main h1"),
    ("no/such/page", "main h1"),
    (f"plan/{plan_key('cut.dcpplan')}", "main h1"),
]  # fmt: skip


ALIKE = [
    (f"plan/{plan_key('large.dcpplan')}", ".dcp-mask[data-state=drawn]"),
    (f"compare?a={PLAN}&b={PLAN}", "#deltas .bars .point path"),
]
"""Pages in which axe would find what it finds in others."""
WIDTHS = (1024, 490, 390)
"""Narrow windows of each layout: style.css changes at 1,000 and at 480 pixels."""
VIEWPORT = {"width": 1440, "height": 900}
SETTLED = """async () => { // charts follow a new size some frames later
  const { documentElement: page } = document;
  for (let frame = 0; frame < 2 || (frame < 90 && page.scrollWidth > page.clientWidth); frame++) {
    await new Promise(requestAnimationFrame);
  }
  return page.scrollWidth - page.clientWidth;
}"""


@pytest.fixture
def folder(tmp_path_factory, paired_folder, small_step):
    """Two plans of one batch, a large one, a file cut short, a report, a step and a run."""
    name = "a_folder_whose_path_is_as_long_as_people_make_them_" * 2  # errors name it whole
    folder = Path(shutil.copy(small_step, tmp_path_factory.mktemp(name))).parent
    for name in ("zigzag.dcpplan", "contiguous.dcpplan", "large.dcpplan"):
        shutil.copy(paired_folder / name, folder / name)
    (folder / "cut.dcpplan").write_bytes((folder / "zigzag.dcpplan").read_bytes()[:5000])
    times = {"predicted_forward_s": 1.0, "predicted_backward_s": 2.0}
    row = {"tokens": 2048, "mask": "causal", "file": "zigzag.dcpplan", **times}
    batches = [{"index": i, **row, "against": {"static:ring": times}} for i in range(3)]
    report = {"schema": "dcp.batches/1", "dataset": "rows.parquet", "is_complete": False}
    report |= {"batches": batches, "distribution": {}, "speedup": {}, "notes": ["a note"]}
    (folder / "report.dcpbatches.json").write_text(json.dumps(report))
    steps = [json.dumps({"step": n, "step_s": 1.0, "why": "rank 1 is slow"}) for n in range(3)]
    (folder / "run.dcprun.jsonl").write_text("\n".join(steps) + "\n")
    return folder


def findings(visit, path, ready, *, by_axe=True):
    page = visit.open(path)
    page.wait_for_selector(ready, state="attached")  # a table may stand in front of it
    found = []
    page.emulate_media(color_scheme="light")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 844})
        if page.evaluate(SETTLED) > 0:
            found.append(f"/{path} scrolls sideways: {width}")
    page.set_viewport_size(VIEWPORT)
    if not by_axe:
        return found
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    for scheme, rules in (("light", None), ("dark", OF_COLOURS)):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_selector(f"html[data-mantine-color-scheme={scheme}]")
        found += [f"/{path} {scheme} {text}" for text in page.evaluate(RUN, rules)]
    return found


def test_no_page_has_a_serious_finding_or_scrolls_sideways(
    visit, folder, editing_server, tmp_path_factory
):
    visit.answer(editing_server)  # its workers run for other tests too
    found = findings(visit, "edit", ".dcp-edit-matrix canvas")
    with visit.serving(tmp_path_factory.mktemp("none")):
        found += findings(visit, "", ".dcp-empty")
    with visit.serving(folder):
        for path, ready in STOPS:
            found += findings(visit, path, ready)
        for path, ready in ALIKE:
            found += findings(visit, path, ready, by_axe=False)
        visit.page.keyboard.press("?")
        visit.page.wait_for_selector("dialog[open]")
        found += visit.page.evaluate(RUN, None)
        visit.page.keyboard.press("Escape")
    assert found == []
