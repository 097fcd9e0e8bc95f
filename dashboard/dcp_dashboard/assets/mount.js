// Brings canvases to life: whatever Dash puts on the page with a known class and a `data-url` is loaded and
// drawn, follows changes of size, theme and `data-mode`, and is let go when Dash takes it away.
"use strict";

window.dcp = window.dcp || {};

// CSS class of a host -> name of the class below `dcp` that draws it, `new Class(host, payload, label)`; the file of
// a view adds its own line. A view has resize(), recolour() and, where needed, dispose() and setMode(name); a static
// load(host, signal) where its payload is more than one `data-url`.
window.dcp.views = { "dcp-timeline": "Timeline", "dcp-mask": "Mask", ...window.dcp.views };

(() => {
  const mounted = new Map();

  async function mount(host, kind) {
    const label = host.dataset.label || "Mask";
    const record = { abort: new AbortController() };
    mounted.set(host, record);
    host.dataset.state = "loading";
    try {
      const load = window.dcp[kind].load || ((where, signal) => window.dcp.columns.load(where.dataset.url, signal));
      const payload = await load(host, record.abort.signal);
      if (!host.isConnected) return;
      record.drawing = new window.dcp[kind](host, payload, label);
      record.sizes = new ResizeObserver(() => {
        if (host.clientWidth && host.clientWidth !== record.width) {
          record.width = host.clientWidth;
          record.drawing.resize();
        }
      });
      record.width = host.clientWidth;
      record.sizes.observe(host);
      host.dataset.state = "drawn";
      performance.mark(`dcp drawn: ${label}`);
    } catch (error) {
      if (error.name === "AbortError") return;
      host.dataset.state = "failed";
      host.textContent = `Cannot draw this: ${error.message}`;
      host.setAttribute("role", "alert");
    }
  }

  function unmount(host) {
    const record = mounted.get(host);
    mounted.delete(host);
    record.abort.abort();
    if (record.sizes) record.sizes.disconnect();
    if (record.drawing && record.drawing.dispose) record.drawing.dispose();
  }

  function sweep() {
    for (const host of mounted.keys()) if (!host.isConnected) unmount(host);
    for (const [name, kind] of Object.entries(window.dcp.views)) {
      for (const host of document.getElementsByClassName(name)) if (!mounted.has(host)) mount(host, kind);
    }
    window.dcp.navigation?.markCurrent(); // the scripts themselves are changes that come before it
    const titled = document.querySelector("[data-title]");
    const title = titled ? `${titled.dataset.title} · dcp-dsl` : "dcp-dsl";
    if (document.title !== title) document.title = title; // setting it is a change that we would observe
  }

  // Whether elements came or went; words that change, as in tooltips, bring no view.
  function bringsElements({ addedNodes, removedNodes }) {
    for (const node of addedNodes) if (node.nodeType === Node.ELEMENT_NODE) return true;
    for (const node of removedNodes) if (node.nodeType === Node.ELEMENT_NODE) return true;
    return false;
  }

  function each(action) {
    for (const { drawing } of mounted.values()) if (drawing) action(drawing);
  }

  new MutationObserver((changes) => {
    if (changes.some(bringsElements)) sweep();
    for (const { target, attributeName } of changes) {
      if (attributeName === "data-mode" && mounted.has(target)) mounted.get(target).drawing?.setMode(target.dataset.mode);
      if (attributeName === "data-mantine-color-scheme") each((drawing) => drawing.recolour());
    }
  }).observe(document.documentElement, {
    subtree: true, childList: true, attributes: true, attributeFilter: ["data-mode", "data-mantine-color-scheme"],
  });
  sweep(); // a page that is there already, as a file without Dash is, changes no more
})();
