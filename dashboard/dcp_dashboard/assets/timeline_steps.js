// One division after the other: forward from the first to the last, then backward; by hand or played.
"use strict";

window.dcp = window.dcp || {};

(() => {
  const view = window.dcp.canvas;
  const { make } = view;
  const PACE_MS = 1200;

  // [{backward, division, start, end}] in ns, in the order of time.
  function divisionsOf(traces) {
    const found = new Map();
    for (const { columns: { division, backward, start, end }, unit } of traces) {
      for (let e = 0; e < start.length; e++) {
        if (division[e] < 0) continue;
        const key = backward[e] * 65536 + division[e];
        let one = found.get(key);
        if (!one) found.set(key, one = { backward: backward[e], division: division[e], start: Infinity, end: 0 });
        if (start[e] * unit < one.start) one.start = start[e] * unit;
        if (end[e] * unit > one.end) one.end = end[e] * unit;
      }
    }
    return [...found.values()].sort((a, b) => a.backward - b.backward || a.division - b.division);
  }

  class Steps {
    constructor(page, timeline) {
      this.timeline = timeline;
      this.all = divisionsOf(timeline.sources);
      this.label = make("output", { className: "dcp-step-label", "aria-live": "polite" });
      const button = (text, label, action) => make("button", { type: "button", className: "dcp-toggle", textContent: text, "aria-label": label, onclick: action });
      this.play = button("▶", "Play division by division", () => this.toggle());
      this.play.setAttribute("aria-pressed", "false");
      page.querySelector(".dcp-timeline-tools").append(make("div", { className: "dcp-tool-group", role: "group", "aria-label": "Divisions" },
        button("◂", "Previous division", () => this.step(-1)), this.play, button("▸", "Next division", () => this.step(1)), this.label));
      this.unfollow = window.dcp.state.follow((_state, changed) => {
        if (changed.has("source")) this.all = divisionsOf(timeline.sources);
        this.show();
      });
      this.onKey = (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
        if (event.key === " " && event.target.closest("button, a, summary")) return; // presses that
        if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
        const action = { ",": () => this.step(-1), ".": () => this.step(1), " ": () => this.toggle(), p: () => this.toggle() }[event.key];
        if (action) { event.preventDefault(); action(); }
      };
      document.addEventListener("keydown", this.onKey);
      this.show();
    }

    dispose() {
      this.unfollow();
      clearInterval(this.timer);
      document.removeEventListener("keydown", this.onKey);
    }

    get at() {
      const { sel } = window.dcp.state.get();
      if (!sel || sel.type !== "division") return -1;
      return this.all.findIndex(({ backward, division }) => division === sel.division && backward === (sel.backward || 0));
    }

    // Shows a division with a little of what is around it; false behind the last.
    step(by) {
      const { at } = this;
      const next = this.all[at < 0 ? (by > 0 ? 0 : this.all.length - 1) : at + by];
      if (!next) return false;
      const margin = (next.end - next.start) * 0.05;
      const { sel } = window.dcp.state.get();
      const kept = sel && sel.device !== undefined ? { device: sel.device } : {}; // stays selected
      window.dcp.state.set({
        sel: { type: "division", division: next.division, backward: next.backward, ...kept },
        time: [Math.max(0, next.start - margin), Math.min(this.timeline.time.full, next.end + margin)],
      });
      return true;
    }

    toggle() {
      const isPlaying = !!this.timer;
      clearInterval(this.timer);
      this.timer = 0;
      if (!isPlaying) {
        if (this.at === this.all.length - 1) window.dcp.state.set({ sel: null });
        if (this.step(1)) this.timer = setInterval(() => { if (!this.step(1)) this.toggle(); }, PACE_MS);
      }
      this.play.textContent = this.timer ? "❚❚" : "▶";
      this.play.setAttribute("aria-pressed", String(!!this.timer));
    }

    show() {
      const one = this.all[this.at];
      this.label.textContent = one
        ? `${one.backward ? "backward" : "forward"}, division ${one.division} · ${view.duration(one.end - one.start)}`
        : `${this.all.length} divisions`;
    }
  }

  window.dcp.timelineTools.push(Steps);
  window.dcp.divisionsOf = divisionsOf;
})();
