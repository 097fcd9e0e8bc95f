// The tiles that belong to the selection as a table, all of them without one; full and partial ones can be told apart.
import { loadColumns } from "../api.ts";
import { make } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { type Head, VirtualTable } from "../kit/table.ts";
import { state } from "../state.ts";
import { kindOf, type MaskColumns, type MaskPayload, tileFacts } from "./columns.ts";
import { belongs } from "./raster.ts";

/** A column: what sorts it, and what stands there if that is not the number itself. */
interface TileHead extends Head {
  value(c: MaskColumns, tile: number): number;
  words?(c: MaskColumns, tile: number): string;
}

const HEADS: readonly TileHead[] = [
  { name: "tile", text: "Tile", value: (_, tile) => tile, words: (c, tile) => `${c.tile_q[tile]} × ${c.tile_kv[tile]}` },
  { name: "sequence", text: "Seq", isNumber: true, value: (c, tile) => c.block_sequence[c.tile_q[tile]] },
  { name: "device", text: "Device", isNumber: true, value: (c, tile) => c.tile_device[tile] },
  { name: "division", text: "Division", isNumber: true, value: (c, tile) => c.tile_division[tile] },
  { name: "backward", text: "Backward", isNumber: true, value: (c, tile) => c.tile_backward_division[tile] },
  { name: "kind", text: "Kind", value: (c, tile) => c.tile_kind[tile], words: (c, tile) => kindOf(c, tile) },
  { name: "pairs", text: "Pairs", isNumber: true, value: (c, tile) => c.tile_pairs[tile], words: (c, tile) => format.count(c.tile_pairs[tile]) },
];

/** Nothing is fetched before somebody wants to see it. */
export async function loadWhenOpen(host: HTMLElement, signal: AbortSignal): Promise<MaskPayload> {
  const details = host.closest("details");
  if (details && !details.open) {
    await new Promise((done) => { details.addEventListener("toggle", done, { once: true }); });
  }
  return loadColumns(host.dataset.url ?? "", signal);
}

export class TileTable {
  readonly dispose: () => void;
  private readonly host: HTMLElement;
  private readonly columns: MaskColumns;
  private readonly heads: readonly TileHead[];
  private table: VirtualTable | undefined;
  private order = "-pairs";

  constructor(host: HTMLElement, { header, columns }: MaskPayload) {
    this.host = host;
    this.columns = columns;
    const { group_labels: labels } = header;
    const { tile_group: group } = columns;
    this.heads = labels && group ? [...HEADS,
      { name: "heads", text: "Heads", value: (_, tile) => group[tile], words: (_, tile) => labels[group[tile]] }] : HEADS;
    this.draw();
    this.dispose = state.follow(({ sel }, changed) => {
      if (!changed.has("sel") && !changed.has("tiles")) return;
      if (sel?.type === "tile" && !changed.has("tiles")) this.resize(); // the list stays where it is
      else this.draw();
    });
  }

  resize(): void { this.table?.fill(); }

  private draw(): void {
    const { sel, tiles: kind } = state.get();
    const c = this.columns;
    const isOf = sel?.type === "tile" ? null : belongs(sel, c);
    let found = Uint32Array.from(c.tile_q, (_, tile) => tile);
    if (isOf) found = found.filter(isOf);
    const counts = { all: found.length, full: 0, partial: 0 };
    for (const tile of found) counts[kindOf(c, tile)] += 1;
    if (kind) found = found.filter((tile) => kindOf(c, tile) === kind);
    const { value } = this.heads.find(({ name }) => name === this.order.replace("-", "")) ?? HEADS[0];
    const sign = this.order.startsWith("-") ? -1 : 1;
    found.sort((one, other) => sign * (value(c, one) - value(c, other)) || one - other);
    this.table = new VirtualTable({
      label: "Tiles", order: this.order, size: found.length, cells: (n) => this.cells(found[n]),
      heads: this.heads,
      chosen: () => { const now = state.get().sel; return now?.type === "tile" && now.tile !== undefined ? found.indexOf(now.tile) : -1; },
      choose: (n) => state.set({ sel: tileFacts(c, found[n]) }),
      sort: (next) => { this.order = next ?? "tile"; this.draw(); },
    });
    const note = found.length ? ` ${isOf ? "of the selection" : "in total"}` : "No tile belongs to the selection.";
    this.host.replaceChildren(make("div", { className: "dcp-tools" }, choice(counts, kind ?? "all"), make("span", { className: "dcp-muted" }, note)), this.table.box);
    this.table.fill();
  }

  private cells(tile: number): string[] {
    return this.heads.map(({ value, words }) => words?.(this.columns, tile) ?? String(value(this.columns, tile)));
  }
}

/** How many tiles of the selection are full and partial; a click shows only those, in the mask too. */
function choice(counts: Readonly<Record<string, number>>, chosen: string): HTMLElement {
  return make("div", { className: "dcp-choice", role: "radiogroup", "aria-label": "Kind of tiles" },
    ...Object.entries(counts).map(([kind, number]) => make("button", {
      type: "button", role: "radio", "aria-checked": String(kind === chosen),
      onclick: () => state.set({ tiles: kind === "all" ? null : kind }),
    }, `${format.count(number)} ${kind === "all" ? "tiles" : kind}`)));
}
