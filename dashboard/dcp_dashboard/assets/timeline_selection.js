// The selection in the timeline: facts of an event, which events a selection of another view means, outlines and the
// arrow of a message, previous and next, zooming to it.
"use strict";

window.dcp = window.dcp || {};

window.dcp.timelineSelection = (() => {
  const LANES = { send: 1, receive: 2 };

  // What the state holds of an event: ids only, so that every view can mark what it knows of.
  function factsOf({ header, columns }, e) {
    const facts = { type: "event", event: e, source: header.source, device: columns.device[e], backward: columns.backward[e] };
    if (columns.division[e] >= 0) facts.division = columns.division[e];
    if (columns.peer[e] >= 0) facts.peer = columns.peer[e];
    if (columns.block[e] >= 0) facts.block = columns.block[e];
    return facts;
  }

  // The selected event's row in a trace, or undefined.
  function eventOf(sel, trace) {
    if (!sel || sel.type !== "event" || sel.source !== trace.header.source) return undefined;
    return sel.event < trace.columns.start.length ? sel.event : undefined;
  }

  // A test of rows for what a selection means beside devices, or null if it means no group of events.
  function brushTest(sel, { header, columns }) {
    if (!sel) return null;
    const { device, peer, lane, division, backward, block } = columns;
    const isOf = (e) => (sel.backward === undefined || backward[e] === sel.backward)
      && (sel.division === undefined || division[e] === sel.division);
    // A finding about a wait names the device that was waited for, too: what it sends the other one is evidence.
    const isNamed = (e) => sel.device === undefined || device[e] === sel.device
      || (sel.peer !== undefined && device[e] === sel.peer && peer[e] === sel.device);
    if (sel.type === "division") return (e) => isOf(e) && isNamed(e);
    if (sel.type === "sequence") { // messages name their block, computing names none
      const [first, past] = [header.sequence_blocks[sel.sequence], header.sequence_blocks[sel.sequence + 1]];
      return (e) => block[e] >= first && block[e] < past;
    }
    if (sel.type === "tile") return (e) => isOf(e) && device[e] === sel.device && backward[e] === (sel.backward || 0) && lane[e] === 0;
    if (sel.peer === undefined || sel.type === "event") return null;
    const isBetween = (e) => (lane[e] === LANES.send && device[e] === sel.device && peer[e] === sel.peer)
      || (lane[e] === LANES.receive && device[e] === sel.peer && peer[e] === sel.device);
    return (e) => isBetween(e) && isOf(e) && (sel.block === undefined || block[e] === sel.block);
  }

  // The messages to draw arrows for: [sent, received] rows of a trace.
  function arrowOf(sel, trace) {
    const { columns, all, brush } = trace;
    let e = eventOf(sel, trace);
    if (sel && sel.type === "transfer" && brush && brush.ids && brush.ids.length) {
      e = [...brush.ids.subarray(0, 64)].find((id) => columns.lane[id] === LANES.send);
    }
    if (e === undefined) return null;
    const other = window.dcp.events.partnerOf(columns, all, e);
    if (other === undefined) return null;
    return columns.lane[e] === LANES.send ? [e, other] : [other, e];
  }

  function draw(timeline, pen) {
    const { sel } = timeline.state;
    if (!sel) return;
    const { left, top, width } = timeline.layers.area;
    pen.strokeStyle = timeline.accent;
    pen.fillStyle = timeline.accent;
    const marked = [sel.device, sel.peer].filter((device) => device !== undefined);
    for (const row of timeline.rowsInView()) {
      if (!marked.some((device) => device >= row.devices[0] && device < row.devices[1])) continue;
      const y = top + row.y - timeline.scroll.start;
      pen.fillRect(left - 3, y + 1, 3, row.height - 1);
      if (sel.type === "device") {
        pen.globalAlpha = 0.9;
        pen.strokeRect(left + 0.5, y + 0.5, width - 1, row.height);
        pen.globalAlpha = 1;
      }
    }
    for (const trace of timeline.sources) drawEvent(timeline, pen, trace, sel);
  }

  function drawEvent(timeline, pen, trace, sel) {
    const e = eventOf(sel, trace);
    pen.lineWidth = 2;
    pen.strokeStyle = timeline.ink;
    const box = e === undefined ? null : timeline.boxOf(trace, e);
    if (box) pen.strokeRect(box.x - 1, box.y - 1, Math.max(2, box.width) + 2, box.height + 2);
    const arrow = arrowOf(sel, trace);
    const boxes = arrow ? arrow.map((end) => timeline.boxOf(trace, end)) : [null, null];
    if (boxes[0] && boxes[1]) drawArrow(pen, boxes[0], boxes[1], timeline.ink);
    if (e !== undefined) drawChain(timeline, pen, trace, e);
    pen.lineWidth = 1;
  }

  // What held up a wait, once the details are there: an arrow from each event to the one that began when it ended.
  function drawChain(timeline, pen, trace, e) {
    const { chain = [], event, source } = timeline.facts || {};
    if (event !== e || source !== trace.header.source) return;
    const boxes = [e, ...chain].map((step) => timeline.boxOf(trace, step));
    for (let at = 1; at < boxes.length; at++) if (boxes[at] && boxes[at - 1]) drawArrow(pen, boxes[at], boxes[at - 1], timeline.ink);
  }

  // From the middle of the send to the middle of the receive, with a head.
  function drawArrow(pen, sent, received, ink) {
    for (const box of [sent, received]) pen.strokeRect(box.x - 1, box.y - 1, Math.max(2, box.width) + 2, box.height + 2);
    const [x0, y0] = [sent.x + sent.width / 2, sent.y + sent.height / 2];
    const [x1, y1] = [received.x + received.width / 2, received.y + received.height / 2];
    const angle = Math.atan2(y1 - y0, x1 - x0);
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x1, y1);
    for (const turn of [2.7, -2.7]) pen.lineTo(x1 + 9 * Math.cos(angle + turn), y1 + 9 * Math.sin(angle + turn));
    pen.closePath();
    pen.fillStyle = ink;
    pen.fill();
  }

  // Scrolls to the device of the selection where it has a row outside the picture.
  function reveal(timeline) {
    const { sel } = timeline.state;
    if (!sel || sel.device === undefined || timeline.scroll.isWhole) return;
    const row = timeline.rowOf(0, sel.device);
    if (!row || (row.y >= timeline.scroll.start && row.y + row.height <= timeline.scroll.end)) return;
    timeline.scroll.place(row.y - timeline.scroll.span / 2, timeline.scroll.span);
  }

  // First start and last end, in ns, of what is selected; null if it has no events.
  function extentOf(timeline) {
    const { sel, area } = timeline.state;
    let [from, to] = [Infinity, -Infinity];
    const add = ({ start, end, unit }) => { from = Math.min(from, start * unit); to = Math.max(to, end * unit); };
    for (const trace of timeline.sources) {
      const { columns, unit, brush } = trace;
      const chosen = [eventOf(sel, trace), ...(arrowOf(sel, trace) || [])].filter((e) => e !== undefined);
      for (const e of chosen) add({ start: columns.start[e], end: columns.end[e], unit });
      if (brush) for (let i = 0; i < brush.start.length; i++) add({ start: brush.start[i], end: brush.end[i], unit });
    }
    if (to >= from) return [from, to];
    return area ? [area[0], area[1]] : null;
  }

  // Shows the selection with a tenth of its length on both sides.
  function fit(timeline) {
    const extent = extentOf(timeline);
    if (!extent) return;
    const margin = Math.max(10, (extent[1] - extent[0]) * 0.1);
    window.dcp.state.set({ time: [Math.max(0, extent[0] - margin), Math.min(timeline.time.full, extent[1] + margin)] });
  }

  // Selects the previous or next shown event of the same device and lane; without a selection the first in view.
  function step(timeline, by) {
    const { sel } = timeline.state;
    for (const trace of timeline.sources) {
      const e = eventOf(sel, trace);
      if (e === undefined) continue;
      const { shown, columns } = trace;
      const track = columns.device[e] * 4 + columns.lane[e];
      const rows = Array.from({ length: shown.from[track + 1] - shown.from[track] }, (_, i) => window.dcp.events.idOf(shown, shown.from[track] + i));
      const at = rows.indexOf(e);
      const next = at < 0 ? rows.find((row) => row > e) : rows[at + by];
      if (next !== undefined) show(timeline, trace, next);
      return;
    }
    const device = sel && sel.device !== undefined ? sel.device : 0;
    for (const trace of timeline.sources) {
      const { shown, unit } = trace;
      for (let track = device * 4; track + 1 < shown.from.length; track++) {
        const row = window.dcp.events.firstEndingAfter(shown, track, timeline.time.start / unit);
        if (row < shown.from[track + 1]) { show(timeline, trace, window.dcp.events.idOf(shown, row)); return; }
      }
    }
  }

  // Selects an event and moves the picture so that it is within.
  function show(timeline, trace, e) {
    const { start, end } = trace.columns;
    const [from, to] = [start[e] * trace.unit, end[e] * trace.unit];
    timeline.select(trace, e);
    const { time } = timeline;
    if (from >= time.start && to <= time.end) return;
    const span = Math.max(time.span, (to - from) * 1.2);
    time.place((from + to) / 2 - span / 2, Math.min(span, time.full));
    timeline.moved();
    timeline.schedule();
  }

  // Keys of the canvas beside those of every canvas; true if it was one.
  function key(timeline, event) {
    const action = {
      "[": () => step(timeline, -1), "]": () => step(timeline, 1), Enter: () => fit(timeline), f: () => fit(timeline),
      o: () => toggleSelected(timeline), m: () => timeline.page && markShown(timeline),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (event.key === "Escape" && timeline.page && timeline.state.area) {
      window.dcp.state.set({ area: null });
      return true;
    }
    if (!action) return false;
    action();
    return true;
  }

  function toggleSelected(timeline) {
    const { sel } = timeline.state;
    if (sel && sel.device !== undefined) timeline.toggle(window.dcp.rows.nodeOf(timeline.nodeStarts, sel.device));
    else if (timeline.page) window.dcp.state.set({ open: timeline.open.size ? "none" : "all" });
  }

  function markShown(timeline) {
    const { start, end } = timeline.time;
    window.dcp.state.set({ area: [Math.floor(start), Math.ceil(end), 0, timeline.devices - 1] });
  }

  return { factsOf, eventOf, brushTest, arrowOf, draw, reveal, extentOf, fit, step, show, key, markShown };
})();
