// The tiles that belong to the selection as a table, largest first, a hundred at a time; without a selection all.
"use strict";

window.dcp = window.dcp || {};

window.dcp.TileTable = (() => {
  const view = window.dcp.canvas;
  const PAGE = 100;
  const HEADS = ["Tile", "Device", "Division", "Backward", "Kind", "Pairs"];
  const NUMBERS = ["Device", "Division", "Backward", "Pairs"];

  class TileTable {
    // Nothing is fetched before somebody wants to see it.
    static async load(host, signal) {
      const details = host.closest("details");
      if (details && !details.open) {
        await new Promise((done) => { details.addEventListener("toggle", done, { once: true }); });
      }
      return window.dcp.columns.load(host.dataset.url, signal);
    }

    constructor(host, payload) {
      this.host = host;
      this.columns = payload.columns;
      this.count = this.columns.tile_q.length;
      this.labels = payload.header.group_labels;
      this.shown = PAGE;
      this.draw();
      this.unfollow = window.dcp.state.follow((_, changed) => {
        if (!changed.has("sel")) return;
        if (window.dcp.state.get().sel?.type === "tile") { this.mark(); return; } // the list stays where it is
        this.shown = PAGE;
        this.draw();
      });
    }

    dispose() { this.unfollow(); }

    resize() {}

    recolour() {}

    draw() {
      const { sel } = window.dcp.state.get();
      const belongs = sel?.type === "tile" ? null : window.dcp.maskRaster.belongs(sel, this.columns);
      const { tile_pairs: pairs } = this.columns;
      let found = Uint32Array.from({ length: this.count }, (_, tile) => tile);
      if (belongs) found = found.filter(belongs);
      found.sort((one, other) => pairs[other] - pairs[one] || one - other);
      const table = document.createElement("table");
      table.className = "dcp-table";
      const head = table.createTHead().insertRow();
      for (const text of this.labels ? [...HEADS, "Heads"] : HEADS) {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.textContent = text;
        if (NUMBERS.includes(text)) cell.className = "dcp-number";
        head.append(cell);
      }
      const body = table.createTBody();
      for (const tile of found.subarray(0, this.shown)) body.append(this.row(tile));
      const note = document.createElement("p");
      note.className = "dcp-hint";
      note.textContent = found.length
        ? `${view.count(Math.min(this.shown, found.length))} of ${view.count(found.length)} tiles${belongs ? " of the selection" : ""}`
        : "No tile belongs to the selection.";
      this.host.replaceChildren(note, table);
      if (found.length > this.shown) this.host.append(this.more());
      this.mark();
    }

    row(tile) {
      const c = this.columns;
      const row = document.createElement("tr");
      row.dataset.tile = tile;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "dcp-link";
      button.textContent = `${c.tile_q[tile]} × ${c.tile_kv[tile]}`;
      button.dataset.sel = `tile.${tile}~device.${c.tile_device[tile]}~division.${c.tile_division[tile]}`
        + `~q.${c.tile_q[tile]}~kv.${c.tile_kv[tile]}`;
      row.insertCell().append(button);
      const values = [
        c.tile_device[tile], c.tile_division[tile], c.tile_backward_division[tile],
        c.tile_kind[tile] === 2 ? "full" : "partial", view.count(c.tile_pairs[tile]),
        ...(this.labels ? [this.labels[c.tile_group[tile]]] : []),
      ];
      values.forEach((value, at) => {
        const cell = row.insertCell();
        cell.textContent = value;
        if (NUMBERS.includes(HEADS[at + 1])) cell.className = "dcp-number";
      });
      return row;
    }

    more() {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "dcp-quiet";
      button.textContent = "Show more";
      button.addEventListener("click", () => { this.shown += 5 * PAGE; this.draw(); });
      return button;
    }

    mark() {
      const { sel } = window.dcp.state.get();
      for (const row of this.host.querySelectorAll("tr[aria-selected]")) row.removeAttribute("aria-selected");
      if (sel?.type === "tile") this.host.querySelector(`tr[data-tile="${sel.tile}"]`)?.setAttribute("aria-selected", "true");
    }
  }

  return TileTable;
})();
window.dcp.views = { ...window.dcp.views, "dcp-tile-table": "TileTable" };
