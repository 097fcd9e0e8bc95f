"""No page scrolls sideways: not on a desk or a tablet, nor on a phone in either theme."""

from dcp_dashboard.library.folder import plan_key

WINDOWS = ((1440, "light"), (1024, "light"), (820, "light"), (390, "light"), (390, "dark"))
SMALL = plan_key("small.dcpplan")
PAGES = (
    ("", "table.dcp-plans"),
    ("help", "main .dcp-help"),
    ("edit", ".dcp-edit-matrix canvas"),
    (f"compare?a={SMALL}&b={SMALL}", "#deltas .bars .point path"),
    (f"plan/{SMALL}", ".dcp-mask[data-state=drawn]"),
    (f"plan/{SMALL}/mask", ".dcp-mask[data-state=drawn]"),
    (f"plan/{SMALL}/timeline", ".dcp-timeline[data-state=drawn]"),
    (f"plan/{SMALL}/timeline?view=table", ".dcp-virtual tbody tr"),
    (f"plan/{plan_key('deep/large.dcpplan')}", ".dcp-mask[data-state=drawn]"),
    (f"plan/{plan_key('cut.dcpplan')}", "text=This cannot be shown"),
)
SETTLED = """async () => { // charts follow a new size some frames later
  const { documentElement: page } = document;
  for (let frame = 0; frame < 2 || (frame < 90 && page.scrollWidth > page.clientWidth); frame++) {
    await new Promise(requestAnimationFrame);
  }
  return page.scrollWidth - page.clientWidth;
}"""


def test_no_page_scrolls_sideways(visit):
    page, wide = visit.page, []
    for path, ready in PAGES:
        visit.open(path)
        page.wait_for_selector(ready)
        for width, scheme in WINDOWS:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 844})
            if page.evaluate(SETTLED) > 0:
                wide.append((path, scheme, width))
    assert wide == []
