// Choosing things anywhere on a page: whatever carries `data-sel` (a selection as the URL writes it) selects on a
// click, with `data-time` also the range of the timeline; Esc clears; rows of tables follow.
"use strict";

window.dcp = window.dcp || {};

window.dcp.selection = (() => {
  function same(one, other) {
    return JSON.stringify(one ?? null) === JSON.stringify(other ?? null);
  }

  // Selects, or clears when it is selected already.
  function toggle(sel) {
    const { state } = window.dcp;
    state.set({ sel: same(state.get().sel, sel) ? null : sel });
  }

  // Shows what a link names: the thing, and the time around it with some of what is before and after.
  function follow(link) {
    const { state } = window.dcp;
    const patch = {};
    if (link.dataset.sel) patch.sel = state.decode(link.dataset.sel);
    const time = (link.dataset.time || "").split("-").map(Number);
    if (time.length === 2 && time.every(Number.isFinite)) {
      const margin = Math.max(50, (time[1] - time[0]) * 0.4);
      patch.time = [Math.max(0, time[0] - margin), time[1] + margin];
      const shown = document.getElementById("timelines")?.dataset.show ?? state.get().source;
      if (link.dataset.source && shown && shown !== "both") patch.source = link.dataset.source;
    }
    state.set(patch);
  }

  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest("[data-sel]");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    follow(link);
    if (link.dataset.time && link.dataset.jump) {
      document.querySelector(link.dataset.jump)?.scrollIntoView({ block: "nearest" });
    }
  });

  function isTyping(target) {
    return target instanceof Element && target.closest("input, textarea, select, [contenteditable=true], .cm-editor");
  }

  // The first Esc clears the selection; with nothing selected it is the canvas's own.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    if (!window.dcp.state.get().sel) return;
    event.preventDefault();
    event.stopPropagation();
    window.dcp.state.set({ sel: null });
  }, true);

  // The devices that a selection names: the one it is about, and the other end of a message.
  function devicesOf(sel) {
    if (!sel) return [];
    return [sel.device, sel.peer].filter((device) => device !== undefined);
  }

  return { toggle, follow, same, isTyping, devicesOf };
})();

// A table whose rows carry `data-device`.
window.dcp.DeviceTable = class {
  static load() { return null; }

  constructor(host) {
    this.host = host;
    this.mark();
    this.unfollow = window.dcp.state.follow((_, changed) => { if (changed.has("sel")) this.mark(); });
  }

  dispose() { this.unfollow(); }

  resize() {}

  recolour() {}

  mark() {
    const chosen = window.dcp.selection.devicesOf(window.dcp.state.get().sel).map(String);
    for (const row of this.host.querySelectorAll("tr[aria-selected=true]")) row.removeAttribute("aria-selected");
    for (const device of chosen) {
      const row = this.host.querySelector(`tr[data-device="${device}"]`);
      if (!row) continue;
      row.setAttribute("aria-selected", "true");
    }
    // Sizes are read when the frame has been laid out anyway.
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => setTimeout(() => this.reveal()));
  }

  reveal() {
    const row = this.host.querySelector("tr[aria-selected=true]");
    if (!row) return;
    const { scrollTop, clientHeight } = this.host;
    if (row.offsetTop < scrollTop || row.offsetTop > scrollTop + clientHeight - 40) {
      this.host.scrollTop = row.offsetTop - clientHeight / 2;
    }
  }
};
window.dcp.views = { ...window.dcp.views, "dcp-device-table": "DeviceTable" };
