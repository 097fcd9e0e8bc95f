// The mask with its placement: queries down, keys across, both in tokens of the packed batch.
//
// Data: "dcp.mask/1" (see dcp_dashboard/api/mask.py). Zooming rasterises which tile each pixel shows;
// recolouring only looks up the colour of that tile. The strips at the left and at the bottom show who owns
// the tokens of that row or column. Zoomed in far enough, partial tiles show their pairs ("dcp.pairs/1").
"use strict";

window.dcp = window.dcp || {};

window.dcp.Mask = (() => {
  const view = window.dcp.canvas;
  const LEFT = 56;
  const STRIP = 8;
  const BOTTOM = 34;
  const GAP = 3;
  const FAINT = 0.14; // how much of its colour a tile keeps that is not selected
  const HOLLOW = 0.2; // and a pair that is not visible, inside of a tile

  class Mask {
    constructor(host, payload, label) {
      this.host = host;
      this.header = payload.header;
      this.columns = payload.columns;
      this.raster = window.dcp.maskRaster;
      this.count = this.columns.tile_q.length;
      this.across = new view.Range(this.header.num_tokens, 16);
      this.down = new view.Range(this.header.num_tokens, 16);
      const labels = this.header.group_labels;
      const groups = labels ? ` in each of ${labels.length} groups of heads` : "";
      this.layers = new view.Layers(host, `${label}: ${view.count(this.count / (labels?.length || 1))} tiles of `
        + `${view.count(this.header.num_tokens)} tokens${groups}. Enter selects a tile, arrows go to the next one; the `
        + "tables of tiles and devices hold the same.");
      this.tooltip = new view.Tooltip(host);
      this.legend = document.createElement("div");
      this.legend.className = "dcp-legend";
      host.after(this.legend);
      this.pairs = host.dataset.pairs ? new window.dcp.MaskPairs(host, () => this.recolour()) : null;
      view.control(this.layers.marks, this);
      this.isLinked = host.dataset.linked !== "no";
      const state = window.dcp.state.get();
      if (this.isLinked) this.showTokens(state.tokens);
      this.showGroup((this.isLinked && window.dcp.maskGroups.ofSelection(this, state.sel)) ?? window.dcp.maskGroups.asked(this));
      this.first = host.dataset.mode || this.header.modes[0].id;
      this.setMode((this.isLinked && state.colour) || this.first);
      this.resize();
      if (this.isLinked) this.unfollow = window.dcp.state.follow((now, changed) => this.follow(now, changed));
      if (this.isLinked) window.dcp.maskGroups.tell(this.group);
    }

    // Only the tiles of this group of heads are drawn, hit and walked over; a plan of one group has only group 0.
    showGroup(group) {
      this.group = group;
      this.host.dataset.group = group;
      this.index = this.raster.byRow(this.columns.tile_q, this.columns.block_start.length, this.columns.tile_group, group);
    }

    dispose() {
      this.legend.remove();
      this.pairs?.dispose();
      this.unfollow?.();
    }

    follow(state, changed) {
      if (changed.has("tokens") && this.windowText() !== String(state.tokens ?? "")) {
        this.showTokens(state.tokens);
        this.redraw();
      }
      if (this.columns.tile_group && (changed.has("group") || changed.has("sel"))) window.dcp.maskGroups.follow(this, changed);
      if (changed.has("colour")) this.setMode(state.colour || this.first);
      if (changed.has("sel")) this.recolour();
    }

    showTokens(tokens) {
      this.down.show(tokens && tokens.slice(0, 2));
      this.across.show(tokens && tokens.slice(2));
    }

    windowText() { return String(this.window() ?? ""); }

    // The shown tokens as the state keeps them, null for all.
    window() {
      if (this.across.isWhole && this.down.isWhole) return null;
      return [this.down.start, this.down.end, this.across.start, this.across.end].map(Math.round);
    }

    moved() { if (this.isLinked) window.dcp.state.set({ tokens: this.window() }); }

    setMode(name) {
      const mode = this.header.modes.find((known) => known.id === name) || this.header.modes[0];
      if (mode === this.mode) return;
      this.mode = mode;
      if (this.host.dataset.mode !== this.mode.id) this.host.dataset.mode = this.mode.id;
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
      const most = Number(this.host.dataset.side) || 620;
      const side = Math.min(width - LEFT, most);
      const area = { left: LEFT, top: 0, width: side, height: side };
      this.layers.resize(width, side + BOTTOM, area);
      this.tiles = new Uint32Array(this.layers.buffer.length);
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
      this.pairs?.want(this.across, this.down, this.header.num_tokens, this.layers.area.width);
      this.recolour();
    }

    rasterise() {
      const { block_start: start, block_end: end, tile_kv: cols } = this.columns;
      const { width, height } = this.layers.pixels;
      const across = this.raster.spans(start, end, this.across, width);
      const down = this.raster.spans(start, end, this.down, height);
      this.raster.rasterise(this.tiles, this.count, { cols, index: this.index, across, down, width });
    }

    recolour() {
      const begun = performance.now();
      const colours = this.colours();
      const { buffer } = this.layers;
      const { tiles } = this;
      for (let i = 0; i < tiles.length; i++) buffer[i] = colours[tiles[i]];
      this.pairs?.hollow(this.layers, tiles, (tile) => this.hollowColour(colours[tile]), this);
      this.layers.put();
      this.drawMarks();
      this.host.dataset.frameMs = (performance.now() - begun).toFixed(2);
    }

    // The pixel colour of every tile, the last entry for where there is none; what is not selected is faint.
    colours() {
      this.background = view.pixel(view.themeColour("--canvas"));
      const palette = Uint32Array.from(this.mode.palette, view.pixel);
      const value = this.columns[this.mode.column];
      const colours = new Uint32Array(this.count + 1);
      colours[this.count] = this.background;
      this.chosen = this.isLinked ? window.dcp.state.get().sel : undefined;
      const belongs = this.raster.belongs(this.chosen, this.columns);
      if (!belongs) {
        for (let tile = 0; tile < this.count; tile++) colours[tile] = palette[value[tile]];
        return colours;
      }
      const faint = palette.map((colour) => mix(this.background, colour, FAINT));
      for (let tile = 0; tile < this.count; tile++) colours[tile] = (belongs(tile) ? palette : faint)[value[tile]];
      return colours;
    }

    hollowColour(colour) { return mix(this.background, colour, HOLLOW); }

    drawMarks() {
      const pen = this.layers.pen();
      const { left, width, height } = this.layers.area;
      const ink = view.themeColour("--muted");
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
      pen.strokeStyle = view.themeColour("--line");
      pen.lineWidth = 1;
      pen.strokeRect(left - 0.5, 0.5, width, height - 1);
      this.drawAxes(pen, ink);
      if (this.chosen?.type === "tile" && this.chosen.tile < this.count && this.isShown(this.chosen.tile)) this.drawChosen(pen, this.boxOf(this.chosen.tile));
    }

    // A frame that can be seen around the smallest tile, and lines to both axes.
    drawChosen(pen, { x, y, width, height }) {
      const { left, width: right, height: bottom } = this.layers.area;
      pen.strokeStyle = view.themeColour("--ink");
      pen.lineWidth = 2;
      const [w, h] = [Math.max(5, width), Math.max(5, height)];
      pen.strokeRect(x + (width - w) / 2 - 1, y + (height - h) / 2 - 1, w + 2, h + 2);
      pen.fillStyle = view.themeColour("--ink");
      pen.globalAlpha = 0.35;
      pen.fillRect(left, y + height / 2, Math.max(0, x - left - 2), 1);
      pen.fillRect(x + width / 2, y + height + 3, 1, Math.max(0, bottom - y - height - 3));
      pen.fillRect(x + width + 3, y + height / 2, Math.max(0, left + right - x - width - 3), 1);
      pen.globalAlpha = 1;
    }

    drawOwners(pen) {
      const { block_start: start, block_end: end, block_owner: owner } = this.columns;
      const { left, width, height } = this.layers.area;
      const colours = this.header.device_colours;
      const [x0, x1] = this.raster.spans(start, end, this.across, width);
      const [y0, y1] = this.raster.spans(start, end, this.down, height);
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
      const across = view.ticks(this.across.start, this.across.end, width / 110);
      for (const token of across.values) {
        const x = left + ((token - this.across.start) / this.across.span) * width;
        if (x + 44 < left + width) pen.fillText(tokens(token, across.step), Math.max(x, left + 4), height + BOTTOM - 8);
      }
      pen.textAlign = "right";
      pen.fillText("keys", left + width, height + BOTTOM - 8);
      pen.textBaseline = "middle";
      const down = view.ticks(this.down.start, this.down.end, height / 80);
      for (const token of down.values) {
        const y = ((token - this.down.start) / this.down.span) * height;
        if (y < height - 24) pen.fillText(tokens(token, down.step), left - GAP - STRIP - 4, Math.max(y, 6));
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

    isShown(tile) { return !this.columns.tile_group || this.columns.tile_group[tile] === this.group; }

    // The tile under the pointer, or undefined.
    tileAt(event) {
      const [fx, fy] = this.fractions(event);
      const box = this.layers.marks.getBoundingClientRect();
      const x = event.clientX - box.left;
      const y = event.clientY - box.top;
      const { left, width, height } = this.layers.area;
      if (x < left || x >= left + width || y < 0 || y >= height) return undefined;
      const { width: columns, height: rows } = this.layers.pixels;
      const at = Math.min(rows - 1, Math.floor(fy * rows)) * columns + Math.min(columns - 1, Math.floor(fx * columns));
      return this.tiles[at] < this.count ? this.tiles[at] : undefined;
    }

    hover(event) {
      const tile = this.tileAt(event);
      if (tile === undefined) { this.leave(); return; }
      const box = this.layers.marks.getBoundingClientRect();
      if (tile !== this.marked) this.layers.outline(this.boxOf(tile));
      this.marked = tile;
      this.tooltip.show(event.clientX - box.left, event.clientY - box.top, this.describe(tile), this.layers);
    }

    leave() {
      if (this.marked === undefined) return;
      this.marked = undefined;
      this.tooltip.hide();
      this.layers.outline(null);
    }

    click(event) {
      if (!this.isLinked) return;
      const tile = this.tileAt(event);
      if (tile === undefined) window.dcp.state.set({ sel: null });
      else window.dcp.selection.toggle(this.factsOf(tile));
    }

    factsOf(tile) {
      const c = this.columns;
      return {
        type: "tile", tile, device: c.tile_device[tile], division: c.tile_division[tile], q: c.tile_q[tile],
        kv: c.tile_kv[tile],
      };
    }

    // Arrows move the selected tile, Enter zooms to it; without one Enter selects the middle one.
    key(event) { return this.isLinked && !event.shiftKey && window.dcp.maskKeys(this, event.key); }

    describe(tile) {
      const c = this.columns;
      const [q, kv] = [c.tile_q[tile], c.tile_kv[tile]];
      const owned = (block) => `${view.count(c.block_start[block])} to ${view.count(c.block_end[block] - 1)}, `
        + `owned by device ${c.block_owner[block]}`;
      return [
        `Tile ${q} × ${kv} on device ${c.tile_device[tile]}${window.dcp.maskGroups.words(this, tile)}`,
        `${view.count(c.tile_pairs[tile])} pairs, ${c.tile_kind[tile] === 2 ? "full" : "partial"}`,
        `division ${c.tile_division[tile]}, backward ${c.tile_backward_division[tile]}`,
        `queries ${owned(q)}`,
        `keys ${owned(kv)}`,
      ];
    }
  }

  // A pixel some way from one colour to another.
  function mix(from, to, share) {
    let mixed = 0xff000000;
    for (const shift of [0, 8, 16]) {
      const start = (from >>> shift) & 255;
      mixed |= Math.round(start + (((to >>> shift) & 255) - start) * share) << shift;
    }
    return mixed >>> 0;
  }

  // Thousands once the ticks are thousands apart; every label of an axis alike.
  function tokens(count, step) {
    return count >= 10000 && step >= 1000 ? `${view.digits(count / 1000)}k` : view.count(count);
  }

  function dashed(pen, x, y, width, height) {
    const length = Math.max(width, height);
    for (let at = 0; at < length; at += 6) {
      pen.fillRect(Math.round(x + (width ? at : 0)), Math.round(y + (height ? at : 0)), width ? 3 : 1, height ? 3 : 1);
    }
  }

  return Mask;
})();
