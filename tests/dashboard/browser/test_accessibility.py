"""Every page, light and dark, as axe-core sees it: nothing serious, nothing critical."""

import json
import shutil
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Stop:
    """A page to look at, and what has to be there first."""

    path: str
    ready: str


STOPS = [
    Stop("", ".dcp-plans tbody tr"),
    Stop(f"plan/{PLAN}?sel=device.1", ".dcp-mask[data-state=drawn]"),
    Stop(f"plan/{PLAN}/timeline?view=table&sel=device.1", ".dcp-timeline[data-state=drawn]"),
    Stop(f"plan/{PLAN}/mask?sel=division.1", ".dcp-mask[data-state=drawn]"),
    Stop(f"compare?a={PLAN}&b={OTHER}", ".main-svg"),
    Stop("compare", "main h1"),
    Stop(f"dataset/{plan_key('report.dcpbatches.json')}", "#speedups .main-svg"),
    Stop(f"step/{plan_key('a.dcpstep.json')}", "#step .main-svg"),
    Stop(f"run/{plan_key('run.dcprun.jsonl')}", "#run-chart .main-svg"),
    Stop("help", "main h1"),
    Stop("no/such/page", "main h1"),
    Stop(f"plan/{plan_key('cut.dcpplan')}", "main h1"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, paired_folder, small_step):
    """Two plans of one batch, a file cut short, a report, a step and a run."""
    for name in ("zigzag.dcpplan", "contiguous.dcpplan"):
        shutil.copy(paired_folder / name, tmp_path / name)
    (tmp_path / "cut.dcpplan").write_bytes((tmp_path / "zigzag.dcpplan").read_bytes()[:5000])
    times = {"predicted_forward_s": 1.0, "predicted_backward_s": 2.0}
    row = {"tokens": 2048, "mask": "causal", "file": "zigzag.dcpplan", **times}
    batches = [{"index": i, **row, "against": {"static:ring": times}} for i in range(3)]
    report = {"schema": "dcp.batches/1", "dataset": "rows.parquet", "is_complete": False}
    report |= {"batches": batches, "distribution": {}, "speedup": {}, "notes": ["a note"]}
    (tmp_path / "report.dcpbatches.json").write_text(json.dumps(report))
    steps = [json.dumps({"step": n, "step_s": 1.0, "why": "rank 1 is slow"}) for n in range(3)]
    (tmp_path / "run.dcprun.jsonl").write_text("\n".join(steps) + "\n")
    return tmp_path


def load_axe(page):
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)


def findings(visit, stop):
    page = visit.open(stop.path)
    page.wait_for_selector(stop.ready, state="attached")  # a table may stand in front of it
    page.emulate_media(color_scheme="light")
    load_axe(page)
    found = [f"/{stop.path} light {text}" for text in page.evaluate(RUN, None)]
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-mantine-color-scheme=dark]")
    return found + [f"/{stop.path} dark {text}" for text in page.evaluate(RUN, OF_COLOURS)]


def test_no_page_has_a_serious_finding_in_light_or_dark(
    visit, folder, editing_server, tmp_path_factory
):
    visit.answer(editing_server)  # its workers run for other tests too
    found = findings(visit, Stop("edit", "#edit[data-state=drawn]"))
    with visit.serving(tmp_path_factory.mktemp("none")):
        found += findings(visit, Stop("", ".dcp-empty"))
    with visit.serving(folder):
        for stop in STOPS:
            found += findings(visit, stop)
        visit.page.keyboard.press("?")
        visit.page.wait_for_selector("dialog[open]")
        found += visit.page.evaluate(RUN, None)
        visit.page.keyboard.press("Escape")
    assert found == []
