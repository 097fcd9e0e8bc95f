// A table of which only the rows in sight exist, however many there are: a heading sorts, a click or the arrows choose.
import { button, make } from "./dom.ts";

const ROW = 28; // CSS pixels
const MOST_HIGH = 8e6; // browsers place nothing far beyond; more rows share these pixels

export interface Head { name: string; text: string; isNumber?: boolean; isPlain?: boolean }

export interface Rows {
  readonly label: string;
  readonly heads: readonly Head[]; // `isPlain`: nothing to sort by
  readonly order: string | undefined; // a name, "-" in front: falling
  readonly size: number;
  cells(row: number): readonly string[];
  chosen(): number; // -1 if none
  choose(row: number): void;
  sort(order: string | null): void;
}

export class VirtualTable {
  readonly box: HTMLElement;
  private readonly rows: Rows;
  private readonly body = make("tbody");
  private first = 0;

  constructor(rows: Rows) {
    this.rows = rows;
    const { label, size, heads } = rows;
    const table = make("table", { className: "dcp-table dcp-virtual", "aria-rowcount": size + 1, "aria-label": label },
      make("thead", {}, make("tr", {}, ...heads.map((head) => this.head(head)))), this.body);
    const space = make("div", { className: "dcp-virtual-space" }, table);
    space.style.height = `${Math.min(MOST_HIGH, (size + 1) * ROW + 4)}px`;
    this.box = make("div", { className: "dcp-virtual-scroll", tabIndex: 0, role: "region", "aria-label": `Table of ${label.toLowerCase()}, scrolls` }, space);
    this.box.addEventListener("scroll", () => this.fill());
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  /** Makes the rows in sight: as many as fit below the heading, so that none is cut and nothing has to scroll for a click. */
  fill(): void {
    const { size } = this.rows;
    const high = Math.max(1, Math.floor((this.box.clientHeight || 560) / ROW) - 1);
    const room = this.box.scrollHeight - this.box.clientHeight;
    const share = room > 0 ? Math.min(1, this.box.scrollTop / room) : 0;
    this.first = Math.round(share * Math.max(0, size - high));
    const chosen = this.rows.chosen();
    const shown = Array.from({ length: Math.min(high, size - this.first) }, (_, i) => this.first + i);
    this.body.replaceChildren(...shown.map((n) => this.row(n, n === chosen)));
  }

  private head({ name, text, isNumber, isPlain }: Head): HTMLElement {
    const className = isNumber ? "dcp-number" : "";
    if (isPlain) return make("th", { scope: "col", className }, text);
    const [sorted, sign, next] = this.rows.order === name ? ["ascending", " ↑", `-${name}`]
      : this.rows.order === `-${name}` ? ["descending", " ↓", null] : ["none", "", name];
    return make("th", { scope: "col", "aria-sort": sorted, className }, button(text + sign, "dcp-link", () => this.rows.sort(next)));
  }

  private row(n: number, isChosen: boolean): HTMLElement {
    const cells = this.rows.cells(n).map((text, at) => make("td", { className: this.rows.heads[at]?.isNumber ? "dcp-number" : "" }, text));
    return make("tr", { "aria-rowindex": n + 2, "aria-selected": String(isChosen), className: isChosen ? "dcp-chosen" : "",
      onclick: () => this.rows.choose(n) }, ...cells);
  }

  // Up and down choose the neighbouring row, also one that is not in sight.
  private key(event: KeyboardEvent): void {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const { size } = this.rows;
    if (!by || !size) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(size - 1, this.rows.chosen() + by));
    if (next < this.first || next >= this.first + this.body.children.length) this.box.scrollTop += by * ROW;
    this.rows.choose(next);
  }
}
