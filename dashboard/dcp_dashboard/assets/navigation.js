// Links that stay inside the application. `a[data-keep="query"]` takes the state of this page along, `a[data-plain]` does not; the header's
// links say which of them is the page that is shown.
"use strict";

window.dcp = window.dcp || {};

(() => {
  // Puts the state into the link before it is followed, so that opening it in a new tab works too.
  function complete(link) {
    link.search = window.dcp.state.query();
  }

  function linkOf(event, selector) {
    return event.target instanceof Element ? event.target.closest(selector) : null;
  }

  for (const name of ["pointerover", "focusin"]) {
    document.addEventListener(name, (event) => {
      const link = linkOf(event, "a[data-keep]");
      if (link) complete(link);
    });
  }

  document.addEventListener("click", (event) => {
    const link = linkOf(event, "a[data-keep], a[data-plain]");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.dataset.keep) complete(link);
    event.preventDefault();
    open(link.href);
  });

  // Shows another page of the application, as Dash's own links do.
  function open(url) {
    window.dcp.state.flush();
    history.pushState({}, "", url);
    window.dispatchEvent(new Event("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  }

  function markCurrent() {
    const [, first] = location.pathname.split("/");
    const shown = { "": "plans", plan: "plans", dataset: "plans" }[first] || first;
    for (const link of document.querySelectorAll(".dcp-nav a")) {
      if (link.dataset.page === shown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
  window.dcp.navigation = { open, markCurrent };
})();
