// The tiles that belong to the selection as a table, all of them without one; full and partial ones can be told apart.
"use strict";

window.dcp = window.dcp || {};

window.dcp.TileTable = (() => {
  const view = window.dcp.canvas;
  const { make } = view;
  const KINDS = { all: null, full: 2, partial: 1 };
  // Name, heading, column of "dcp.mask/1".
  const HEADS = [["tile", "Tile", null], ["sequence", "Seq", null], ["device", "Device", "tile_device"], ["division", "Division", "tile_division"],
    ["backward", "Backward", "tile_backward_division"], ["kind", "Kind", "tile_kind"], ["pairs", "Pairs", "tile_pairs"]];

  class TileTable {
    // Nothing is fetched before somebody wants to see it.
    static async load(host, signal) {
      const details = host.closest("details");
      if (details && !details.open) {
        await new Promise((done) => { details.addEventListener("toggle", done, { once: true }); });
      }
      return window.dcp.columns.load(host.dataset.url, signal);
    }

    constructor(host, { header, columns }) {
      this.host = host;
      this.columns = columns;
      this.labels = header.group_labels;
      [this.order, this.kind] = ["-pairs", "all"];
      this.draw();
      this.unfollow = window.dcp.state.follow((_, changed) => {
        if (!changed.has("sel")) return;
        if (window.dcp.state.get().sel?.type === "tile") this.table.fill(); // the list stays where it is
        else this.draw();
      });
    }

    dispose() { this.unfollow(); }

    resize() { this.table.fill(); }

    recolour() {}

    valueOf(name) {
      const c = this.columns;
      if (name === "tile") return (tile) => tile;
      if (name === "sequence") return (tile) => c.block_sequence[c.tile_q[tile]];
      const column = c[name === "heads" ? "tile_group" : HEADS.find(([known]) => known === name)[2]];
      return (tile) => column[tile];
    }

    draw() {
      const { sel } = window.dcp.state.get();
      const c = this.columns;
      const belongs = sel?.type === "tile" ? null : window.dcp.maskRaster.belongs(sel, c);
      let found = Uint32Array.from(c.tile_q, (_, tile) => tile);
      if (belongs) found = found.filter(belongs);
      const counts = { all: found.length, full: 0, partial: 0 };
      for (const tile of found) counts[c.tile_kind[tile] === KINDS.full ? "full" : "partial"] += 1;
      if (KINDS[this.kind]) found = found.filter((tile) => c.tile_kind[tile] === KINDS[this.kind]);
      const value = this.valueOf((this.order || "tile").replace("-", ""));
      const sign = this.order?.startsWith("-") ? -1 : 1;
      this.tiles = found.sort((one, other) => sign * (value(one) - value(other)) || one - other);
      const heads = this.labels ? [...HEADS, ["heads", "Heads"]] : HEADS;
      this.table = new window.dcp.VirtualTable({
        label: "Tiles", order: this.order, size: found.length, cells: (n) => this.cells(found[n]),
        heads: heads.map(([name, text]) => [name, text, { isNumber: !["tile", "kind", "heads"].includes(name) }]),
        chosen: () => { const now = window.dcp.state.get().sel; return now?.type === "tile" ? found.indexOf(now.tile) : -1; },
        choose: (n) => this.choose(found[n]),
        sort: (next) => { this.order = next; this.draw(); },
      });
      const note = found.length ? ` ${belongs ? "of the selection" : "in all"}` : "No tile belongs to this.";
      this.host.replaceChildren(make("div", { className: "dcp-tools" }, this.choice(counts), make("span", { className: "dcp-muted" }, note)), this.table.box);
      this.table.fill();
    }

    // How many tiles are full and partial; a click shows only those.
    choice(counts) {
      return make("div", { className: "dcp-choice", role: "radiogroup", "aria-label": "Kind of tiles" },
        ...Object.entries(counts).map(([kind, number]) => make("button", {
          type: "button", role: "radio", "aria-checked": String(kind === this.kind),
          onclick: () => { this.kind = kind; this.draw(); },
        }, `${view.count(number)} ${kind === "all" ? "tiles" : kind}`)));
    }

    cells(tile) {
      const c = this.columns;
      return [`${c.tile_q[tile]} × ${c.tile_kv[tile]}`, String(c.block_sequence[c.tile_q[tile]]), String(c.tile_device[tile]),
        String(c.tile_division[tile]), String(c.tile_backward_division[tile]), c.tile_kind[tile] === KINDS.full ? "full" : "partial",
        view.count(c.tile_pairs[tile]), ...(this.labels ? [this.labels[c.tile_group[tile]]] : [])];
    }

    choose(tile) {
      const c = this.columns;
      window.dcp.state.set({ sel: { type: "tile", tile, device: c.tile_device[tile], division: c.tile_division[tile], q: c.tile_q[tile], kv: c.tile_kv[tile] } });
    }
  }

  return TileTable;
})();
window.dcp.views = { ...window.dcp.views, "dcp-tile-table": "TileTable" };
