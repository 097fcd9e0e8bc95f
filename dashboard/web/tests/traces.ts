// Events as the server sends them, from as little as a test has to say.
import type { EventColumns } from "../src/timeline/events.ts";

export interface Spec {
  start: number; end: number; device?: number; lane?: number; kind?: number; backward?: number; division?: number;
  peer?: number; bytes?: number; name?: number; transfer?: number; block?: number;
}

const NONE = { device: 0, lane: 0, kind: 0, backward: 0, division: -1, peer: -1, bytes: 0, name: 0, transfer: -1, block: -1 };

/** Columns of events, sorted by (device, lane, start) as the server does. */
export function traceOf(events: readonly Spec[]): EventColumns {
  const rows = events.map((event) => ({ ...NONE, ...event }))
    .sort((a, b) => a.device - b.device || a.lane - b.lane || a.start - b.start);
  const names = ["start", "end", ...Object.keys(NONE)] as (keyof EventColumns)[];
  return Object.fromEntries(names.map((name) => [name, Float64Array.from(rows, (row) => row[name])])) as EventColumns;
}
