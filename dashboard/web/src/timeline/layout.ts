// Which rows a timeline has, where they are and how high: one per device, or one per node where devices would be too
// thin to see; with predicted and measured together each has two, one under the other.

import { AxisRange } from "../kit/axis.ts";
import { LANES } from "./events.ts";

/** A row: devices [first, past) of a node in the trace `source`; y and height in CSS pixels. */
export interface Row { source: number; node: number; devices: [first: number, past: number]; isNode: boolean; isPinned: boolean; y: number; height: number }

/** `pinned` is the height of the rows that stay at the top; the others scroll below them. */
export interface Rows { readonly rows: readonly Row[]; readonly height: number; readonly total: number; readonly pinned: number }

/** Nodes by their first device, the number of devices behind the last. */
type NodeStarts = readonly number[];

/** Top and bottom of each lane as shares of a row; what is left between rows is a gap. */
export const BANDS: readonly (readonly [top: number, bottom: number])[] = [
  [0.04, 0.56], // compute
  [0.58, 0.76], // send
  [0.78, 0.96], // receive
  [0.2, 0.4], // wait
];
/** Lanes in the order in which they are drawn: waits lie over computing. */
export const DRAWN = [LANES.compute, LANES.wait, LANES.send, LANES.receive];
/** CSS pixels; below that a row says nothing. */
export const THIN = 6;
const HIGH = 56;

/** "all", "none" or "0,3" -> the nodes whose devices have rows; without a text all, unless that makes them thin. */
export function openNodes(text: string | undefined, { nodeStarts, sources, room }: { nodeStarts: NodeStarts; sources: number; room: number }): Set<number> {
  const nodes = nodeStarts.length - 1;
  const devices = nodeStarts[nodes];
  if (text === "none") return new Set();
  if (text && text !== "all") return new Set(text.split(",").map(Number).filter((n) => n >= 0 && n < nodes));
  const all = new Set(Array.from({ length: nodes }, (_, node) => node));
  return text === "all" || devices * sources * THIN <= room || nodes === 1 ? all : new Set();
}

/** The other way round. */
export function openText(open: ReadonlySet<number>, nodes: number): string {
  if (open.size === nodes) return "all";
  return open.size ? [...open].sort((a, b) => a - b).join(",") : "none";
}

/** Rows from top to bottom, `least` CSS pixels high or more. Pinned devices come first, and again in their node. */
export function layoutRows(
  { nodeStarts, sources, room, least, open, pins = [] }: {
    nodeStarts: NodeStarts; sources: number; room: number; least: number; open: ReadonlySet<number>; pins?: Iterable<number>;
  },
): Rows {
  const rows: Row[] = [];
  const add = (node: number, devices: [number, number], isNode: boolean, isPinned = false): void => {
    for (let source = 0; source < sources; source++) rows.push({ source, node, devices, isNode, isPinned, y: 0, height: 0 });
  };
  for (const device of pins) add(nodeOf(nodeStarts, device), [device, device + 1], false, true);
  const pinned = rows.length;
  for (let node = 0; node + 1 < nodeStarts.length; node++) {
    const [first, past] = nodeStarts.slice(node, node + 2);
    if (!open.has(node)) add(node, [first, past], true);
    else for (let device = first; device < past; device++) add(node, [device, device + 1], false);
  }
  const height = Math.max(least, Math.min(HIGH, Math.floor(room / Math.max(1, rows.length))));
  rows.forEach((row, i) => { row.y = i * height; row.height = height; });
  return { rows, height, total: height * rows.length, pinned: height * pinned };
}

/** The rows in sight: they move, they never grow. */
export class Scroll extends AxisRange {
  step = 0; // CSS pixels that it moves by; 0: any

  override zoom(): void {}

  override place(start: number, span: number): void { super.place(this.step ? Math.round(start / this.step) * this.step : start, span); }

  override reset(): void { this.place(0, this.smallest); }
}

/** The node of a device: the last one that starts at it or before. */
export const nodeOf = (nodeStarts: NodeStarts, device: number): number => nodeStarts.findLastIndex((start) => start <= device);

/** Top and bottom of a lane of a row, in CSS pixels from the row's top. */
export const band = (row: Row, lane: number): number[] => BANDS[lane].map((share) => share * row.height);

/** Lanes under a share of a row's height, the one to prefer last. */
export function lanesAt(share: number): number[] {
  if (share < 0.57) return [LANES.compute, LANES.wait];
  return [share < 0.77 ? LANES.send : LANES.receive];
}
