// The live picture of /edit: one cell per pair of tokens (or of groups of tokens on long samples), stripes of the
// kinds along the axes, numbers, and the rows as text. Colours come from the theme.
import type { Payload } from "../api.ts";
import { mix, pixel, themeColour } from "../kit/colours.ts";
import { make, part, swatch } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { contextOf, sizeCanvas } from "../kit/layers.ts";

interface PictureHeader {
  readonly title: string;
  readonly tokens: number;
  readonly cell: number; // tokens along a side of a cell
  readonly pairs: number;
  readonly form: string;
  readonly empty_rows: number | null;
  readonly kinds: readonly string[];
}

export type PicturePayload = Payload<PictureHeader, "share" | "stripe_start" | "stripe_end" | "stripe_kind" | "stripe_number">;

// Okabe & Ito (2008), as the pictures of the command line.
const KINDS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a94a3"];
const kindColour = (kind: number): string => KINDS[kind % KINDS.length];
const BAR = 8;
const SIDE = 520;
const MOST_ROWS = 64;
const LEVELS = 256; // of a cell, from no pair to all

export class Picture {
  private readonly host: HTMLElement;
  private readonly pixels = make("canvas", { className: "dcp-pixels", role: "img", "aria-label": "no picture yet" });
  private readonly top = make("canvas", { "aria-hidden": "true" });
  private readonly left = make("canvas", { "aria-hidden": "true" });
  private readonly tip = make("p", { className: "dcp-hint dcp-edit-tip" }, "\u00a0");
  private readonly numbers = make("dl", { className: "dcp-edit-numbers" });
  private readonly legend = make("div", { className: "dcp-legend" });
  private readonly notice = make("p", { className: "dcp-edit-notice", role: "status", hidden: true });
  private readonly rows = make("details", { className: "dcp-edit-rows", ontoggle: () => this.writeRows() },
    make("summary", {}, "Rows as text"), make("pre", { tabIndex: 0 }));
  private readonly frame = make("div", { className: "dcp-edit-matrix" }, make("span"), this.top, this.left, this.pixels);
  private readonly sizes = new ResizeObserver(() => this.draw());
  private payload: PicturePayload | undefined;

  constructor(host: HTMLElement) {
    this.host = host;
    host.replaceChildren(this.notice, this.numbers, this.frame, this.tip, this.legend, this.rows);
    this.pixels.addEventListener("pointermove", (event) => this.tell(event));
    this.pixels.addEventListener("pointerleave", () => { this.tip.textContent = "\u00a0"; });
    this.sizes.observe(host);
  }

  dispose(): void { this.sizes.disconnect(); }

  /** The last good picture stays; `why` says why it is not of the present text. */
  keep(why: string): void {
    this.notice.textContent = `${why}${this.payload ? " The picture shows the last text without errors." : ""}`;
    this.notice.hidden = false;
    this.frame.classList.toggle("dcp-old", Boolean(this.payload));
    this.host.dataset.state = "old";
  }

  show(payload: PicturePayload): void {
    this.payload = payload;
    this.notice.hidden = true;
    this.frame.classList.remove("dcp-old");
    const { title, tokens, pairs, empty_rows: emptyRows, form, kinds } = payload.header;
    const numbers = [
      ["Drawn", title],
      ["Tokens", format.count(tokens)],
      ["Visible pairs", format.count(pairs)],
      ["Density", `${((100 * pairs) / tokens ** 2).toPrecision(3)} %`],
      ["Empty rows", emptyRows === null ? "not counted" : format.count(emptyRows)],
      ["Form", form],
    ];
    this.numbers.replaceChildren(...numbers.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    this.pixels.setAttribute("aria-label", `${title}: ${numbers.map((pair) => pair.join(" ")).join(", ")}`);
    this.legend.replaceChildren(...kinds.map((kind, at) => make("span", { className: "dcp-legend-item" }, swatch(kindColour(at)), kind)));
    this.draw();
    this.writeRows();
    this.host.dataset.state = "drawn";
    this.host.dataset.title = title;
  }

  draw(): void {
    if (!this.payload || !this.host.clientWidth) return;
    const { header, columns: { share } } = this.payload;
    const cells = Math.round(Math.sqrt(share.length));
    const room = Math.min(SIDE, this.host.clientWidth - BAR - 6);
    const side = cells > room ? room : cells * Math.max(1, Math.floor(room / cells));
    const [empty, full] = ["--canvas", "--accent"].map((name) => pixel(themeColour(name)));
    // The root keeps thin lines of long samples, such as a sink, from fading away.
    const colours = Uint32Array.from({ length: LEVELS }, (_, level) => mix(empty, full, Math.sqrt(level / (LEVELS - 1))));
    const image = new ImageData(cells, cells);
    const buffer = new Uint32Array(image.data.buffer);
    for (let at = 0; at < share.length; at++) buffer[at] = colours[share[at]];
    const small = make("canvas", { width: cells, height: cells });
    contextOf(small).putImageData(image, 0, 0);
    sizeCanvas(this.pixels, side, side, cells > side ? 1 : window.devicePixelRatio || 1);
    const pen = contextOf(this.pixels);
    pen.imageSmoothingEnabled = cells > side;
    pen.drawImage(small, 0, 0, this.pixels.width, this.pixels.height);
    this.drawStripes(this.payload.columns, side, header.tokens);
  }

  private drawStripes({ stripe_start: start, stripe_end: end, stripe_kind: kind, stripe_number: number }: PicturePayload["columns"], side: number, tokens: number): void {
    const thick = start.length ? BAR : 0;
    sizeCanvas(this.top, side, thick, 1);
    sizeCanvas(this.left, thick, side, 1);
    const pens = [contextOf(this.top), contextOf(this.left)];
    for (let at = 0; at < start.length; at++) {
      const [from, size] = [(start[at] / tokens) * side, ((end[at] - start[at]) / tokens) * side];
      for (const pen of pens) {
        pen.fillStyle = kindColour(kind[at]);
        pen.globalAlpha = number[at] % 2 ? 0.55 : 1;
      }
      pens[0].fillRect(from, 0, size, BAR);
      pens[1].fillRect(0, from, BAR, size);
    }
  }

  private tell(event: MouseEvent): void {
    if (!this.payload) return;
    const { header, columns: { share } } = this.payload;
    const cells = Math.round(Math.sqrt(share.length));
    const box = this.pixels.getBoundingClientRect();
    const cell = (place: number, size: number) => Math.min(cells - 1, Math.max(0, Math.floor((place / size) * cells)));
    const row = cell(event.clientY - box.top, box.height);
    const column = cell(event.clientX - box.left, box.width);
    const level = share[row * cells + column];
    const name = (at: number) => {
      const first = at * header.cell;
      const last = Math.min(header.tokens, first + header.cell) - 1;
      return `${first === last ? first : `${first} to ${last}`}${this.kindAt(first)}`;
    };
    const most = LEVELS - 1;
    const seen = level === 0 ? "not visible" : level === most ? "visible" : `${Math.round((100 * level) / most)} % visible`;
    this.tip.textContent = `query ${name(row)}, key ${name(column)}: ${seen}`;
  }

  private kindAt(token: number): string {
    if (!this.payload) return "";
    const { header, columns: { stripe_start: start, stripe_end: end, stripe_kind: kind, stripe_number: number } } = this.payload;
    const at = start.findIndex((from, index) => from <= token && token < end[index]);
    return at < 0 ? "" : ` (${header.kinds[kind[at]]} ${number[at]})`;
  }

  /** The canvas in words, for readers who cannot see it: the keys of every query. */
  private writeRows(): void {
    if (!this.rows.open || !this.payload) return;
    const { header: { tokens }, columns: { share } } = this.payload;
    part(this.rows, "pre").textContent = tokens > MOST_ROWS
      ? `Rows appear as text for up to ${MOST_ROWS} tokens; this sample has ${tokens}.`
      : Array.from({ length: tokens }, (_, row) => (
        `query ${row}${this.kindAt(row)}: ${rangesOf(share.subarray(row * tokens, (row + 1) * tokens)) || "nothing"}`)).join("\n");
  }
}

/** "0-3, 7": the places that are not zero. */
export function rangesOf(values: ArrayLike<number>): string {
  const ranges: [number, number][] = [];
  for (let at = 0; at < values.length; at++) {
    if (!values[at]) continue;
    const last = ranges.at(-1);
    if (last?.[1] === at - 1) last[1] = at;
    else ranges.push([at, at]);
  }
  return ranges.map(([from, to]) => (from === to ? from : `${from}-${to}`)).join(", ");
}
