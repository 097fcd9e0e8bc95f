// The tiles of two plans in one mask: coloured by what changed, described by both devices.
//
// Data: "dcp.mask/1" with the columns of dcp_dashboard/api/mask.py.
"use strict";

window.dcp = window.dcp || {};

window.dcp.MovedMask = (() => {
  const { count } = window.dcp.canvas;
  const CHANGES = ["stays on its device", "moved", "only in A", "only in B"];

  return class MovedMask extends window.dcp.Mask {
    describe(tile) {
      const c = this.columns;
      const [q, kv] = [c.tile_q[tile], c.tile_kv[tile]];
      const device = (column) => (column[tile] < this.header.num_devices ? `device ${column[tile]}` : "not there");
      const owner = (block) => (c.block_a[block] === c.block_b[block] ? `device ${c.block_a[block]}`
        : `device ${c.block_a[block]} in A, ${c.block_b[block]} in B`);
      return [
        `Tile ${q} × ${kv} ${CHANGES[c.tile_change[tile]]}${window.dcp.maskGroups.words(this, tile)}`,
        `A: ${device(c.tile_a)}, B: ${device(c.tile_b)}`,
        `${count(c.tile_pairs[tile])} pairs`,
        `queries owned by ${owner(q)}`,
        `keys owned by ${owner(kv)}`,
      ];
    }
  };
})();

window.dcp.views = { ...window.dcp.views, "dcp-mask-moves": "MovedMask" };
