// The events as a table, instead of the canvas: filtered like it, sorted by any column. The events are in the browser
// already, so no request is made.
import type { Column } from "../api.ts";
import { make, part } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { type Head, VirtualTable } from "../kit/table.ts";
import { pinned } from "../page/selection.ts";
import { type Key, state } from "../state.ts";
import { type EventTable as Events, idOf } from "./events.ts";
import { eventOf } from "./selection.ts";
import { type TimelineView, type Trace, WORDS } from "./view.ts";

/** A column: what sorts it (nothing: no order), and what stands there. */
interface EventHead extends Head {
  value?(events: Events, row: number): number;
  words(trace: Trace, e: number, write: Units): string;
}

/** How bytes and ns are written, in one unit a column. */
type Units = Readonly<Record<"bytes" | "start" | "duration", (value: number) => string>>;

function unitsOf(traces: readonly Trace[]): Units {
  const most = { bytes: 0, start: 0, duration: 0 };
  for (const { columns: { bytes, start, end }, unit } of traces) {
    for (let e = 0; e < start.length; e++) {
      most.bytes = Math.max(most.bytes, bytes[e]);
      most.start = Math.max(most.start, start[e] * unit);
      most.duration = Math.max(most.duration, (end[e] - start[e]) * unit);
    }
  }
  return { bytes: format.sizesLike(most.bytes), start: format.durationsLike(most.start), duration: format.durationsLike(most.duration) };
}

const column = (name: "device" | "kind" | "name" | "division" | "peer" | "bytes") => ({ columns }: Events, e: number): number => columns[name][e];
const known = (value: number): string => (value >= 0 ? String(value) : "");

const HEADS: readonly EventHead[] = [
  { name: "source", text: "Trace", isPlain: true, words: ({ header }) => WORDS[header.source] },
  { name: "device", text: "Device", isNumber: true, value: column("device"), words: ({ columns }, e) => String(columns.device[e]) },
  { name: "kind", text: "Kind", value: column("kind"), words: ({ columns, header }, e) => header.kind_names[columns.kind[e]] },
  { name: "name", text: "Name", value: column("name"), words: ({ columns, header }, e) => header.names[columns.name[e]] },
  { name: "direction", text: "Direction", isPlain: true, words: ({ columns }, e) => (columns.backward[e] ? "backward" : "forward") },
  { name: "division", text: "Division", isNumber: true, value: column("division"), words: ({ columns }, e) => known(columns.division[e]) },
  { name: "peer", text: "Peer", isNumber: true, value: column("peer"), words: ({ columns }, e) => known(columns.peer[e]) },
  { name: "bytes", text: "Bytes", isNumber: true, value: column("bytes"), words: ({ columns }, e, write) => (columns.bytes[e] ? write.bytes(columns.bytes[e]) : "") },
  { name: "start_ns", text: "Start", isNumber: true, value: ({ columns }, e) => columns.start[e],
    words: ({ columns, unit }, e, write) => write.start(columns.start[e] * unit) },
  { name: "duration_ns", text: "Duration", isNumber: true, value: ({ columns }, e) => columns.end[e] - columns.start[e],
    words: ({ columns, unit }, e, write) => write.duration((columns.end[e] - columns.start[e]) * unit) },
];

const headOf = (order = ""): EventHead | undefined => HEADS.find(({ name, value }) => value && name === order.replace("-", ""));

/** True if a text names a column to sort by, "-" in front: falling. */
export const isOrder = (text: string | undefined): boolean => headOf(text) !== undefined;

/** Rows of the payload that a table shows, in an order, "-" in front: falling. Stable, as numpy's stable sort. */
export function orderOf(events: Events, order: string | undefined): Uint32Array {
  const ids = Uint32Array.from({ length: events.start.length }, (_, i) => idOf(events, i));
  const value = headOf(order)?.value;
  if (!value) return ids;
  const values = Float64Array.from(ids, (e) => value(events, e));
  const sign = order?.startsWith("-") ? -1 : 1;
  const places = Uint32Array.from(ids, (_, i) => i).sort((a, b) => sign * (values[a] - values[b]) || a - b);
  return places.map((place) => ids[place]);
}

/** The same rows, those of pinned devices before the others. */
export function pinnedFirst(ids: Uint32Array, device: Column, pins: ReadonlySet<number>): Uint32Array {
  if (!pins.size) return ids;
  const first = ids.filter((id) => pins.has(device[id]));
  const all = new Uint32Array(ids.length);
  all.set(first);
  all.set(ids.filter((id) => !pins.has(device[id])), first.length);
  return all;
}

export class EventTable {
  readonly dispose: () => void;
  private readonly timeline: TimelineView;
  private readonly slot: HTMLElement;
  private table: VirtualTable | undefined;
  private readonly units: Units;
  private parts: readonly { trace: Trace; ids: Uint32Array }[] = [];

  constructor(page: HTMLElement, timeline: TimelineView) {
    this.timeline = timeline;
    this.slot = part(page, ".dcp-event-table");
    this.units = unitsOf(timeline.traces);
    this.dispose = state.follow((_, changed) => this.follow(changed));
    if (state.get().view === "table") this.show();
  }

  private follow(changed: ReadonlySet<Key>): void {
    const keys = ["kinds", "longer", "find", "order", "source", "pins"] as const;
    if (changed.has("view")) this.show();
    if (this.slot.hidden) return;
    if (keys.some((key) => changed.has(key))) this.build();
    else if (changed.has("sel")) this.table?.fill();
  }

  private show(): void {
    const isTable = state.get().view === "table";
    this.slot.hidden = !isTable;
    this.timeline.host.hidden = isTable;
    if (isTable) this.build();
    else this.timeline.resize();
  }

  private build(): void {
    const { order, pins } = state.get();
    const first = pinned(pins, this.timeline.devices);
    this.parts = this.timeline.sources.map((trace) => ({
      trace, ids: pinnedFirst(orderOf(trace.hits ?? trace.shown, order), trace.columns.device, first),
    }));
    const size = this.parts.reduce((sum, { ids }) => sum + ids.length, 0);
    this.table = new VirtualTable({
      label: "Events", heads: HEADS, order, size, cells: (n) => this.cells(n), chosen: () => this.chosen(),
      choose: (n) => { const { trace, e } = this.rowAt(n); this.timeline.select(trace, e); },
      sort: (next) => state.set({ order: next }),
    });
    const told = size ? `${format.count(size)} events` : "No event matches the filters.";
    this.slot.replaceChildren(make("p", { className: "dcp-muted dcp-event-count" }, told), this.table.box);
    this.table.fill();
  }

  private rowAt(number: number): { trace: Trace; e: number } {
    let rest = number;
    for (const { trace, ids } of this.parts) {
      if (rest < ids.length) return { trace, e: ids[rest] };
      rest -= ids.length;
    }
    throw new RangeError(`expected a row of the table, got ${number}`);
  }

  private cells(number: number): string[] {
    const { trace, e } = this.rowAt(number);
    return HEADS.map(({ words }) => words(trace, e, this.units));
  }

  private chosen(): number {
    const { sel } = state.get();
    let before = 0;
    for (const { trace, ids } of this.parts) {
      const e = eventOf(sel, trace);
      const at = e === undefined ? -1 : ids.indexOf(e);
      if (at >= 0) return before + at;
      before += ids.length;
    }
    return -1;
  }
}
