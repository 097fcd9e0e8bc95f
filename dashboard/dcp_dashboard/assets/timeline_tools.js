// The row of controls above the timeline: which traces and kinds, how long at least, search, table,
// exports. All of it is in dcp.state; a control sets it and follows it.
"use strict";

window.dcp = window.dcp || {};

(() => {
  const view = window.dcp.canvas;
  const { make } = view;
  const set = (patch) => window.dcp.state.set(patch);
  const WORDS = { simulated: "Predicted", measured: "Measured", both: "Both" };

  // "1.5 ms", "20us", "300" (µs) -> ns; 0 for nothing, NaN for anything else.
  function parseDuration(text) {
    if (!text.trim()) return 0;
    const found = /^\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|μs|ms|s|)\s*$/i.exec(text);
    if (!found) return NaN;
    const unit = found[2].toLowerCase();
    return Math.round(Number(found[1]) * ({ ns: 1, ms: 1e6, s: 1e9 }[unit] || 1e3));
  }

  class Filters {
    constructor(page, timeline) {
      this.timeline = timeline;
      this.slot = page.querySelector(".dcp-timeline-tools");
      this.slot.prepend(this.sources(), this.kinds(), this.longest(), this.search(), this.views(), this.exports(page));
      this.unfollow = window.dcp.state.follow((_state, changed) => this.show(changed));
      this.onKey = (event) => this.key(event);
      document.addEventListener("keydown", this.onKey);
      this.show(new Set(["find", "longer", "kinds", "source", "view", "order"]));
    }

    dispose() {
      this.unfollow();
      document.removeEventListener("keydown", this.onKey);
    }

    group(label, ...children) {
      return make("div", { className: "dcp-tool-group", role: "group", "aria-label": label }, ...children);
    }

    sources() {
      this.sourceButtons = new Map();
      const names = this.timeline.traces.map(({ header }) => header.source);
      if (names.length > 1) names.push("both");
      for (const name of names) {
        this.sourceButtons.set(name, make("button", {
          type: "button", className: "dcp-toggle", textContent: WORDS[name], onclick: () => set({ source: name }),
        }));
      }
      return this.group("Trace to show", ...this.sourceButtons.values());
    }

    kinds() {
      const { kinds, colours } = this.timeline.header;
      this.kindButtons = new Map(kinds.map((kind, i) => {
        const swatch = make("span", { className: "dcp-swatch", "aria-hidden": "true" });
        swatch.style.backgroundColor = colours[i];
        return [kind, make("button", {
          type: "button", className: "dcp-toggle dcp-kind", title: `Show or hide ${kind}`, onclick: () => this.toggle(kind),
        }, swatch, kind)];
      }));
      return this.group("Kinds to show", ...this.kindButtons.values());
    }

    get shownKinds() {
      const { kinds } = window.dcp.state.get();
      return kinds ? kinds.split(",") : this.timeline.header.kinds;
    }

    toggle(kind) {
      const all = this.timeline.header.kinds;
      const shown = new Set(this.shownKinds);
      if (!shown.delete(kind)) shown.add(kind);
      const kept = all.filter((name) => shown.has(name));
      set({ kinds: kept.length === all.length ? null : kept.join(",") || "none" });
    }

    longest() {
      this.longer = make("input", { type: "text", className: "dcp-input dcp-input-short", placeholder: "any", "aria-label": "Shortest duration to show" });
      this.longer.addEventListener("change", () => {
        const least = parseDuration(this.longer.value);
        this.longer.setAttribute("aria-invalid", String(Number.isNaN(least)));
        this.longer.title = Number.isNaN(least) ? "A duration such as 20 µs or 1.5 ms" : "";
        if (!Number.isNaN(least)) set({ longer: least ? String(least) : null });
      });
      return this.group("Duration", make("label", { className: "dcp-tool-label" }, "at least ", this.longer));
    }

    search() {
      this.find = make("input", {
        type: "search", className: "dcp-input", placeholder: "/ search: gpu 17, division 3", "aria-label": "Search events",
      });
      this.found = make("output", { className: "dcp-found", "aria-live": "polite" });
      this.find.addEventListener("input", () => { this.hit = -1; set({ find: this.find.value.trim() || null }); });
      this.find.addEventListener("keydown", (event) => {
        if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
        if (event.key === "Escape") { set({ find: null }); this.timeline.layers.marks.focus(); event.stopPropagation(); }
      });
      const arrow = (text, by, label) => make("button", { type: "button", className: "dcp-toggle", textContent: text, onclick: () => this.step(by), "aria-label": label });
      return this.group("Search", this.find, arrow("‹", -1, "Previous hit"), arrow("›", 1, "Next hit"), this.found);
    }

    // Hits of the shown traces one behind the other, by number.
    hitAt(number) {
      let rest = number;
      for (const trace of this.timeline.sources) {
        const size = trace.hits ? trace.hits.start.length : 0;
        if (rest < size) return { trace, e: window.dcp.events.idOf(trace.hits, rest) };
        rest -= size;
      }
      return null;
    }

    get hits() { return this.timeline.sources.reduce((sum, { hits }) => sum + (hits ? hits.start.length : 0), 0); }

    step(by) {
      const { hits } = this;
      if (!hits) return;
      this.hit = this.hit < 0 && by < 0 ? hits - 1 : (this.hit + by + hits) % hits;
      const { trace, e } = this.hitAt(this.hit);
      const node = window.dcp.rows.nodeOf(this.timeline.nodeStarts, trace.columns.device[e]);
      if (!this.timeline.open.has(node)) this.timeline.toggle(node);
      window.dcp.timelineSelection.show(this.timeline, trace, e);
      this.count();
    }

    count() {
      const { hits } = this;
      const { find } = window.dcp.state.get();
      this.found.textContent = find ? `${this.hit >= 0 ? view.count(this.hit + 1) : "–"}/${view.count(hits)}` : "";
    }

    views() {
      this.table = make("button", { type: "button", className: "dcp-toggle", textContent: "Table",
        onclick: () => set({ view: window.dcp.state.get().view === "table" ? null : "table" }) });
      return this.group("View", this.table);
    }

    exports(page) {
      const link = (text, title) => make("a", { className: "dcp-toggle", textContent: text, title, download: "" });
      this.csv = link("CSV", "Save the shown events as CSV");
      this.perfetto = link("Perfetto", "Save for ui.perfetto.dev");
      this.api = `/api/plan/${page.dataset.key}`;
      return this.group("Export", this.csv, this.perfetto);
    }

    // What the state says: pressed buttons, texts, addresses of exports.
    show(changed) {
      const state = window.dcp.state.get();
      const sources = this.timeline.sources.length;
      const source = sources > 1 ? "both" : this.timeline.sources[0].header.source;
      for (const [name, button] of this.sourceButtons) button.setAttribute("aria-pressed", String(name === source));
      for (const [kind, button] of this.kindButtons) button.setAttribute("aria-pressed", String(this.shownKinds.includes(kind)));
      this.table.setAttribute("aria-pressed", String(state.view === "table"));
      if (changed.has("longer")) this.longer.value = state.longer ? view.duration(Number(state.longer)) : "";
      if (changed.has("find") && document.activeElement !== this.find) this.find.value = state.find || "";
      if (["find", "kinds", "longer", "source"].some((key) => changed.has(key))) { this.hit = -1; this.count(); }
      const query = new URLSearchParams({ source });
      this.perfetto.href = `${this.api}/trace.pftrace?${query}`;
      for (const key of ["kinds", "longer", "find"]) if (state[key]) query.set(key, state[key]);
      if (window.dcp.isOrder(state.order)) query.set("sort", state.order);
      this.csv.href = `${this.api}/events.csv?${query}`;
    }

    // Wherever the focus is on this page, but in a text.
    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
      if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
      if (event.key === "/") { event.preventDefault(); this.find.focus(); this.find.select(); }
      if (event.key === "n" || event.key === "N") this.step(event.key === "N" ? -1 : 1);
    }
  }

  window.dcp.timelineTools.push(Filters);
  window.dcp.parseDuration = parseDuration;
})();
