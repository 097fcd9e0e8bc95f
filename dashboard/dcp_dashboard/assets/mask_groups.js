// Which group of heads a mask shows: the one that is asked for, or that of the tile or message that is selected.
//
// The tiles of a plan with head groups are there once per group, at the same place; `tile_group` of "dcp.mask/1" tells
// them apart. The state's `group` says which is shown; selecting a tile of another group shows its group, choosing
// another group moves the selection to the same tile there.
"use strict";

window.dcp = window.dcp || {};

window.dcp.maskGroups = (() => {
  // The group that the state asks for, the first one if it is none of this plan.
  function asked(mask) {
    const group = Number(window.dcp.state.get().group ?? 0);
    return mask.header.group_labels?.[group] === undefined ? 0 : group;
  }

  // The group of what is selected, undefined if it has none.
  function ofSelection(mask, sel) {
    const groups = mask.columns.tile_group;
    if (!groups || !sel) return undefined;
    if (sel.type === "tile") return groups[sel.tile];
    return mask.header.group_labels[sel.group] === undefined ? undefined : sel.group;
  }

  function tell(group) { window.dcp.state.set({ group: group ? String(group) : null }); }

  function follow(mask, changed) {
    const { sel } = window.dcp.state.get();
    const chosen = ofSelection(mask, sel);
    const group = changed.has("sel") ? chosen ?? asked(mask) : asked(mask);
    if (group !== mask.group) {
      mask.showGroup(group);
      mask.redraw();
    }
    if (group !== asked(mask)) tell(group);
    else if (sel?.type === "tile" && chosen !== undefined && chosen !== group) {
      const tile = twin(mask, sel.tile);
      window.dcp.state.set({ sel: tile === undefined ? null : mask.factsOf(tile) });
    }
  }

  // The tile of the shown group at the place of a tile of another group.
  function twin(mask, tile) {
    const { tile_q: rows, tile_kv: cols } = mask.columns;
    const { first, order } = mask.index;
    for (let i = first[rows[tile]]; i < first[rows[tile] + 1]; i++) if (cols[order[i]] === cols[tile]) return order[i];
    return undefined;
  }

  // ", heads 3-4" of a tile, nothing in a plan of one group.
  function words(mask, tile) {
    const groups = mask.columns.tile_group;
    return groups ? `, heads ${mask.header.group_labels[groups[tile]]}` : "";
  }

  return { asked, ofSelection, tell, follow, words };
})();
