// Which group of heads a mask shows: the one that is asked for, or that of the tile or message that is selected.
//
// The tiles of a plan with head groups are there once per group, at the same place; `tile_group` of "dcp.mask/1" tells
// them apart. The state's `group` says which is shown; selecting a tile of another group shows its group, choosing
// another group moves the selection to the same tile there.
import { type Key, type Selection, state } from "../state.ts";
import { tileFacts } from "./columns.ts";
import type { MaskView } from "./view.ts";

/** The group that the state asks for, the first one if it is none of this plan. */
export function asked({ header }: MaskView): number {
  const group = Number(state.get().group ?? 0);
  return header.group_labels?.[group] === undefined ? 0 : group;
}

/** The group of what is selected, undefined if it has none. */
export function ofSelection({ header, columns }: MaskView, sel: Selection | undefined): number | undefined {
  const groups = columns.tile_group;
  if (!groups || !sel) return undefined;
  if (sel.type === "tile") return groups[sel.tile ?? -1];
  return header.group_labels?.[sel.group ?? -1] === undefined ? undefined : sel.group;
}

export function tell(group: number): void { state.set({ group: group ? String(group) : null }); }

export function follow(mask: MaskView, changed: ReadonlySet<Key>): void {
  const { sel } = state.get();
  const chosen = ofSelection(mask, sel);
  const group = changed.has("sel") ? chosen ?? asked(mask) : asked(mask);
  if (group !== mask.group) {
    mask.showGroup(group);
    mask.redraw();
  }
  if (group !== asked(mask)) tell(group);
  else if (sel?.type === "tile" && sel.tile !== undefined && chosen !== undefined && chosen !== group) {
    const tile = twin(mask, sel.tile);
    state.set({ sel: tile === undefined ? null : tileFacts(mask.columns, tile) });
  }
}

/** The tile of the shown group at the place of a tile of another group. */
function twin({ columns: { tile_q: rows, tile_kv: cols }, index: { first, order } }: MaskView, tile: number): number | undefined {
  return order.subarray(first[rows[tile]], first[rows[tile] + 1]).find((other) => cols[other] === cols[tile]);
}

/** ", heads 3-4" of a tile, nothing in a plan of one group. */
export function words({ header, columns }: MaskView, tile: number): string {
  const groups = columns.tile_group;
  return groups ? `, heads ${header.group_labels?.[groups[tile]] ?? "?"}` : "";
}
