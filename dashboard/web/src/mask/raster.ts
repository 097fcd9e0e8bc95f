// What the mask draws, apart from the page: which tile every pixel shows, and which tiles a selection means.
import type { Column } from "../api.ts";
import type { Selection } from "../state.ts";
import { kindOf, type MaskColumns } from "./columns.ts";

/** Tiles by block row: those of row r are order[first[r]] to order[first[r + 1]]. */
export interface RowIndex { readonly first: Uint32Array; readonly order: Uint32Array }

/** First and one-past-last pixel of every block on an axis. */
export type Spans = readonly [first: Int32Array, past: Int32Array];

export type TileTest = (tile: number) => boolean;

/** The pixels of every block on an axis of some size; empty (first >= past) outside the range. */
export function spans(start: Column, end: Column, range: { start: number; end: number; span: number }, size: number): Spans {
  const first = new Int32Array(start.length);
  const past = new Int32Array(start.length);
  const scale = size / range.span;
  for (let block = 0; block < start.length; block++) {
    if (end[block] <= range.start || start[block] >= range.end) continue;
    first[block] = Math.max(0, Math.round((start[block] - range.start) * scale));
    past[block] = Math.min(size, Math.round((end[block] - range.start) * scale));
    if (first[block] >= past[block]) {
      first[block] = Math.min(first[block], size - 1);
      past[block] = first[block] + 1;
    }
  }
  return [first, past];
}

/** Sorts tiles by block row. With `groups`, the column of head groups, only the tiles of the group `shown`. */
export function byRow(rows: Column, blocks: number, groups?: Column, shown = 0): RowIndex {
  const first = new Uint32Array(blocks + 1);
  for (let tile = 0; tile < rows.length; tile++) if (!groups || groups[tile] === shown) first[rows[tile] + 1]++;
  for (let block = 0; block < blocks; block++) first[block + 1] += first[block];
  const next = first.slice();
  const order = new Uint32Array(first[blocks]);
  for (let tile = 0; tile < rows.length; tile++) {
    if (!groups || groups[tile] === shown) order[next[rows[tile]]++] = tile;
  }
  return { first, order };
}

/**
 * Writes into `tiles` (width x height) the tile of every pixel, `none` where there is none. A tile smaller than a
 * pixel takes one, which its neighbours may share. A block row is rasterised once and copied to its other pixel rows.
 */
export function rasterise(
  tiles: Uint32Array, none: number,
  { cols, index, across: [x0, x1], down: [y0, y1], width }: { cols: Column; index: RowIndex; across: Spans; down: Spans; width: number },
): void {
  tiles.fill(none);
  const line = new Uint32Array(width);
  const { first, order } = index;
  for (let row = 0; row < y0.length; row++) {
    if (y0[row] >= y1[row] || first[row] === first[row + 1]) continue;
    const at = y0[row] * width;
    const target = y1[row] - y0[row] > 1 ? line.fill(none) : tiles.subarray(at, at + width);
    for (let i = first[row]; i < first[row + 1]; i++) {
      const tile = order[i];
      const right = x1[cols[tile]];
      for (let x = x0[cols[tile]]; x < right; x++) target[x] = tile;
    }
    if (target === line) for (let y = y0[row]; y < y1[row]; y++) tiles.set(line, y * width);
  }
}

/** A test whether a tile belongs to a selection and is of a kind, null if everything does. */
export function isShown(sel: Selection | undefined, kind: string | undefined, c: MaskColumns): TileTest | null {
  const isOf = belongs(sel, c);
  return kind ? (tile) => kindOf(c, tile) === kind && (!isOf || isOf(tile)) : isOf;
}

/** A test whether a tile belongs to a selection, null if everything does. */
export function belongs(sel: Selection | undefined, c: MaskColumns): TileTest | null {
  if (!sel) return null;
  const owner = c.block_owner;
  const { device, peer, block } = sel;
  const division = sel.backward ? c.tile_backward_division : c.tile_division;
  switch (sel.type) {
    case "tile": return (tile) => tile === sel.tile;
    case "device":
      if (peer === undefined) return (tile) => c.tile_device[tile] === device;
      // What one device sends another: the tiles of the other that need a block of the first.
      return (tile) => c.tile_device[tile] === peer
        && (owner[c.tile_q[tile]] === device || owner[c.tile_kv[tile]] === device);
    case "division":
      return (tile) => division[tile] === sel.division && (device === undefined || c.tile_device[tile] === device);
    case "sequence": return (tile) => c.block_sequence[c.tile_q[tile]] === sel.sequence;
    case "transfer": return usesBlock(sel, c);
    default:
      if (block !== undefined && peer !== undefined) return usesBlock(sel, c);
      return (tile) => c.tile_device[tile] === device
        && (sel.division === undefined || sel.division < 0 || division[tile] === sel.division);
  }
}

// Inputs (kinds 0 and 1: keys and values, queries) serve tiles of the target, results come from tiles of the source.
function usesBlock({ kind, device, peer, block }: Selection, c: MaskColumns): TileTest {
  const isQuery = kind === 1 || kind === 2 || kind === 3;
  const columns = kind === undefined ? [c.tile_q, c.tile_kv] : [isQuery ? c.tile_q : c.tile_kv];
  const devices = kind === undefined ? [device, peer] : [kind < 2 ? peer : device];
  return (tile) => devices.includes(c.tile_device[tile]) && columns.some((column) => column[tile] === block);
}
