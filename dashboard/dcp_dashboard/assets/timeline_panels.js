// Beside the timeline: sums over the marked area as a table.
"use strict";

window.dcp = window.dcp || {};

(() => {
  const view = window.dcp.canvas;
  const { make } = view;
  const marks = () => window.dcp.timelineMarks;

  class Area {
    constructor(page, timeline) {
      this.timeline = timeline;
      this.slot = page.querySelector(".dcp-timeline-area");
      const keys = ["area", "kinds", "longer", "source"];
      this.unfollow = window.dcp.state.follow((_state, changed) => { if (keys.some((key) => changed.has(key))) this.show(); });
      this.show();
    }

    dispose() { this.unfollow(); }

    show() {
      const area = this.inside(window.dcp.state.get().area);
      if (!area) {
        const mark = make("button", { type: "button", className: "dcp-toggle", onclick: () => window.dcp.timelineSelection.markShown(this.timeline) }, "Mark what is shown");
        this.slot.replaceChildren(make("p", { className: "dcp-muted" }, "Drag with shift held, or press m, to sum over an area. "), mark);
        return;
      }
      const [t0, t1, first, last] = area;
      const close = make("button", { type: "button", className: "dcp-toggle", onclick: () => window.dcp.state.set({ area: null }) }, "Unmark");
      const where = first === last ? `device ${first}` : `devices ${first} to ${last}`;
      this.slot.replaceChildren(make("p", {}, `${view.duration(t1 - t0)} from ${view.duration(t0)}, ${where} `, close),
        ...this.timeline.sources.flatMap((trace) => this.table(trace, area)));
    }

    inside(area) {
      if (!area) return null;
      const [t0, t1, first, last] = area;
      const most = this.timeline.devices - 1;
      return t1 > t0 && first <= last && first <= most ? [t0, t1, Math.max(0, first), Math.min(most, last)] : null;
    }

    // Per kind: time over all devices and its share, events, bytes, and the least and most busy device.
    table(trace, [t0, t1, first, last]) {
      const { header, shown, unit } = trace;
      const sums = window.dcp.events.aggregate(shown, header.kinds.length, t0 / unit, t1 / unit, first, last);
      const whole = (t1 - t0) * (last - first + 1);
      const rows = sums.map((sum, kind) => ({ kind: header.kinds[kind], ...sum })).filter(({ count }) => count);
      const head = ["Kind", "Time", "Share", "Events", "Bytes", "Least", "Most"];
      const cell = (tag, text, isNumber = true) => make(tag, { className: isNumber ? "dcp-number" : "" }, text);
      const body = rows.map(({ kind, time, count, bytes, perDevice }) => make("tr", {},
        make("th", { scope: "row" }, kind), cell("td", view.duration(time * unit)), cell("td", `${view.digits((100 * time * unit) / whole)} %`),
        cell("td", view.count(count)), cell("td", bytes ? view.size(bytes) : ""),
        ...[Math.min, Math.max].map((pick) => this.extreme(perDevice, pick, first, unit))));
      return [make("h3", {}, `${marks().WORDS[header.source]}`), make("div", { className: "dcp-scroll", tabIndex: 0 },
        make("table", { className: "dcp-table dcp-area-table" },
          make("thead", {}, make("tr", {}, ...head.map((text, i) => make("th", { scope: "col", className: i ? "dcp-number" : "" }, text)))),
          make("tbody", {}, ...body)))];
    }

    // The least or most of all devices; it names the device and a click selects that.
    extreme(perDevice, pick, first, unit) {
      const value = perDevice.reduce((one, other) => pick(one, other));
      const device = first + perDevice.indexOf(value);
      return make("td", { className: "dcp-number" }, make("button", { type: "button", className: "dcp-link", title: `device ${device}`,
        onclick: () => window.dcp.state.set({ sel: { type: "device", device } }) }, view.duration(value * unit)));
    }
  }

  window.dcp.timelineTools.push(Area);
})();
