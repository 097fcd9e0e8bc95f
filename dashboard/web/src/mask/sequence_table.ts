// The sequences of the batch as a table: row of the data set, tokens, share of the pairs, devices. A click selects one.
import * as format from "../kit/format.ts";
import { type Head, VirtualTable } from "../kit/table.ts";
import { state } from "../state.ts";
import type { MaskColumns, MaskHeader, MaskPayload } from "./columns.ts";

/** What a plan does with one sequence; pairs of all groups of heads. */
export interface SequenceRow {
  readonly sequence: number;
  readonly name: string;
  readonly tokens: number;
  readonly pairs: number;
  readonly devices: number; // that compute some of its tiles
}

export function sequenceRows({ cu_seqlens: borders, sequence_names: names }: MaskHeader, c: MaskColumns): SequenceRow[] {
  const rows = borders.slice(1).map((end, sequence) => ({
    sequence, name: names.at(sequence) ?? "", tokens: end - borders[sequence], pairs: 0, devices: new Set<number>() }));
  for (let tile = 0; tile < c.tile_q.length; tile++) {
    const row = rows[c.block_sequence[c.tile_q[tile]]];
    row.pairs += c.tile_pairs[tile];
    row.devices.add(c.tile_device[tile]);
  }
  return rows.map((row) => ({ ...row, devices: row.devices.size }));
}

const HEADS: readonly (Head & { name: keyof SequenceRow })[] = [
  { name: "sequence", text: "Seq", isNumber: true }, { name: "name", text: "Row" },
  { name: "tokens", text: "Tokens", isNumber: true }, { name: "pairs", text: "Work", isNumber: true }, { name: "devices", text: "Devices", isNumber: true },
];

/** Rows in an order, "-" in front: falling; names with numbers in them as people count. */
export function sorted(rows: readonly SequenceRow[], order: string): SequenceRow[] {
  const key = HEADS.find(({ name }) => name === order.replace("-", ""))?.name ?? "sequence";
  const sign = order.startsWith("-") ? -1 : 1;
  return rows.toSorted((one, other) => {
    const [a, b] = [one[key], other[key]];
    const by = typeof a === "number" ? a - Number(b) : a.localeCompare(String(b), "en", { numeric: true });
    return sign * by || one.sequence - other.sequence;
  });
}

export class SequenceTable {
  readonly dispose: () => void;
  private readonly host: HTMLElement;
  private readonly rows: readonly SequenceRow[];
  private table: VirtualTable | undefined;
  private order = "sequence";

  constructor(host: HTMLElement, { header, columns }: MaskPayload) {
    this.host = host;
    this.rows = sequenceRows(header, columns);
    this.draw();
    this.dispose = state.follow((_, changed) => { if (changed.has("sel")) this.table?.fill(); });
  }

  resize(): void { this.table?.fill(); }

  private cells({ sequence, name, tokens, pairs, devices }: SequenceRow): string[] {
    const whole = this.rows.reduce((sum, row) => sum + row.pairs, 0);
    return [String(sequence), name, format.count(tokens), `${format.digits((100 * pairs) / Math.max(1, whole))}\u00a0%`, format.count(devices)];
  }

  private draw(): void {
    const rows = sorted(this.rows, this.order);
    this.table = new VirtualTable({
      label: "Sequences", heads: HEADS, order: this.order, size: rows.length,
      cells: (n) => this.cells(rows[n]),
      chosen: () => { const { sel } = state.get(); return sel?.type === "sequence" ? rows.findIndex(({ sequence }) => sequence === sel.sequence) : -1; },
      choose: (n) => state.set({ sel: { type: "sequence", sequence: rows[n].sequence } }),
      sort: (next) => { this.order = next ?? "sequence"; this.draw(); },
    });
    this.host.replaceChildren(this.table.box);
    this.table.fill();
  }
}
