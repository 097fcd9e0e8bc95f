// The selection in the timeline: facts of an event, which events a selection of another view means, outlines and the
// arrow of a message, previous and next, zooming to it.

import { togglePin } from "../page/selection.ts";
import { type Selection, state } from "../state.ts";
import { type EventTest, firstEndingAfter, idOf, LANES, partnerOf } from "./events.ts";
import { nodeOf } from "./layout.ts";
import type { Box } from "../kit/layers.ts";
import type { TimelineView, Trace } from "./view.ts";

type Pen = CanvasRenderingContext2D;

const MOST_ARROWS = 64; // messages of a transfer among which one is drawn

/** The part of an event that the state holds: ids only, so that every view can mark what it knows of. */
export function factsOf({ header, columns }: Trace, e: number): Selection {
  const { device, backward, division, peer, block } = columns;
  return {
    type: "event", event: e, source: header.source, device: device[e], backward: backward[e],
    ...(division[e] >= 0 && { division: division[e] }), ...(peer[e] >= 0 && { peer: peer[e] }), ...(block[e] >= 0 && { block: block[e] }),
  };
}

/** The selected event's row in a trace, or undefined. */
export function eventOf(sel: Selection | undefined, trace: Trace): number | undefined {
  if (sel?.type !== "event" || sel.source !== trace.header.source || sel.event === undefined) return undefined;
  return sel.event < trace.columns.start.length ? sel.event : undefined;
}

/** A test of rows for what a selection means beside devices, or null if it means no group of events. */
export function brushTest(sel: Selection | undefined, { header, columns }: Pick<Trace, "header" | "columns">): EventTest | null {
  if (!sel) return null;
  const { device, peer, lane, division, backward, block } = columns;
  const isOf = (e: number) => (sel.backward === undefined || backward[e] === sel.backward)
    && (sel.division === undefined || division[e] === sel.division);
  // A finding about a wait names the device that was waited for, too: what it sends the other one is evidence.
  const isNamed = (e: number) => sel.device === undefined || device[e] === sel.device
    || (sel.peer !== undefined && device[e] === sel.peer && peer[e] === sel.device);
  if (sel.type === "division") return (e) => isOf(e) && isNamed(e);
  if (sel.type === "sequence") { // messages name their block, computing names none
    const [first, past] = header.sequence_blocks.slice(sel.sequence ?? -1);
    return (e) => block[e] >= first && block[e] < past;
  }
  if (sel.type === "tile") return (e) => isOf(e) && device[e] === sel.device && backward[e] === (sel.backward ?? 0) && lane[e] === LANES.compute;
  if (sel.peer === undefined || sel.type === "event") return null;
  const isBetween = (e: number) => (lane[e] === LANES.send && device[e] === sel.device && peer[e] === sel.peer)
    || (lane[e] === LANES.receive && device[e] === sel.peer && peer[e] === sel.device);
  return (e) => isBetween(e) && isOf(e) && (sel.block === undefined || block[e] === sel.block);
}

/** The message to draw an arrow for: [sent, received] rows of a trace. */
function arrowOf(sel: Selection | undefined, trace: Trace): [sent: number, received: number] | null {
  const { columns, all, brush } = trace;
  let e = eventOf(sel, trace);
  if (sel?.type === "transfer") e = brush?.ids?.subarray(0, MOST_ARROWS).find((id) => columns.lane[id] === LANES.send);
  if (e === undefined) return null;
  const other = partnerOf(columns, all, e);
  if (other === undefined) return null;
  return columns.lane[e] === LANES.send ? [e, other] : [other, e];
}

/** Marks what is selected: its rows, its event, the arrow of its message, what held up a wait. */
export function drawSelection(timeline: TimelineView, pen: Pen): void {
  const { sel } = timeline.state;
  if (!sel) return;
  const { left, top, width } = timeline.layers.area;
  pen.strokeStyle = timeline.accent;
  pen.fillStyle = timeline.accent;
  const marked = [sel.device, sel.peer].filter((device) => device !== undefined);
  for (const row of timeline.rowsInView()) {
    if (!marked.some((device) => device >= row.devices[0] && device < row.devices[1])) continue;
    const y = top + timeline.topOf(row);
    pen.fillRect(left - 3, y + 1, 3, row.height - 1);
    if (sel.type === "device") {
      pen.globalAlpha = 0.9;
      pen.strokeRect(left + 0.5, y + 0.5, width - 1, row.height);
      pen.globalAlpha = 1;
    }
  }
  for (const trace of timeline.sources) drawEvent(timeline, pen, trace, sel);
}

function drawEvent(timeline: TimelineView, pen: Pen, trace: Trace, sel: Selection): void {
  const e = eventOf(sel, trace);
  pen.lineWidth = 2;
  pen.strokeStyle = timeline.ink;
  const box = e === undefined ? null : timeline.boxOf(trace, e);
  if (box) pen.strokeRect(box.x - 1, box.y - 1, Math.max(2, box.width) + 2, box.height + 2);
  const arrow = arrowOf(sel, trace);
  const [sent, received] = arrow?.map((end) => timeline.boxOf(trace, end)) ?? [];
  if (sent && received) drawArrow(pen, sent, received, timeline.ink);
  if (e !== undefined) drawChain(timeline, pen, trace, e);
  pen.lineWidth = 1;
}

/** The cause of a wait, once the details are there: an arrow from each event to the one that began when it ended. */
function drawChain(timeline: TimelineView, pen: Pen, trace: Trace, e: number): void {
  const { chain = [], event, source } = timeline.facts ?? {};
  if (event !== e || source !== trace.header.source) return;
  const boxes = [e, ...chain].map((step) => timeline.boxOf(trace, step));
  for (let at = 1; at < boxes.length; at++) {
    const [later, earlier] = [boxes[at - 1], boxes[at]];
    if (earlier && later) drawArrow(pen, earlier, later, timeline.ink);
  }
}

/** From the middle of the send to the middle of the receive, with a head. */
function drawArrow(pen: Pen, sent: Box, received: Box, ink: string): void {
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

/** Scrolls to the device of the selection where it has a row outside the picture. */
export function reveal(timeline: TimelineView): void {
  const { sel } = timeline.state;
  if (sel?.device === undefined || timeline.scroll.isWhole) return;
  const row = timeline.rowOf(0, sel.device);
  if (!row || row.isPinned) return;
  const y = row.y - timeline.layout.pinned;
  if (y >= timeline.scroll.start && y + row.height <= timeline.scroll.end) return;
  timeline.scroll.place(y - timeline.scroll.span / 2, timeline.scroll.span);
}

/** First start and last end, in ns, of what is selected; null if it has no events. */
function extentOf(timeline: TimelineView): [number, number] | null {
  const { sel, area } = timeline.state;
  let [from, to] = [Infinity, -Infinity];
  const add = (start: number, end: number, unit: number) => { from = Math.min(from, start * unit); to = Math.max(to, end * unit); };
  for (const trace of timeline.sources) {
    const { columns, unit, brush } = trace;
    const chosen = [eventOf(sel, trace), ...(arrowOf(sel, trace) ?? [])].filter((e) => e !== undefined);
    for (const e of chosen) add(columns.start[e], columns.end[e], unit);
    if (brush) for (let i = 0; i < brush.start.length; i++) add(brush.start[i], brush.end[i], unit);
  }
  if (to >= from) return [from, to];
  return area ? [area[0], area[1]] : null;
}

/** Shows the selection with a tenth of its length on both sides. */
export function fit(timeline: TimelineView): void {
  const extent = extentOf(timeline);
  if (!extent) return;
  const margin = Math.max(10, (extent[1] - extent[0]) * 0.1);
  state.set({ time: [Math.max(0, extent[0] - margin), Math.min(timeline.time.full, extent[1] + margin)] });
}

/** Selects the previous or next shown event of the same device and lane; without a selection the first in view. */
function step(timeline: TimelineView, by: number): void {
  const { sel } = timeline.state;
  for (const trace of timeline.sources) {
    const e = eventOf(sel, trace);
    if (e === undefined) continue;
    const { shown, columns } = trace;
    const track = columns.device[e] * 4 + columns.lane[e];
    const rows = Array.from({ length: shown.from[track + 1] - shown.from[track] }, (_, i) => idOf(shown, shown.from[track] + i));
    const at = rows.indexOf(e);
    const next = at < 0 ? rows.find((row) => row > e) : rows[at + by];
    if (next !== undefined) show(timeline, trace, next);
    return;
  }
  const device = sel?.device ?? 0;
  for (const trace of timeline.sources) {
    const { shown, unit } = trace;
    for (let track = device * 4; track + 1 < shown.from.length; track++) {
      const row = firstEndingAfter(shown, track, timeline.time.start / unit);
      if (row < shown.from[track + 1]) { show(timeline, trace, idOf(shown, row)); return; }
    }
  }
}

/** Selects an event and moves the picture so that it is within. */
export function show(timeline: TimelineView, trace: Trace, e: number): void {
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

/** Keys of the canvas beside those of every canvas; true if it was one. */
export function handleKey(timeline: TimelineView, event: KeyboardEvent): boolean {
  const actions: Readonly<Record<string, () => void>> = {
    "[": () => step(timeline, -1), "]": () => step(timeline, 1), Enter: () => fit(timeline), f: () => fit(timeline),
    t: () => { if (timeline.state.sel?.device !== undefined) togglePin(timeline.state.sel.device); },
    o: () => toggleSelected(timeline), m: () => { if (timeline.page) markShown(timeline); },
  };
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (event.key === "Escape" && timeline.page && timeline.state.area) {
    state.set({ area: null });
    return true;
  }
  if (!action) return false;
  action();
  return true;
}

function toggleSelected(timeline: TimelineView): void {
  const { sel } = timeline.state;
  if (sel?.device !== undefined) timeline.toggle(nodeOf(timeline.nodeStarts, sel.device));
  else if (timeline.page) state.set({ open: timeline.open.size ? "none" : "all" });
}

export function markShown(timeline: TimelineView): void {
  const { start, end } = timeline.time;
  state.set({ area: [Math.floor(start), Math.ceil(end), 0, timeline.devices - 1] });
}
