// The payload "dcp.mask/1" of dcp_dashboard/api/mask.py: tiles of a plan, or of two plans in one mask.
import type { Column, Payload } from "../api.ts";
import type { Selection } from "../state.ts";

export interface Mode {
  readonly id: string;
  readonly column: string;
  readonly palette: readonly string[];
  readonly legend: readonly { label: string; colours: readonly string[]; devices?: readonly number[] }[];
}

export interface MaskHeader {
  readonly num_tokens: number;
  readonly num_devices: number;
  readonly cu_seqlens: readonly number[];
  readonly sequence_names: readonly string[]; // their rows of the data set; none if not known
  readonly device_colours: readonly string[];
  readonly modes: readonly Mode[];
  readonly group_labels?: readonly string[]; // of a plan of several groups of heads
}

export type MaskColumns = Readonly<Record<
  "block_start" | "block_end" | "block_owner" | "block_sequence" | "tile_q" | "tile_kv" | "tile_kind" | "tile_pairs"
  | "tile_device" | "tile_division" | "tile_backward_division", Column>> & { readonly tile_group?: Column };

export type MaskPayload = Payload<MaskHeader> & { readonly columns: MaskColumns };

/** `tile_kind` of a tile all of whose pairs are visible. */
export const FULL = 2;

export function kindOf(c: MaskColumns, tile: number): "full" | "partial" { return c.tile_kind[tile] === FULL ? "full" : "partial"; }

/** The part of a tile that the state holds. */
export function tileFacts(c: MaskColumns, tile: number): Selection {
  return { type: "tile", tile, device: c.tile_device[tile], division: c.tile_division[tile], q: c.tile_q[tile], kv: c.tile_kv[tile] };
}
