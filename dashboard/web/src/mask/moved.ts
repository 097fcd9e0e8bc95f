// The tiles of two plans in one mask: coloured by what changed, described by both devices.
import type { Column } from "../api.ts";
import * as format from "../kit/format.ts";
import type { MaskColumns } from "./columns.ts";
import * as groups from "./groups.ts";
import { Mask } from "./mask.ts";

const CHANGES = ["stays on its device", "moved", "only in A", "only in B"];

type MovedColumns = MaskColumns & Readonly<Record<"tile_a" | "tile_b" | "tile_change" | "block_a" | "block_b", Column>>;

export class MovedMask extends Mask {
  protected override describe(tile: number): string[] {
    const c = this.columns as MovedColumns;
    const [q, kv] = [c.tile_q[tile], c.tile_kv[tile]];
    const device = (column: Column) => (column[tile] < this.header.num_devices ? `device ${column[tile]}` : "not there");
    const owner = (block: number) => (c.block_a[block] === c.block_b[block] ? `device ${c.block_a[block]}`
      : `device ${c.block_a[block]} in A, ${c.block_b[block]} in B`);
    return [
      `Tile ${q} × ${kv} ${CHANGES[c.tile_change[tile]]}${groups.words(this, tile)}`,
      `A: ${device(c.tile_a)}, B: ${device(c.tile_b)}`,
      `${format.count(c.tile_pairs[tile])} pairs`,
      `queries owned by ${owner(q)}`,
      `keys owned by ${owner(kv)}`,
    ];
  }
}
