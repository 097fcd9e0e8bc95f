// A table of which only the rows in sight exist, however many there are: a heading sorts, a click or the arrows choose.
"use strict";

window.dcp = window.dcp || {};

window.dcp.VirtualTable = (() => {
  const { make } = window.dcp.canvas;
  const ROW = 28; // CSS pixels
  const MOST_HIGH = 8e6; // browsers place nothing far beyond; more rows share these pixels

  return class VirtualTable {
    // label; heads: [name, text, {isNumber, isPlain: nothing to sort by}]; order: a name, "-" in front: falling;
    // size; cells(n): texts of a row; chosen(): the number of the chosen row, -1 if none; choose(n); sort(order)
    constructor(options) {
      Object.assign(this, options);
      this.body = make("tbody", {});
      const table = make("table", { className: "dcp-table dcp-virtual", "aria-rowcount": this.size + 1, "aria-label": this.label },
        make("thead", {}, make("tr", {}, ...this.heads.map((head) => this.head(head)))), this.body);
      const space = make("div", { className: "dcp-virtual-space" }, table);
      space.style.height = `${Math.min(MOST_HIGH, (this.size + 1) * ROW + 4)}px`;
      this.box = make("div", { className: "dcp-virtual-scroll", tabIndex: 0, role: "region", "aria-label": `Table of ${this.label.toLowerCase()}, scrolls` }, space);
      this.box.addEventListener("scroll", () => this.fill());
      this.box.addEventListener("keydown", (event) => this.key(event));
    }

    head([name, text, { isNumber, isPlain } = {}]) {
      const className = isNumber ? "dcp-number" : "";
      if (isPlain) return make("th", { scope: "col", className }, text);
      const order = this.order === name ? "ascending" : this.order === `-${name}` ? "descending" : "none";
      const next = { none: name, ascending: `-${name}`, descending: null }[order];
      const sign = { none: "", ascending: " ↑", descending: " ↓" }[order];
      return make("th", { scope: "col", "aria-sort": order, className },
        make("button", { type: "button", className: "dcp-link", onclick: () => this.sort(next) }, text + sign));
    }

    // As many rows as fit below the heading, so that none is cut and nothing has to scroll for a click.
    fill() {
      const high = Math.max(1, Math.floor((this.box.clientHeight || 560) / ROW) - 1);
      const room = this.box.scrollHeight - this.box.clientHeight;
      const share = room > 0 ? Math.min(1, this.box.scrollTop / room) : 0;
      this.first = Math.round(share * Math.max(0, this.size - high));
      const chosen = this.chosen();
      const rows = [];
      for (let n = this.first; n < Math.min(this.size, this.first + high); n++) rows.push(this.row(n, n === chosen));
      this.body.replaceChildren(...rows);
    }

    row(n, isChosen) {
      return make("tr", { "aria-rowindex": n + 2, "aria-selected": String(isChosen), className: isChosen ? "dcp-chosen" : "",
        onclick: () => this.choose(n) },
        ...this.cells(n).map((text, at) => make("td", { className: this.heads[at][2]?.isNumber ? "dcp-number" : "" }, text)));
    }

    // Up and down choose the neighbouring row, also one that is not in sight.
    key(event) {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by || !this.size) return;
      event.preventDefault();
      const next = Math.max(0, Math.min(this.size - 1, this.chosen() + by));
      if (next < this.first || next >= this.first + this.body.children.length) this.box.scrollTop += by * ROW;
      this.choose(next);
    }
  };
})();
