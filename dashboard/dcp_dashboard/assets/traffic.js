// Who sends whom how much: a cell per ordered pair of devices, or of nodes; rows send, columns receive.
//
// Data: "dcp.devices/1" (see dcp_dashboard/api/devices.py).
"use strict";

window.dcp = window.dcp || {};

window.dcp.Traffic = (() => {
  const view = window.dcp.canvas;
  const LEFT = 44;
  const TOP = 22;
  const RIGHT = 78;
  const STEPS = 64;
  const PALEST = 6; // a cell that sends at all can be seen

  class Traffic {
    constructor(host, payload, label) {
      this.host = host;
      this.header = payload.header;
      this.columns = payload.columns;
      this.matrices = new Map();
      this.layers = new view.Layers(host, `${label}: bytes that ${this.header.num_devices} devices send each other. Arrows `
        + "move over the pairs; the panel of the selection holds the numbers.");
      this.tooltip = new view.Tooltip(host);
      const target = this.layers.marks;
      target.addEventListener("pointermove", (event) => this.hover(event));
      target.addEventListener("pointerleave", () => this.leave());
      target.addEventListener("click", (event) => this.click(event));
      target.addEventListener("keydown", (event) => this.key(event));
      this.resize();
      this.unfollow = window.dcp.state.follow((_, changed) => {
        if (changed.has("traffic")) this.recolour();
        else if (changed.has("sel")) this.drawMarks();
      });
    }

    dispose() { this.unfollow(); }

    get isByNode() { return window.dcp.state.get().traffic === "node"; }

    // Bytes from row to column, summed over devices or nodes; {size, bytes, most}.
    get matrix() {
      const name = this.isByNode ? "node" : "device";
      if (!this.matrices.has(name)) {
        // The row of each device: its node's, or its own.
        const starts = this.header.node_starts;
        const row = Array.from({ length: this.header.num_devices },
          (_, device) => (this.isByNode ? window.dcp.rows.nodeOf(starts, device) : device));
        const size = this.isByNode ? starts.length - 1 : row.length;
        const bytes = new Float64Array(size * size);
        const { source, target, bytes: moved } = this.columns;
        for (let i = 0; i < moved.length; i++) bytes[row[source[i]] * size + row[target[i]]] += moved[i];
        let most = 0;
        for (const value of bytes) if (value > most) most = value;
        this.matrices.set(name, { size, bytes, most, row });
      }
      return this.matrices.get(name);
    }

    resize() {
      const width = Math.max(240, this.host.clientWidth);
      const side = Math.max(120, Math.min(width - LEFT - RIGHT, 420));
      this.layers.resize(width, side + TOP + 6, { left: LEFT, top: TOP, width: side, height: side });
      this.recolour();
    }

    recolour() {
      const { size, bytes, most } = this.matrix;
      const background = view.pixel(view.themeColour("--canvas"));
      const gap = view.pixel(view.themeColour("--panel"));
      const shades = view.blend(background, view.pixel(view.themeColour("--send")), STEPS);
      const { buffer, pixels: { width, height }, ratio } = this.layers;
      const hasGaps = width / size >= 5 * ratio;
      for (let y = 0; y < height; y++) {
        const row = Math.floor((y * size) / height);
        const isEdge = hasGaps && Math.floor(((y + ratio) * size) / height) !== row;
        for (let x = 0; x < width; x++) {
          const column = Math.floor((x * size) / width);
          const value = bytes[row * size + column];
          const shade = value ? PALEST + Math.round((value / most) * (STEPS - 1 - PALEST)) : 0;
          const isGap = isEdge || (hasGaps && Math.floor(((x + ratio) * size) / width) !== column);
          buffer[y * width + x] = isGap ? gap : shades[shade];
        }
      }
      this.layers.put();
      this.drawMarks();
    }

    drawMarks() {
      const pen = this.layers.pen();
      const { left, top, width } = this.layers.area;
      const { size, most } = this.matrix;
      const cell = width / size;
      const ink = view.themeColour("--muted");
      pen.fillStyle = ink;
      const every = step(size, width);
      pen.textAlign = "center";
      for (let i = 0; i < size; i += every) pen.fillText(String(i), left + (i + 0.5) * cell, top - 6);
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      for (let i = 0; i < size; i += every) pen.fillText(String(i), left - 6, top + (i + 0.5) * cell);
      pen.save();
      pen.translate(9, top + width / 2);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "center";
      pen.fillText(this.isByNode ? "from node" : "from device", 0, 0);
      pen.restore();
      pen.fillStyle = ink;
      pen.globalAlpha = 0.5;
      for (const i of this.isByNode ? [] : this.header.node_starts.slice(1, -1)) {
        pen.fillRect(Math.round(left + i * cell) - 1, top, 1, width);
        pen.fillRect(left, Math.round(top + i * cell) - 1, width, 1);
      }
      pen.globalAlpha = 1;
      this.drawScale(pen, ink, most);
      this.drawChosen(pen, cell);
    }

    drawScale(pen, ink, most) {
      const { left, top, width } = this.layers.area;
      const x = left + width + 14;
      const shades = pen.createLinearGradient(0, top + width, 0, top);
      shades.addColorStop(0, view.themeColour("--canvas"));
      shades.addColorStop(1, view.themeColour("--send"));
      pen.fillStyle = shades;
      pen.fillRect(x, top, 8, width);
      pen.fillStyle = ink;
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      for (const share of [0, 0.5, 1]) {
        const y = top + (1 - share) * width + [-5, 0, 5][share * 2];
        pen.fillText(most ? view.size(most * share) : share ? "" : "0 B", x + 14, y);
      }
    }

    // A frame around the row and the column of a device, or around the cell of a pair.
    drawChosen(pen, cell) {
      const sel = window.dcp.state.get().sel;
      if (sel?.device === undefined) return;
      const { left, top, width } = this.layers.area;
      const rows = this.matrix.row;
      const [row, column] = [sel.device, sel.peer].map((device) => (device === undefined ? undefined : rows[device]));
      pen.strokeStyle = view.themeColour("--ink");
      pen.lineWidth = 1.5;
      if (column === undefined) {
        pen.strokeRect(left - 1, top + row * cell - 1, width + 1, cell + 1);
        pen.strokeRect(left + row * cell - 1, top - 1, cell + 1, width + 1);
      } else {
        pen.strokeRect(left + column * cell - 1, top + row * cell - 1, cell + 1, cell + 1);
        pen.globalAlpha = 0.35;
        pen.fillStyle = view.themeColour("--ink");
        pen.fillRect(left, top + (row + 0.5) * cell, column * cell - 2, 1);
        pen.fillRect(left + (column + 0.5) * cell, top, 1, row * cell - 2);
        pen.globalAlpha = 1;
      }
    }

    cellAt(event) {
      const box = this.layers.marks.getBoundingClientRect();
      const { left, top, width } = this.layers.area;
      const { size } = this.matrix;
      const column = Math.floor(((event.clientX - box.left - left) / width) * size);
      const row = Math.floor(((event.clientY - box.top - top) / width) * size);
      return row >= 0 && row < size && column >= 0 && column < size ? [row, column] : null;
    }

    hover(event) {
      const at = this.cellAt(event);
      if (!at) { this.leave(); return; }
      const [row, column] = at;
      const { left, top, width } = this.layers.area;
      const { size, bytes } = this.matrix;
      const cell = width / size;
      const moved = bytes[row * size + column];
      const name = this.isByNode ? "node" : "device";
      const box = this.layers.marks.getBoundingClientRect();
      this.layers.outline({ x: left + column * cell, y: top + row * cell, width: cell, height: cell });
      this.tooltip.show(event.clientX - box.left, event.clientY - box.top, [
        row === column && !this.isByNode ? `${name} ${row}` : `${name} ${row} sends ${name} ${column}`,
        moved ? view.size(moved) : "nothing",
      ], this.layers);
    }

    leave() {
      this.tooltip.hide();
      this.layers.outline(null);
    }

    choose([row, column]) {
      if (this.isByNode) return; // a node is no selection
      const sel = row === column ? { type: "device", device: row } : { type: "device", device: row, peer: column };
      window.dcp.state.set({ sel });
    }

    click(event) {
      const at = this.cellAt(event);
      if (at) this.choose(at);
    }

    key(event) {
      const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const sel = window.dcp.state.get().sel;
      const { size } = this.matrix;
      const now = sel?.device === undefined ? [0, -1] : [sel.device, sel.peer ?? sel.device];
      this.choose(now.map((value, axis) => Math.max(0, Math.min(size - 1, value + move[axis]))));
    }
  }

  // Labels every so many cells, so that none touch.
  function step(size, width) {
    let every = 1;
    while ((width / size) * every < 22) every *= 2;
    return every;
  }

  return Traffic;
})();
window.dcp.views = { ...window.dcp.views, "dcp-traffic-cells": "Traffic" };
