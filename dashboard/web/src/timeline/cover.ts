// From events to pixels: how much of every pixel column each kind covers, then hue by the kind that covers most and
// lightness by the covered share. Exact at every zoom, one pass over the events in view; sampling one event per pixel
// would hide short sends.
import { blend, mix, pixel } from "../kit/colours.ts";
import { type EventTable, firstEndingAfter, firstStartingAt, LANES } from "./events.ts";

/** Tables from coverage to pixel, one per kind. */
export type Shades = readonly Uint32Array[];

export const STEPS = 64; // lightness steps between background and full colour
const PALEST = 0.22; // what is there at all must be visible
const LEAST = 0.02; // of a pixel, for events that last no time
const DIM = 0.3; // how much is left of what a selection does not mean
const SHADES = Uint8Array.from({ length: STEPS + 1 }, (_, i) => (
  Math.round((PALEST + (1 - PALEST) * (i / STEPS)) * (STEPS - 1))));

/** Only the compute lane mixes kinds (attention, reduction, copy: the first three); every other lane is one. */
export const channelsOf = (lane: number): number => (lane === LANES.compute ? 3 : 1);

/** Adds the share of every pixel column in [from, to) that the events of a track cover; false if none is in view. */
export function addTrack(table: EventTable, track: number, from: number, to: number, cover: Float64Array, width: number): boolean {
  const { start, end, kind } = table;
  const first = firstEndingAfter(table, track, from);
  const past = firstStartingAt(table, track, to);
  const channels = channelsOf(track & 3);
  const isMixed = channels > 1;
  const scale = width / (to - from);
  for (let e = first; e < past; e++) {
    let x0 = (start[e] - from) * scale;
    let x1 = (end[e] - from) * scale;
    if (x1 < 0) continue;
    if (x0 < 0) x0 = 0;
    if (x1 > width) x1 = width;
    const channel = isMixed ? kind[e] : 0;
    const p0 = x0 < width ? x0 | 0 : width - 1;
    const p1 = x1 < width ? x1 | 0 : width - 1;
    if (p0 === p1) {
      const share = x1 - x0;
      cover[p0 * channels + channel] += share > LEAST ? share : LEAST;
      continue;
    }
    cover[p0 * channels + channel] += p0 + 1 - x0;
    for (let p = p0 + 1; p < p1; p++) cover[p * channels + channel] += 1;
    cover[p1 * channels + channel] += x1 - p1;
  }
  return past > first;
}

/** Colours one row of pixels over what is there; `parts` is how many tracks the cover is the sum of. */
export function paintLine(line: Uint32Array, cover: Float64Array, width: number, lane: number, shadesByKind: Shades, parts: number): void {
  const scale = STEPS / parts;
  if (lane === LANES.compute) {
    for (let x = 0, at = 0; x < width; x++, at += 3) {
      const a = cover[at];
      const b = cover[at + 1];
      const c = cover[at + 2];
      const total = a + b + c;
      if (total === 0) continue;
      const most = a >= b ? (a >= c ? 0 : 2) : (b >= c ? 1 : 2);
      const step = (total * scale + 0.5) | 0;
      line[x] = shadesByKind[most][SHADES[step > STEPS ? STEPS : step]];
    }
    return;
  }
  const shades = shadesByKind[lane + 2]; // send, receive, wait follow the kinds of compute
  for (let x = 0; x < width; x++) {
    if (cover[x] === 0) continue;
    const step = (cover[x] * scale + 0.5) | 0;
    line[x] = shades[SHADES[step > STEPS ? STEPS : step]];
  }
}

/** The shades of kinds: bright ones, and dim ones for what a selection leaves out. */
export function shadeTables(colours: readonly string[], background: number): { bright: Shades; dim: Shades } {
  const full = colours.map(pixel);
  return {
    bright: full.map((colour) => blend(background, colour, STEPS)),
    dim: full.map((colour) => blend(background, mix(background, colour, DIM), STEPS)),
  };
}
