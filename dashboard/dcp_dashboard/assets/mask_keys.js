// The keyboard of the mask: the selected tile moves to the next one in a direction, Enter zooms to it.
"use strict";

window.dcp = window.dcp || {};

window.dcp.maskKeys = (() => {
  const MOVES = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

  function handle(mask, key) {
    const sel = window.dcp.state.get().sel;
    const tile = sel?.type === "tile" && sel.tile < mask.count && mask.isShown(sel.tile) ? sel.tile : undefined;
    if (key === "Enter") {
      if (tile === undefined) select(mask, middle(mask));
      else zoom(mask, tile);
      return true;
    }
    if (!MOVES[key] || tile === undefined) return false;
    const next = neighbour(mask, tile, MOVES[key]);
    if (next !== undefined) {
      select(mask, next);
      reveal(mask, next);
    }
    return true;
  }

  function select(mask, tile) {
    if (tile !== undefined) window.dcp.state.set({ sel: mask.factsOf(tile) });
  }

  // The shown tile that is nearest to the middle of the window.
  function middle(mask) {
    const { tiles, layers: { pixels: { width, height } } } = mask;
    let best;
    let least = Infinity;
    for (let y = 0; y < height; y += 4) {
      for (let x = 0; x < width; x += 4) {
        const distance = (x - width / 2) ** 2 + (y - height / 2) ** 2;
        if (distance < least && tiles[y * width + x] < mask.count) {
          least = distance;
          best = tiles[y * width + x];
        }
      }
    }
    return best;
  }

  // In its row the next tile to a side; else the nearest key block of the next row that has a tile.
  function neighbour(mask, tile, [down, right]) {
    const { tile_q: rows, tile_kv: cols } = mask.columns;
    const { first, order } = mask.index;
    const col = cols[tile];
    const nearest = (row, fits, from) => {
      let best;
      for (let i = first[row]; i < first[row + 1]; i++) {
        const other = order[i];
        if (fits(cols[other]) && (best === undefined || Math.abs(cols[other] - from) < Math.abs(cols[best] - from))) {
          best = other;
        }
      }
      return best;
    };
    if (right) return nearest(rows[tile], (other) => (other - col) * right > 0, col);
    for (let row = rows[tile] + down; row >= 0 && row < first.length - 1; row += down) {
      if (first[row] < first[row + 1]) return nearest(row, () => true, col);
    }
    return undefined;
  }

  function tokensOf(mask, tile) {
    const { block_start: start, block_end: end, tile_q: rows, tile_kv: cols } = mask.columns;
    return [[start[cols[tile]], end[cols[tile]]], [start[rows[tile]], end[rows[tile]]]];
  }

  // The tile with a margin, both axes alike.
  function zoom(mask, tile) {
    const spans = tokensOf(mask, tile);
    const side = Math.max(...spans.map(([from, to]) => to - from)) * 1.2;
    mask.ranges().forEach((range, axis) => {
      const centre = (spans[axis][0] + spans[axis][1]) / 2;
      range.place(centre - side / 2, Math.min(range.full, Math.max(range.smallest, side)));
    });
    mask.redraw();
    mask.moved();
  }

  // Pans so that a tile outside of the window comes in.
  function reveal(mask, tile) {
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

  return Object.assign(handle, { zoom });
})();
