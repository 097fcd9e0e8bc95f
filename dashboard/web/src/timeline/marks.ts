// What the timeline draws with a pen above its pixels: axis, labels of rows, the selection with its arrow, hits of a
// search, the marked area; and what its tooltip says.

import type { Ticks } from "../kit/axis.ts";
import * as format from "../kit/format.ts";
import { aggregate, firstEndingAfter, firstStartingAt, LANES } from "./events.ts";
import { band, type Row } from "./layout.ts";
import { drawNotes } from "./notes.ts";
import { drawSelection } from "./selection.ts";
import { type Place, type TimelineView, type Trace, WORDS } from "./view.ts";

type Pen = CanvasRenderingContext2D;

export function draw(timeline: TimelineView): void {
  const pen = timeline.layers.pen();
  const { left, top, width, height } = timeline.layers.area;
  drawAxis(timeline, pen);
  pen.save();
  pen.beginPath();
  pen.rect(0, top, left + width, height + 1);
  pen.clip();
  drawLabels(timeline, pen);
  if (timeline.page) drawHits(timeline, pen);
  drawArea(timeline, pen);
  timeline.path.draw(pen);
  drawSelection(timeline, pen);
  drawNotes(timeline, pen);
  pen.restore();
  drawScroll(timeline, pen);
}

function drawLabels(timeline: TimelineView, pen: Pen): void {
  const { left, top, width } = timeline.layers.area;
  const { height } = timeline.layout;
  const sources = timeline.sources.length;
  const every = Math.max(1, Math.ceil(13 / (height * sources)));
  pen.textBaseline = "middle";
  for (const row of timeline.rowsInView()) {
    const y = top + timeline.topOf(row);
    const [device] = row.devices;
    const isNode = device === timeline.nodeStarts[row.node] && row.source === 0 && !row.isPinned;
    pen.fillStyle = isNode && row.y ? timeline.muted : timeline.line;
    if (row.source === 0) pen.fillRect(isNode ? 0 : left, y, isNode ? left + width : width, 1);
    pen.fillStyle = timeline.muted;
    pen.textAlign = "right";
    if (sources > 1 && height >= 11) pen.fillText(row.source ? "m" : "p", left - 4, y + height / 2);
    const x = left - (sources > 1 && height >= 11 ? 16 : 8);
    if (row.isPinned) pen.fillStyle = timeline.accent;
    if (!row.isNode && row.source === 0 && (row.isPinned || device % every === 0)) pen.fillText(String(device), x, y + (height * sources) / 2);
    if (isNode && timeline.nodes > 1) drawNode(timeline, pen, row, y);
  }
  pen.fillStyle = timeline.accent;
  if (timeline.layout.pinned) pen.fillRect(0, top + timeline.layout.pinned - 1, left + width, 2);
}

/** The strip beside the devices of a node: a click there closes or opens them. */
function drawNode(timeline: TimelineView, pen: Pen, row: Row, y: number): void {
  const open = timeline.open.has(row.node);
  pen.textAlign = "left";
  if (timeline.page) pen.fillText(open ? "▾" : "▸", 0, y + 7);
  if (!open || timeline.layout.height * timeline.sources.length >= 8) pen.fillText(`n${row.node}`, timeline.page ? 9 : 0, y + 7);
}

function drawAxis(timeline: TimelineView, pen: Pen): void {
  const { left, top, width } = timeline.layers.area;
  const { start, end } = timeline.time;
  const { values, step }: Ticks = timeline.ticks;
  const shown = axisUnit(end, step);
  const toX = (ns: number) => left + ((ns - start) / (end - start)) * width;
  pen.textAlign = "center";
  for (const ns of values) {
    const x = Math.round(toX(ns));
    pen.fillStyle = timeline.line;
    pen.fillRect(x, top - 4, 1, 4);
    pen.fillStyle = timeline.muted;
    const half = 22;
    if (x - half > left - 20 && x + half < left + width + 6) pen.fillText(axisLabel(ns, step, shown), x, top - 7);
  }
  pen.textAlign = "left";
  pen.fillText("device", 0, top - 6);
  const [{ phases, unit }] = timeline.sources;
  for (const phase of phases) {
    const x0 = Math.max(left, toX(phase.start * unit));
    const x1 = Math.min(left + width, toX(phase.end * unit));
    if (x1 - x0 < 2) continue;
    pen.fillRect(x0, 13, x1 - x0 - 1, 1);
    if (x1 - x0 > 60) pen.fillText(phase.name, x0, 9);
  }
}

/** A short line under every event that the search found, one per pixel however many lie there. */
function drawHits(timeline: TimelineView, pen: Pen): void {
  const { left, top, width } = timeline.layers.area;
  pen.fillStyle = timeline.accent;
  for (const row of timeline.rowsInView()) {
    const { hits, unit } = timeline.sources[row.source];
    if (!hits) continue;
    const y = top + timeline.topOf(row);
    const scale = width / (timeline.time.span / unit);
    const from = timeline.time.start / unit;
    for (let track = row.devices[0] * 4; track < row.devices[1] * 4; track++) {
      const [, bottom] = band(row, track & 3);
      const past = firstStartingAt(hits, track, timeline.time.end / unit);
      let done = -1;
      for (let e = firstEndingAfter(hits, track, from); e < past; e++) {
        const x0 = Math.max(0, (hits.start[e] - from) * scale);
        const x1 = Math.min(width, Math.max(x0 + 2, (hits.end[e] - from) * scale));
        if (x1 <= done) continue;
        pen.fillRect(left + Math.max(done, x0), y + bottom - 1, x1 - Math.max(done, x0), 2);
        done = x1;
      }
    }
  }
}

function drawArea(timeline: TimelineView, pen: Pen): void {
  const area = timeline.page ? timeline.pending ?? timeline.state.area : null;
  if (!area) return;
  const { left, top, width } = timeline.layers.area;
  const [t0, t1, first, last] = area;
  const rows = timeline.layout.rows.filter(({ devices, isPinned }) => !isPinned && devices[1] > first && devices[0] <= last);
  if (!rows.length) return;
  const toX = (ns: number) => left + ((ns - timeline.time.start) / timeline.time.span) * width;
  const y0 = top + Math.max(timeline.layout.pinned, timeline.topOf(rows[0]));
  const y1 = Math.max(y0, top + timeline.topOf(rows[rows.length - 1]) + rows[0].height);
  pen.fillStyle = timeline.accent;
  pen.globalAlpha = 0.12;
  pen.fillRect(toX(t0), y0, toX(t1) - toX(t0), y1 - y0);
  pen.globalAlpha = 1;
  pen.strokeStyle = timeline.accent;
  pen.strokeRect(Math.round(toX(t0)) + 0.5, y0 + 0.5, Math.max(1, toX(t1) - toX(t0)), y1 - y0 - 1);
}

function drawScroll(timeline: TimelineView, pen: Pen): void {
  if (timeline.scroll.isWhole) return;
  const { left, top, width, height } = timeline.layers.area;
  const { start, span, full } = timeline.scroll;
  const { pinned } = timeline.layout;
  pen.fillStyle = timeline.muted;
  pen.globalAlpha = 0.6;
  pen.fillRect(left + width - 5, top + pinned + (start / full) * (height - pinned), 4, Math.max(12, (span / full) * (height - pinned)));
  pen.globalAlpha = 1;
}

/** The lines of the tooltip of an event, or of a row of devices. */
export function describe(timeline: TimelineView, { row, trace, event: e, isNodes, time = 0 }: Place): string[] {
  if (!row) return [];
  if (trace && e !== undefined) return describeEvent(trace, e);
  const opens = timeline.open.has(row.node) ? "closes" : "opens";
  const [first, past] = timeline.nodeStarts.slice(row.node, row.node + 2);
  const lines = [`Node ${row.node}: devices ${first} to ${past - 1}`];
  if (trace && !isNodes) lines.push(...describeNode(timeline, row, trace, time));
  if (timeline.page) lines.push(`A click ${opens} the node.`);
  return lines;
}

/** The work of a node's devices within the pixel at a time. */
function describeNode(timeline: TimelineView, row: Row, trace: Trace, time: number): string[] {
  const half = timeline.time.span / timeline.layers.area.width / 2;
  const [from, to] = [(time - half) / trace.unit, (time + half) / trace.unit];
  const sums = aggregate(trace.shown, trace.header.kinds.length, from, to, row.devices[0], row.devices[1] - 1);
  const whole = (to - from) * (row.devices[1] - row.devices[0]);
  const shares = sums.map(({ time: spent }, kind) => ({ kind: trace.header.kind_names[kind], share: spent / whole })).filter(({ share }) => share > 0.0005);
  return [`${WORDS[trace.header.source]}, at ${format.duration(time)}`,
    ...shares.map(({ kind, share }) => `${kind} ${format.digits(100 * share)} %`)];
}

function describeEvent(trace: Trace, e: number): string[] {
  const { start, end, division, peer, bytes, name, backward, device, lane, kind: kinds } = trace.columns;
  const text = trace.header.names[name[e]];
  const kind = trace.header.kind_names[kinds[e]];
  const lines = [lane[e] === LANES.send || lane[e] === LANES.receive ? `${kind}: ${text}` : text];
  const other = ({ [LANES.send]: " to device ", [LANES.receive]: " from device " } as Record<number, string>)[lane[e]];
  lines.push(`device ${device[e]}${peer[e] >= 0 && other ? other + peer[e] : ""}`);
  lines.push(`${backward[e] ? "backward" : "forward"}${division[e] >= 0 ? `, division ${division[e]}` : ""}`);
  lines.push(`${format.duration((end[e] - start[e]) * trace.unit)}, from ${format.duration(start[e] * trace.unit)}`);
  if (bytes[e] > 0) lines.push(format.size(bytes[e]));
  return lines;
}

/** The unit of an axis: one for all its labels, so that they can be compared at a glance. */
function axisUnit(end: number, step: number): format.Unit {
  const units: format.Unit[] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];
  return units.find(([, f]) => end >= f && step >= f / 1000) ?? ["ns", 1];
}

function axisLabel(ns: number, step: number, [unit, factor]: format.Unit): string {
  const decimals = Math.max(0, -Math.floor(Math.log10(step / factor) + 1e-9));
  return `${(ns / factor).toFixed(decimals)} ${unit}`;
}
