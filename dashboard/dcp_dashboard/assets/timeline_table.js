// The events as a table, instead of the canvas: filtered like it, sorted by any column, only the rows in sight exist.
// The events are in the browser already, so no request is made and no grid library is loaded.
"use strict";

window.dcp = window.dcp || {};

(() => {
  const view = window.dcp.canvas;
  const { make } = view;
  const ROW = 28; // CSS pixels
  const MOST_HIGH = 8e6; // browsers place nothing far beyond; more rows share these pixels
  const HEADS = [["source", "Trace"], ["device", "Device"], ["kind", "Kind"], ["name", "Name"], ["direction", "Direction"], ["division", "Division"],
    ["peer", "Peer"], ["bytes", "Bytes"], ["start_ns", "Start"], ["duration_ns", "Duration"]];
  const PLAIN = ["source", "direction"]; // nothing to sort by
  const NUMBERS = ["device", "division", "peer", "bytes", "start_ns", "duration_ns"];
  const classOf = (column) => (NUMBERS.includes(column) ? "dcp-number" : "");

  // Whether a text names a column to sort by, "-" in front: falling.
  const isOrder = (text) => HEADS.some(([column]) => column === (text || "").replace("-", "") && !PLAIN.includes(column));

  // Rows of a trace's shown events in the order of a column, "-" in front: falling. Stable, as numpy's stable sort.
  function orderOf({ shown, columns }, sort) {
    const { idOf } = window.dcp.events;
    const ids = Uint32Array.from({ length: shown.start.length }, (_, i) => idOf(shown, i));
    if (!isOrder(sort)) return ids;
    const column = sort.replace("-", "");
    const key = { start_ns: columns.start, bytes: columns.bytes, device: columns.device, kind: columns.kind, name: columns.name,
      division: columns.division, peer: columns.peer }[column];
    const value = column === "duration_ns" ? (e) => columns.end[e] - columns.start[e] : (e) => key[e];
    const values = Float64Array.from(ids, value);
    const sign = sort.startsWith("-") ? -1 : 1;
    const places = Uint32Array.from(ids, (_, i) => i).sort((a, b) => sign * (values[a] - values[b]) || a - b);
    return places.map((place) => ids[place]);
  }

  class EventTable {
    constructor(page, timeline) {
      this.page = page;
      this.timeline = timeline;
      this.slot = page.querySelector(".dcp-event-table");
      this.unfollow = window.dcp.state.follow((_state, changed) => this.follow(changed));
      if (window.dcp.state.get().view === "table") this.show();
    }

    dispose() { this.unfollow(); }

    follow(changed) {
      if (changed.has("view")) this.show();
      if (this.slot.hidden) return;
      if (["kinds", "longer", "find", "order", "source"].some((key) => changed.has(key))) this.build();
      else if (changed.has("sel")) this.fill();
    }

    show() {
      const isTable = window.dcp.state.get().view === "table";
      this.slot.hidden = !isTable;
      this.timeline.host.hidden = isTable;
      if (isTable) this.build();
      else this.timeline.resize();
    }

    // A heading that sorts, a box that scrolls over all rows, and the rows in sight within.
    build() {
      const { order: sort = "" } = window.dcp.state.get();
      this.parts = this.timeline.sources.map((trace) => ({ trace, ids: orderOf(
        { ...trace, shown: trace.hits || trace.shown }, sort) }));
      this.size = this.parts.reduce((sum, { ids }) => sum + ids.length, 0);
      const heads = HEADS.map(([column, text]) => this.head(column, text, sort));
      this.body = make("tbody", {});
      this.table = make("table", { className: "dcp-table dcp-events", "aria-rowcount": this.size + 1, "aria-label": "Events" },
        make("thead", {}, make("tr", {}, ...heads)), this.body);
      this.space = make("div", { className: "dcp-event-space" }, this.table);
      this.space.style.height = `${Math.min(MOST_HIGH, (this.size + 1) * ROW + 4)}px`;
      this.box = make("div", { className: "dcp-event-scroll", tabIndex: 0, role: "region", "aria-label": "Table of events, scrolls" }, this.space);
      this.box.addEventListener("scroll", () => this.fill());
      this.box.addEventListener("keydown", (event) => this.key(event));
      this.slot.replaceChildren(make("p", { className: "dcp-muted dcp-event-count" },
        this.size ? `${view.count(this.size)} events` : "No event passes the filters."), this.box);
      this.fill();
    }

    head(column, text, sort) {
      if (PLAIN.includes(column)) return make("th", { scope: "col" }, text);
      const order = sort === column ? "ascending" : sort === `-${column}` ? "descending" : "none";
      const next = { none: column, ascending: `-${column}`, descending: null }[order];
      return make("th", { scope: "col", "aria-sort": order, className: classOf(column) }, make("button", { type: "button", className: "dcp-link",
        onclick: () => window.dcp.state.set({ order: next }) }, text + { none: "", ascending: " ↑", descending: " ↓" }[order]));
    }

    rowAt(number) {
      let rest = number;
      for (const { trace, ids } of this.parts) {
        if (rest < ids.length) return { trace, e: ids[rest] };
        rest -= ids.length;
      }
      return null;
    }

    fill() {
      // As many rows as fit below the heading, so that none is cut and nothing has to scroll for a click.
      const high = Math.max(1, Math.floor((this.box.clientHeight || 560) / ROW) - 1);
      const room = this.box.scrollHeight - this.box.clientHeight;
      const share = room > 0 ? Math.min(1, this.box.scrollTop / room) : 0;
      this.first = Math.round(share * Math.max(0, this.size - high));
      const rows = [];
      for (let i = this.first; i < Math.min(this.size, this.first + high); i++) rows.push(this.row(i));
      this.body.replaceChildren(...rows);
    }

    row(number) {
      const { trace, e } = this.rowAt(number);
      const { columns, header, unit } = trace;
      const { sel } = window.dcp.state.get();
      const texts = [window.dcp.timelineMarks.WORDS[header.source], String(columns.device[e]), header.kinds[columns.kind[e]], header.names[columns.name[e]],
        columns.backward[e] ? "backward" : "forward", columns.division[e] >= 0 ? String(columns.division[e]) : "",
        columns.peer[e] >= 0 ? String(columns.peer[e]) : "", columns.bytes[e] ? view.size(columns.bytes[e]) : "",
        view.duration(columns.start[e] * unit), view.duration((columns.end[e] - columns.start[e]) * unit)];
      const isChosen = window.dcp.timelineSelection.eventOf(sel, trace) === e;
      return make("tr", { "aria-rowindex": number + 2, "aria-selected": String(isChosen), className: isChosen ? "dcp-chosen" : "",
        onclick: () => this.timeline.select(trace, e) }, ...texts.map((text, at) => make("td", { className: classOf(HEADS[at][0]) }, text)));
    }

    // Up and down select the neighbouring row, also one that is not in sight.
    key(event) {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by || !this.size) return;
      event.preventDefault();
      const { sel } = window.dcp.state.get();
      let at = -1;
      let before = 0;
      for (const { trace, ids } of this.parts) {
        const e = window.dcp.timelineSelection.eventOf(sel, trace);
        if (e !== undefined && ids.indexOf(e) >= 0) at = before + ids.indexOf(e);
        before += ids.length;
      }
      const next = Math.max(0, Math.min(this.size - 1, at + by));
      if (next < this.first || next >= this.first + this.body.children.length) this.box.scrollTop += by * ROW;
      const { trace, e } = this.rowAt(next);
      this.timeline.select(trace, e);
    }
  }

  window.dcp.timelineTools.push(EventTable);
  window.dcp.isOrder = isOrder;
})();
