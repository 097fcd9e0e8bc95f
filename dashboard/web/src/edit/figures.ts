// What a mask costs on a cluster, at once while one types: figures, and bars per device.
import { themeColour } from "../kit/colours.ts";
import { make, part } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { contextOf, sizeCanvas } from "../kit/layers.ts";

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

const [LABEL, HEIGHT, GAP] = [96, 40, 8];

/** Three rows of bars, a bar for each device: computed pairs, owned tokens, received bytes; a line at the mean. */
export class Bars {
  private readonly host: HTMLElement;
  private readonly canvas = make("canvas", { role: "img", "aria-label": "no figures yet", className: "dcp-edit-bars" });
  private readonly table = make("details", { ontoggle: () => this.write() }, make("summary", {}, "Every device in numbers"));
  private readonly sizes = new ResizeObserver(() => this.draw());
  private figures: Figures | undefined;

  constructor(host: HTMLElement) {
    this.host = host;
    const hint = make("p", { className: "dcp-hint" }, "A bar per device, the nodes in turn dark and light; the line is the mean.");
    host.append(this.canvas, hint, this.table);
    this.sizes.observe(host);
  }

  dispose(): void { this.sizes.disconnect(); }

  show(figures: Figures): void {
    this.figures = figures;
    const told = rowsOf(figures).map(([name, values]) => {
      const most = Math.max(...values);
      return `${name}: most on device ${values.indexOf(most)}, ${format.count(most)}`;
    });
    this.canvas.setAttribute("aria-label", told.join("; "));
    this.draw();
    this.write();
  }

  draw(): void {
    const width = this.host.clientWidth;
    if (!this.figures || !width) return;
    const rows = rowsOf(this.figures);
    const ratio = window.devicePixelRatio || 1;
    sizeCanvas(this.canvas, width, rows.length * (HEIGHT + GAP), ratio);
    const pen = contextOf(this.canvas);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = `11px ${getComputedStyle(this.host).fontFamily}`;
    const { devices_per_node: perNode } = this.figures;
    rows.forEach(([name, values], at) => drawRow(pen, name, values, { bottom: (at + 1) * (HEIGHT + GAP) - GAP, width: width - LABEL, perNode }));
  }

  private write(): void {
    if (!this.table.open || !this.figures) return;
    const rows = rowsOf(this.figures);
    const cell = (tag: "th" | "td", text: string) => make(tag, { className: "dcp-number" }, text);
    const body = rows[0][1].map((_, device) => make("tr", {}, make("th", { scope: "row", className: "dcp-number" }, String(device)),
      ...rows.map(([, values]) => cell("td", format.count(values[device])))));
    const head = make("tr", {}, ...["Device", ...rows.map(([name]) => name)].map((name) => cell("th", name)));
    const made = make("table", { className: "dcp-table" }, make("thead", {}, head), make("tbody", {}, ...body));
    this.table.replaceChildren(part(this.table, "summary"), make("div", { className: "dcp-scroll dcp-tall", tabIndex: 0 }, made));
  }
}

function rowsOf({ device_pairs: pairs, device_tokens: tokens, device_bytes: bytes }: Figures): [string, readonly number[]][] {
  return [["Pairs", pairs], ["Tokens", tokens], ["Received bytes", bytes]];
}

function drawRow(
  pen: CanvasRenderingContext2D, name: string, values: readonly number[],
  { bottom, width, perNode }: { bottom: number; width: number; perNode: number },
): void {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const most = Math.max(...values, mean * 1.25, 1);
  const slot = width / values.length;
  const space = slot > 3 ? 1 : 0;
  pen.fillStyle = themeColour("--canvas");
  pen.fillRect(LABEL, bottom - HEIGHT, width, HEIGHT);
  pen.fillStyle = themeColour("--accent");
  values.forEach((value, device) => {
    const height = (value / most) * HEIGHT;
    pen.globalAlpha = Math.floor(device / perNode) % 2 ? 0.7 : 1; // nodes can be told apart
    pen.fillRect(LABEL + device * slot, bottom - height, Math.max(0.5, slot - space), height);
  });
  pen.globalAlpha = 1;
  pen.fillStyle = themeColour("--ink");
  pen.fillRect(LABEL, bottom - (mean / most) * HEIGHT, width, 1);
  pen.fillStyle = themeColour("--muted");
  pen.fillText(name, 0, bottom - HEIGHT / 2 + 4);
}
