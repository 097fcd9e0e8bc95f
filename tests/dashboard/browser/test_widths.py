"""No page scrolls sideways, on a phone, a tablet or a desk, in either theme."""

from dcp_dashboard.library.folder import plan_key

WIDTHS = (390, 820, 1024, 1440)
SMALL = plan_key("small.dcpplan")
PAGES = (
    ("", "table.dcp-plans"),
    ("help", "main .dcp-help"),
    ("edit", ".dcp-edit-matrix canvas"),
    (f"compare?a={SMALL}&b={SMALL}", ".dcp-verdict"),
    (f"plan/{SMALL}", ".dcp-mask[data-state=drawn]"),
    (f"plan/{SMALL}/mask", ".dcp-mask[data-state=drawn]"),
    (f"plan/{SMALL}/timeline", ".dcp-timeline[data-state=drawn]"),
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
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 844})
                if page.evaluate(SETTLED) > 0:
                    wide.append((path, scheme, width))
    assert wide == []
