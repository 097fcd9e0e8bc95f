// The mask with its placement: queries down, keys across, both in tokens of the packed batch.
//
// Data: "dcp.mask/1" (see dcp_dashboard/payloads.py). Zooming rasterises which tile each pixel shows;
// recolouring only looks up palette[column[tile]] per pixel. The strips at the left and at the bottom
// show who owns the tokens of that row or column.
"use strict";

window.dcp = window.dcp || {};

window.dcp.Mask = (() => {
  const view = window.dcp.canvas;
  const LEFT = 56;
  const STRIP = 8;
  const BOTTOM = 34;
  const GAP = 3;

  class Mask {
    constructor(host, payload, label) {
      this.host = host;
      this.header = payload.header;
      this.columns = payload.columns;
      this.across = new view.Range(this.header.num_tokens, 64);
      this.down = new view.Range(this.header.num_tokens, 64);
      this.layers = new view.Layers(host, `${label}: ${view.count(this.columns.tile_q.length)} tiles of `
        + `${view.count(this.header.num_tokens)} tokens. The table of devices holds the sums.`);
      this.tooltip = new view.Tooltip(host);
      this.legend = document.createElement("div");
      this.legend.className = "dcp-legend";
      host.after(this.legend);
      view.control(this.layers.marks, this);
      this.setMode(host.dataset.mode);
      this.resize();
    }

    dispose() { this.legend.remove(); }

    setMode(name) {
      this.mode = this.header.modes.find((mode) => mode.id === name) || this.header.modes[0];
      this.legend.replaceChildren(...this.mode.legend.map(({ label, colours }) => {
        const item = document.createElement("span");
        item.className = "dcp-legend-item";
        for (const colour of colours) {
          const swatch = document.createElement("span");
          swatch.className = "dcp-swatch dcp-swatch-joined";
          swatch.style.backgroundColor = colour;
          item.append(swatch);
        }
        item.append(label);
        return item;
      }));
      if (this.tiles) this.recolour();
    }

    resize() {
      const width = Math.max(240, this.host.clientWidth);
      const side = Math.min(width - LEFT, 620);
      const area = { left: LEFT, top: 0, width: side, height: side };
      this.layers.resize(width, side + BOTTOM, area);
      this.tiles = new Int32Array(this.layers.buffer.length);
      this.redraw();
    }

    ranges() { return [this.across, this.down]; }

    fractions(event) {
      const box = this.layers.marks.getBoundingClientRect();
      const { left, top, width, height } = this.layers.area;
      const inside = (value) => Math.max(0, Math.min(1, value));
      return [inside((event.clientX - box.left - left) / width), inside((event.clientY - box.top - top) / height)];
    }

    redraw() {
      this.rasterise();
      this.recolour();
    }

    // Which tile each pixel shows, -1 for none. At least one pixel per tile, so nothing vanishes.
    rasterise() {
      const { tile_q: rows, tile_kv: cols, block_start: start, block_end: end } = this.columns;
      const { width, height } = this.layers.pixels;
      const [x0, x1] = spans(start, end, this.across, width);
      const [y0, y1] = spans(start, end, this.down, height);
      this.tiles.fill(-1);
      for (let tile = 0; tile < rows.length; tile++) {
        const left = x0[cols[tile]];
        const right = x1[cols[tile]];
        if (left >= right) continue;
        for (let y = y0[rows[tile]]; y < y1[rows[tile]]; y++) this.tiles.fill(tile, y * width + left, y * width + right);
      }
    }

    recolour() {
      const begun = performance.now();
      const { buffer } = this.layers;
      const background = view.pixel(view.themeColour("--canvas"));
      const palette = Uint32Array.from(this.mode.palette, view.pixel);
      const value = this.columns[this.mode.column];
      const { tiles } = this;
      for (let i = 0; i < tiles.length; i++) buffer[i] = tiles[i] < 0 ? background : palette[value[tiles[i]]];
      this.layers.put();
      this.drawMarks();
      this.host.dataset.frameMs = (performance.now() - begun).toFixed(2);
    }

    drawMarks() {
      const pen = this.layers.pen();
      const { left, width, height } = this.layers.area;
      const ink = view.themeColour("--muted");
      const line = view.themeColour("--line");
      this.drawOwners(pen);
      pen.fillStyle = ink;
      for (const border of this.header.cu_seqlens.slice(1, -1)) {
        const x = left + ((border - this.across.start) / this.across.span) * width;
        const y = ((border - this.down.start) / this.down.span) * height;
        pen.globalAlpha = 0.5;
        if (x > left && x < left + width) dashed(pen, x, 0, 0, height);
        if (y > 0 && y < height) dashed(pen, left, y, width, 0);
      }
      pen.globalAlpha = 1;
      pen.strokeStyle = line;
      pen.lineWidth = 1;
      pen.strokeRect(left - 0.5, 0.5, width, height - 1);
      this.drawAxes(pen, ink);
    }

    drawOwners(pen) {
      const { block_start: start, block_end: end, block_owner: owner } = this.columns;
      const { left, width, height } = this.layers.area;
      const colours = this.header.device_colours;
      const [x0, x1] = spans(start, end, this.across, width);
      const [y0, y1] = spans(start, end, this.down, height);
      for (let block = 0; block < owner.length; block++) {
        pen.fillStyle = colours[owner[block]];
        if (x0[block] < x1[block]) pen.fillRect(left + x0[block], height + GAP, x1[block] - x0[block], STRIP);
        if (y0[block] < y1[block]) pen.fillRect(left - GAP - STRIP, y0[block], STRIP, y1[block] - y0[block]);
      }
    }

    drawAxes(pen, ink) {
      const { left, width, height } = this.layers.area;
      pen.fillStyle = ink;
      pen.textAlign = "center";
      pen.textBaseline = "alphabetic";
      for (const token of view.ticks(this.across.start, this.across.end, width / 110).values) {
        const x = left + ((token - this.across.start) / this.across.span) * width;
        if (x + 20 < left + width) pen.fillText(tokens(token), Math.max(x, left + 4), height + BOTTOM - 8);
      }
      pen.textAlign = "right";
      pen.fillText("keys", left + width, height + BOTTOM - 8);
      pen.textBaseline = "middle";
      for (const token of view.ticks(this.down.start, this.down.end, height / 80).values) {
        const y = ((token - this.down.start) / this.down.span) * height;
        if (y < height - 24) pen.fillText(tokens(token), left - GAP - STRIP - 4, Math.max(y, 6));
      }
      pen.fillText("queries", left - GAP - STRIP - 4, height - 6);
    }

    boxOf(tile) {
      const { block_start: start, block_end: end, tile_q: rows, tile_kv: cols } = this.columns;
      const { left, width, height } = this.layers.area;
      const clip = (value) => Math.max(0, Math.min(1, value));
      const toX = (token) => left + clip((token - this.across.start) / this.across.span) * width;
      const toY = (token) => clip((token - this.down.start) / this.down.span) * height;
      const x = toX(start[cols[tile]]);
      const y = toY(start[rows[tile]]);
      return { x, y, width: toX(end[cols[tile]]) - x, height: toY(end[rows[tile]]) - y };
    }

    hover(event) {
      const [fx, fy] = this.fractions(event);
      const box = this.layers.marks.getBoundingClientRect();
      const x = event.clientX - box.left;
      const y = event.clientY - box.top;
      const { left, width, height } = this.layers.area;
      const isInside = x >= left && x < left + width && y >= 0 && y < height;
      const { width: columns, height: rows } = this.layers.pixels;
      const at = Math.min(rows - 1, Math.floor(fy * rows)) * columns + Math.min(columns - 1, Math.floor(fx * columns));
      const tile = isInside && this.tiles[at] >= 0 ? this.tiles[at] : undefined;
      if (tile === undefined) { this.leave(); return; }
      if (tile !== this.marked) this.layers.outline(this.boxOf(tile));
      this.marked = tile;
      this.tooltip.show(x, y, this.describe(tile), this.layers);
    }

    leave() {
      if (this.marked === undefined) return;
      this.marked = undefined;
      this.tooltip.hide();
      this.layers.outline(null);
    }

    describe(tile) {
      const c = this.columns;
      const [q, kv] = [c.tile_q[tile], c.tile_kv[tile]];
      const owned = (block) => `${view.count(c.block_start[block])} to ${view.count(c.block_end[block] - 1)}, `
        + `owned by device ${c.block_owner[block]}`;
      return [
        `Tile ${q} × ${kv} on device ${c.tile_device[tile]}`,
        `${view.count(c.tile_pairs[tile])} pairs, ${c.tile_kind[tile] === 2 ? "full" : "partial"}`,
        `division ${c.tile_division[tile]}, backward ${c.tile_backward_division[tile]}`,
        `queries ${owned(q)}`,
        `keys ${owned(kv)}`,
      ];
    }
  }

  // First and one-past-last pixel of every block on an axis; empty (first >= last) outside the range.
  function spans(start, end, range, size) {
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

  function tokens(count) {
    return count >= 10000 ? `${view.digits(count / 1000)}k` : view.count(count);
  }

  function dashed(pen, x, y, width, height) {
    const length = Math.max(width, height);
    for (let at = 0; at < length; at += 6) {
      pen.fillRect(Math.round(x + (width ? at : 0)), Math.round(y + (height ? at : 0)), width ? 3 : 1, height ? 3 : 1);
    }
  }

  return Mask;
})();
