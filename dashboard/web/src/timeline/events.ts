// Events of one trace as the timeline wants them: tracks, parts of them, which one lies under a point, what a
// search means, sums over an area. Pure functions over the columns of "dcp.timeline/1"; nothing here draws.
import type { Column, Payload } from "../api.ts";
import type { Source } from "../state.ts";

export interface TimelineHeader {
  readonly source: Source;
  readonly num_devices: number;
  readonly node_starts: readonly number[]; // the first device of each node, then the number of devices
  readonly unit_ns: number;
  readonly longest_ns: number;
  readonly kinds: readonly string[];
  readonly kind_names: readonly string[]; // as people read them
  readonly colours: readonly string[];
  readonly names: readonly string[];
  readonly sequence_blocks: readonly number[];
}

type Name = "start" | "end" | "device" | "lane" | "kind" | "backward" | "division" | "peer" | "bytes" | "name" | "transfer" | "block";
export type EventColumns = Readonly<Record<Name, Column>>;
export type TimelinePayload = Payload<TimelineHeader, Name>;

/**
 * Events sorted by (track, start), track = 4 * device + lane: those of a track are rows from[track] to from[track + 1].
 * `ids` are their rows in the payload (null: the same), `reach` the largest end of the track so far, which rises and
 * can be searched.
 */
export interface EventTable {
  readonly columns: EventColumns;
  readonly start: Column;
  readonly end: Column;
  readonly kind: Column;
  readonly ids: Uint32Array | null;
  readonly from: Uint32Array;
  readonly reach: Column;
}

export type EventTest = (event: number) => boolean;
export interface Phase { name: string; start: number; end: number }
export interface Sum { time: number; count: number; bytes: number; perDevice: Float64Array }

export const LANES = { compute: 0, send: 1, receive: 2, wait: 3 } as const;

/** All events of a payload. */
export function wholeTable(columns: EventColumns, devices: number): EventTable {
  const { device, lane, start, end, kind } = columns;
  const from = new Uint32Array(devices * 4 + 1);
  for (let e = 0; e < start.length; e++) from[device[e] * 4 + lane[e] + 1]++;
  for (let track = 0; track < devices * 4; track++) from[track + 1] += from[track];
  return withReach({ columns, start, end, kind, ids: null, from });
}

/** The events of a table for which keep(row of the payload) holds, as a table of its own. */
export function subset(table: EventTable, keep: EventTest): EventTable {
  const { from } = table;
  const ids = new Uint32Array(table.start.length);
  const starts = new Uint32Array(from.length);
  let size = 0;
  for (let track = 0; track + 1 < from.length; track++) {
    for (let e = from[track]; e < from[track + 1]; e++) {
      const id = table.ids ? table.ids[e] : e;
      if (keep(id)) ids[size++] = id;
    }
    starts[track + 1] = size;
  }
  return ofRows(table.columns, ids.slice(0, size), starts);
}

function ofRows(columns: EventColumns, ids: Uint32Array, from: Uint32Array): EventTable {
  const pick = (column: Column): Column => {
    const found = column.slice(0, ids.length);
    for (let i = 0; i < ids.length; i++) found[i] = column[ids[i]];
    return found;
  };
  return withReach({ columns, start: pick(columns.start), end: pick(columns.end), kind: pick(columns.kind), ids, from });
}

function withReach(table: Omit<EventTable, "reach">): EventTable {
  const { end, from } = table;
  let reach = end; // shared as long as no event ends before an earlier one
  for (let track = 0; track + 1 < from.length; track++) {
    for (let e = from[track] + 1; e < from[track + 1]; e++) {
      if (end[e] >= reach[e - 1]) { if (reach !== end) reach[e] = end[e]; continue; }
      if (reach === end) reach = end.slice();
      reach[e] = reach[e - 1];
    }
  }
  return { ...table, reach };
}

/** The first of some rows, whose values rise, that has at least a value; `past` if none has. */
export function firstFrom(values: Column, first: number, past: number, least: number): number {
  let [low, high] = [first, past];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** First row of a track whose reach is at least `time`; rows before it lie wholly to the left. */
export const firstEndingAfter = ({ reach, from }: EventTable, track: number, time: number): number => firstFrom(reach, from[track], from[track + 1], time);

/** First row of a track that starts at `time` or later. */
export const firstStartingAt = ({ start, from }: EventTable, track: number, time: number): number => firstFrom(start, from[track], from[track + 1], time);

/** The row in the payload of a row of a table. */
export const idOf = (table: EventTable, row: number): number => (table.ids ? table.ids[row] : row);

/** The event of some tracks at a time: one that covers it, started last; else the nearest within `slack`. */
export function eventAt(table: EventTable, tracks: readonly number[], time: number, slack: number): number | undefined {
  let best: number | undefined;
  let nearest = slack;
  for (const track of tracks) {
    const last = firstStartingAt(table, track, time + slack);
    for (let e = firstEndingAfter(table, track, time - slack); e < last; e++) {
      const distance = Math.max(table.start[e] - time, time - table.end[e], 0);
      if (distance <= nearest) { nearest = distance; best = idOf(table, e); }
    }
  }
  return best;
}

/** First start and last end of each direction that has events. */
export function phases({ start, end, backward }: EventColumns): Phase[] {
  const found = ["forward", "backward"].map((name) => ({ name, start: Infinity, end: 0 }));
  for (let e = 0; e < start.length; e++) {
    const phase = found[backward[e]];
    if (start[e] < phase.start) phase.start = start[e];
    if (end[e] > phase.end) phase.end = end[e];
  }
  return found.filter((phase) => phase.end > phase.start);
}

/** The other end of a message: the n-th send of a transfer belongs to its n-th receive. */
export function partnerOf(columns: EventColumns, table: EventTable, e: number): number | undefined {
  const { device, lane, peer, transfer } = columns;
  if (transfer[e] < 0) return undefined;
  const there = lane[e] === LANES.send ? LANES.receive : LANES.send;
  return ofTransfer(peer[e], there)[ofTransfer(device[e], lane[e]).indexOf(e)];

  function ofTransfer(at: number, way: number): number[] {
    const rows: number[] = [];
    for (let i = table.from[at * 4 + way]; i < table.from[at * 4 + way + 1]; i++) {
      if (transfer[i] === transfer[e]) rows.push(i);
    }
    return rows;
  }
}

type Wanted = Partial<Record<"device" | "division" | "peer" | "backward", number>> & { text: string };

/** "gpu 17 kv 12", "division 3 backward" -> what an event has to be; texts match where no digit goes on. */
export function parseSearch(text: string): Wanted {
  const wanted: Wanted = { text: "" };
  const words: [RegExp, "device" | "division" | "peer"][] = [[/\b(?:gpu|device|rank)\s*(\d+)\b/i, "device"], [/\bdivision\s*(\d+)\b/i, "division"],
    [/\b(?:peer|from|to)\s*(\d+)\b/i, "peer"]];
  let rest = text;
  for (const [pattern, key] of words) {
    const found = pattern.exec(rest);
    if (!found) continue;
    wanted[key] = Number(found[1]);
    rest = rest.replace(found[0], " ");
  }
  for (const [index, word] of ["forward", "backward"].entries()) {
    if (!new RegExp(`\\b${word}\\b`, "i").test(rest)) continue;
    wanted.backward = index;
    rest = rest.replace(new RegExp(`\\b${word}\\b`, "i"), " ");
  }
  wanted.text = rest.trim().replace(/\s+/g, " ").toLowerCase();
  return wanted;
}

/** A search as a test of rows, or null when it asks for nothing. */
export function searchTest(text: string, columns: EventColumns, names: readonly string[]): EventTest | null {
  const wanted = parseSearch(text);
  const keys = (["device", "division", "peer", "backward"] as const).filter((key) => wanted[key] !== undefined);
  if (!keys.length && !wanted.text) return null;
  const isNamed = names.map((name) => hasText(name.toLowerCase(), wanted.text));
  return (e) => isNamed[columns.name[e]] && keys.every((key) => columns[key][e] === wanted[key]);
}

/** True if a name has a text in it behind which no digit goes on: "kv 1" is not in "kv 12". */
export function hasText(name: string, text: string): boolean {
  for (let at = name.indexOf(text); at >= 0; at = name.indexOf(text, at + 1)) {
    const after = name.charCodeAt(at + text.length);
    if (!/\d$/.test(text) || !(after >= 48 && after <= 57)) return true;
  }
  return false;
}

/**
 * Sums over [t0, t1) and the devices first..last of a table: per kind the covered time per device, how many events
 * touch it and the bytes of their messages.
 */
export function aggregate(table: EventTable, kinds: number, t0: number, t1: number, first: number, last: number): Sum[] {
  const found = Array.from({ length: kinds }, () => ({ time: 0, count: 0, bytes: 0, perDevice: new Float64Array(last - first + 1) }));
  const { start, end, kind } = table;
  const { bytes } = table.columns;
  for (let device = first; device <= last; device++) {
    for (let track = device * 4; track < device * 4 + 4; track++) {
      const past = firstStartingAt(table, track, t1);
      for (let e = firstEndingAfter(table, track, t0); e < past; e++) {
        if (end[e] < t0 || (end[e] === t0 && start[e] < t0)) continue;
        const of = found[kind[e]];
        const covered = Math.min(end[e], t1) - Math.max(start[e], t0);
        of.time += covered;
        of.perDevice[device - first] += covered;
        of.count += 1;
        of.bytes += bytes[idOf(table, e)];
      }
    }
  }
  return found;
}
