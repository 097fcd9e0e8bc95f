// What a mask costs on a cluster, at once while one types: figures, and bars per device.
import { DeviceBars } from "../devices/bars.ts";
import type { DevicesPayload } from "../devices/columns.ts";
import { make, part } from "../kit/dom.ts";
import * as format from "../kit/format.ts";

/** The preview of a plan, or a plan that was made; `seconds` is the time that planning took. */
export type Figures = Readonly<
  Record<"mask" | "placed_by", string>
  & Record<"tokens" | "blocks" | "block" | "tiles" | "devices" | "devices_per_node" | "seconds" | "predicted_s"
    | "compute_imbalance" | "token_imbalance" | "total_bytes" | "inter_node_bytes", number>
  & Record<"device_pairs" | "device_tokens" | "device_bytes", readonly number[]>
  & { warnings: readonly string[] }
>;

interface Card { readonly name: string; readonly note: string; read(figures: Figures): number; write(value: number): string }

export const seconds = (value: number): string => format.duration(value * 1e9);

const CARDS: readonly Card[] = [
  { name: "Predicted", read: (f) => f.predicted_s, write: seconds, note: "forward and backward, by the simulator" },
  { name: "Compute max/mean", read: (f) => f.compute_imbalance, write: format.ratio, note: "busiest device / mean" },
  { name: "Token max/mean", read: (f) => f.token_imbalance, write: format.ratio, note: "largest owner / mean" },
  { name: "Bytes moved", read: (f) => f.total_bytes, write: format.size, note: "forward and backward" },
  { name: "Between nodes", read: (f) => f.inter_node_bytes, write: format.size, note: "the part that crosses the network" },
];
const LEAST_CHANGE = 0.05; // % that count as better or worse

/** Shows figures, and beside them by how much they differ from those of a pinned plan. */
export function showCards(host: HTMLElement, figures: Figures, pinned: Figures | null): void {
  host.replaceChildren(...CARDS.map(({ name, read, write, note }) => {
    const value = read(figures);
    const other = pinned ? read(pinned) : 0;
    return make("div", {}, make("dt", {}, name), make("dd", { className: "dcp-value" }, write(value)),
      other ? difference((100 * (value - other)) / other) : make("dd", {}, note));
  }));
}

function difference(percent: number): HTMLElement {
  const className = Math.abs(percent) < LEAST_CHANGE ? "" : percent < 0 ? "dcp-good" : "dcp-bad";
  return make("dd", { className }, `${percent > 0 ? "+" : ""}${percent.toFixed(1)} % against B`);
}

/** Bars of every device: computed pairs, owned tokens, received bytes; the same as numbers on request. */
export class Bars {
  private readonly place: HTMLElement;
  private readonly table = make("details", { ontoggle: () => this.write() }, make("summary", {}, "Every device in numbers"));
  private bars: DeviceBars | undefined;
  private figures: Figures | undefined;

  constructor(host: HTMLElement) {
    this.place = make("div");
    const hint = make("p", { className: "dcp-hint" }, "One bar per device. Lines separate nodes; the dashed line is the mean.");
    host.append(this.place, hint, this.table);
  }

  dispose(): void { this.bars?.dispose(); }

  show(figures: Figures): void {
    this.figures = figures;
    this.dispose();
    const bars = make("div", { className: "dcp-edit-bars" });
    this.place.replaceChildren(bars);
    this.bars = new DeviceBars(bars, payloadOf(figures), "Balance of the preview");
    this.write();
  }

  resize(): void { this.bars?.resize(); }

  private write(): void {
    if (!this.table.open || !this.figures) return;
    const { header: { rows }, columns } = payloadOf(this.figures);
    const cell = (tag: "th" | "td", text: string) => make(tag, { className: "dcp-number" }, text);
    const body = this.figures.device_pairs.map((_, device) => make("tr", {}, make("th", { scope: "row", className: "dcp-number" }, String(device)),
      ...rows.map(({ id }) => cell("td", format.count(columns[id][device])))));
    const head = make("tr", {}, ...["Device", ...rows.map(({ label }) => label)].map((name) => cell("th", name)));
    const made = make("table", { className: "dcp-table" }, make("thead", {}, head), make("tbody", {}, ...body));
    this.table.replaceChildren(part(this.table, "summary"), make("div", { className: "dcp-scroll dcp-tall", tabIndex: 0 }, made));
  }
}

/** The figures as the balance of a plan is drawn from. */
function payloadOf({ devices, devices_per_node: perNode, device_pairs: pairs, device_tokens: tokens, device_bytes: bytes }: Figures): DevicesPayload {
  const rows = ([["pairs", "Pairs", pairs, "count", "attention"], ["tokens", "Tokens", tokens, "count", "neutral"],
    ["bytes", "Received bytes", bytes, "bytes", "receive"]] as const).map(([id, label, values, unit, kind]) => {
    const mean = values.reduce((sum, value) => sum + value, 0) / devices;
    return { id, label, meaning: label, unit, kind, mean, ratio: mean ? Math.max(...values) / mean : 1 };
  });
  const starts = Array.from({ length: devices / perNode + 1 }, (_, node) => node * perNode);
  return {
    header: { num_devices: devices, node_starts: starts, rows },
    columns: { pairs: Float64Array.from(pairs), tokens: Float64Array.from(tokens), bytes: Float64Array.from(bytes) },
  };
}
