// The keyboard of the mask: the selected tile moves to the next one in a direction, Enter zooms to it.
import { state } from "../state.ts";
import { tileFacts } from "./columns.ts";
import type { MaskView } from "./view.ts";

const MOVES: Readonly<Record<string, readonly [down: number, right: number]>> = {
  ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0],
};

/** Does what a key asks for; true if it was one of these. */
export function handleKey(mask: MaskView, key: string): boolean {
  const { sel } = state.get();
  const tile = sel?.type === "tile" && sel.tile !== undefined && sel.tile < mask.count && mask.isShown(sel.tile) ? sel.tile : undefined;
  if (key === "Enter") {
    if (tile === undefined) select(mask, middle(mask));
    else zoomToTile(mask, tile);
    return true;
  }
  const move = MOVES[key];
  if (!move || tile === undefined) return false;
  const next = neighbour(mask, tile, move);
  if (next !== undefined) {
    select(mask, next);
    reveal(mask, next);
  }
  return true;
}

function select(mask: MaskView, tile: number | undefined): void {
  if (tile !== undefined) state.set({ sel: tileFacts(mask.columns, tile) });
}

/** The shown tile that is nearest to the middle of the window. */
function middle({ tiles, count, layers: { pixels: { width, height } } }: MaskView): number | undefined {
  let best;
  let least = Infinity;
  for (let y = 0; y < height; y += 4) {
    for (let x = 0; x < width; x += 4) {
      const distance = (x - width / 2) ** 2 + (y - height / 2) ** 2;
      if (distance < least && tiles[y * width + x] < count) {
        least = distance;
        best = tiles[y * width + x];
      }
    }
  }
  return best;
}

/** In its row the next tile to a side; else the nearest key block of the next row that has a tile. */
function neighbour(mask: MaskView, tile: number, [down, right]: readonly [number, number]): number | undefined {
  const { tile_q: rows, tile_kv: cols } = mask.columns;
  const { first, order } = mask.index;
  const col = cols[tile];
  const nearest = (row: number, fits: (other: number) => boolean): number | undefined => {
    let best: number | undefined;
    for (const other of order.subarray(first[row], first[row + 1])) {
      if (fits(cols[other]) && (best === undefined || Math.abs(cols[other] - col) < Math.abs(cols[best] - col))) best = other;
    }
    return best;
  };
  if (right) return nearest(rows[tile], (other) => (other - col) * right > 0);
  for (let row = rows[tile] + down; row >= 0 && row < first.length - 1; row += down) {
    if (first[row] < first[row + 1]) return nearest(row, () => true);
  }
  return undefined;
}

/** First and past token of a tile, across and down. */
function tokensOf({ columns: { block_start: start, block_end: end, tile_q: rows, tile_kv: cols } }: MaskView, tile: number): [number, number][] {
  return [cols[tile], rows[tile]].map((block) => [start[block], end[block]]);
}

/** The tile with a margin, both axes alike. */
export function zoomToTile(mask: MaskView, tile: number): void {
  const spans = tokensOf(mask, tile);
  const side = Math.max(...spans.map(([from, to]) => to - from)) * 1.2;
  mask.ranges().forEach((range, axis) => {
    const centre = (spans[axis][0] + spans[axis][1]) / 2;
    range.place(centre - side / 2, Math.min(range.full, Math.max(range.smallest, side)));
  });
  mask.redraw();
  mask.moved();
}

/** Pans so that a tile outside of the window comes in. */
function reveal(mask: MaskView, tile: number): void {
  let isMoved = false;
  mask.ranges().forEach((range, axis) => {
    const [from, to] = tokensOf(mask, tile)[axis];
    if (from >= range.start && to <= range.end) return;
    range.place((from + to - range.span) / 2, range.span);
    isMoved = true;
  });
  if (!isMoved) return;
  mask.redraw();
  mask.moved();
}
