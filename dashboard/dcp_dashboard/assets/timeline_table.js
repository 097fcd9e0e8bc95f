// The events as a table, instead of the canvas: filtered like it, sorted by any column. The events are in the browser
// already, so no request is made.
"use strict";

window.dcp = window.dcp || {};

(() => {
  const view = window.dcp.canvas;
  const { make } = view;
  const HEADS = [["source", "Trace"], ["device", "Device"], ["kind", "Kind"], ["name", "Name"], ["direction", "Direction"], ["division", "Division"],
    ["peer", "Peer"], ["bytes", "Bytes"], ["start_ns", "Start"], ["duration_ns", "Duration"]];
  const PLAIN = ["source", "direction"]; // nothing to sort by
  const NUMBERS = ["device", "division", "peer", "bytes", "start_ns", "duration_ns"];

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
      else if (changed.has("sel")) this.table.fill();
    }

    show() {
      const isTable = window.dcp.state.get().view === "table";
      this.slot.hidden = !isTable;
      this.timeline.host.hidden = isTable;
      if (isTable) this.build();
      else this.timeline.resize();
    }

    build() {
      const { order } = window.dcp.state.get();
      this.parts = this.timeline.sources.map((trace) => ({ trace, ids: orderOf(
        { ...trace, shown: trace.hits || trace.shown }, order) }));
      const size = this.parts.reduce((sum, { ids }) => sum + ids.length, 0);
      const heads = HEADS.map(([name, text]) => [name, text, { isNumber: NUMBERS.includes(name), isPlain: PLAIN.includes(name) }]);
      this.table = new window.dcp.VirtualTable({
        label: "Events", heads, order, size, cells: (n) => this.cells(n), chosen: () => this.chosen(),
        choose: (n) => { const { trace, e } = this.rowAt(n); this.timeline.select(trace, e); },
        sort: (next) => window.dcp.state.set({ order: next }),
      });
      this.slot.replaceChildren(make("p", { className: "dcp-muted dcp-event-count" },
        size ? `${view.count(size)} events` : "No event passes the filters."), this.table.box);
      this.table.fill();
    }

    rowAt(number) {
      let rest = number;
      for (const { trace, ids } of this.parts) {
        if (rest < ids.length) return { trace, e: ids[rest] };
        rest -= ids.length;
      }
      return null;
    }

    cells(number) {
      const { trace: { columns, header, unit }, e } = this.rowAt(number);
      return [window.dcp.timelineMarks.WORDS[header.source], String(columns.device[e]), header.kinds[columns.kind[e]], header.names[columns.name[e]],
        columns.backward[e] ? "backward" : "forward", columns.division[e] >= 0 ? String(columns.division[e]) : "",
        columns.peer[e] >= 0 ? String(columns.peer[e]) : "", columns.bytes[e] ? view.size(columns.bytes[e]) : "",
        view.duration(columns.start[e] * unit), view.duration((columns.end[e] - columns.start[e]) * unit)];
    }

    chosen() {
      const { sel } = window.dcp.state.get();
      let before = 0;
      for (const { trace, ids } of this.parts) {
        const e = window.dcp.timelineSelection.eventOf(sel, trace);
        const at = e === undefined ? -1 : ids.indexOf(e);
        if (at >= 0) return before + at;
        before += ids.length;
      }
      return -1;
    }
  }

  window.dcp.timelineTools.push(EventTable);
  window.dcp.isOrder = isOrder;
})();
