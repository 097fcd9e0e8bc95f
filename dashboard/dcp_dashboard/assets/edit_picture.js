// The live picture of /edit: one cell per pair of tokens (or of groups of tokens on long samples), stripes of the
// kinds along the axes, numbers, and the rows as text. Colours come from the theme.
"use strict";

window.dcp = window.dcp || {};
window.dcp.edit = window.dcp.edit || {};

(() => {
  const { el } = window.dcp.edit;
  // Okabe & Ito (2008), as the pictures of the command line.
  const KINDS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a94a3"];
  const BAR = 8;
  const MOST_ROWS = 64;

  function colour(name) {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  }

  class Picture {
    constructor(host) {
      this.host = host;
      this.pixels = el("canvas", { class: "dcp-pixels", role: "img", "aria-label": "no picture yet" });
      this.top = el("canvas", { "aria-hidden": "true" });
      this.left = el("canvas", { "aria-hidden": "true" });
      this.tip = el("p", { class: "dcp-hint dcp-edit-tip" }, "\u00a0");
      this.numbers = el("dl", { class: "dcp-edit-numbers" });
      this.legend = el("div", { class: "dcp-legend" });
      this.notice = el("p", { class: "dcp-edit-notice", role: "status", hidden: true });
      this.rows = el("details", { class: "dcp-edit-rows", ontoggle: () => this.writeRows() },
        el("summary", {}, "Rows as text"), el("pre", { tabindex: "0" }));
      this.frame = el("div", { class: "dcp-edit-matrix" }, el("span"), this.top, this.left, this.pixels);
      host.replaceChildren(this.notice, this.numbers, this.frame, this.tip, this.legend, this.rows);
      this.pixels.addEventListener("pointermove", (event) => this.tell(event));
      this.pixels.addEventListener("pointerleave", () => { this.tip.textContent = "\u00a0"; });
      this.sizes = new ResizeObserver(() => this.draw());
      this.sizes.observe(host);
    }

    dispose() {
      this.sizes.disconnect();
    }

    // The last good picture stays; `why` says why it is not of the present text.
    keep(why) {
      const stands = this.payload ? " The picture shows the last text without errors." : "";
      this.notice.textContent = `${why}${stands}`;
      this.notice.hidden = false;
      this.frame.classList.toggle("dcp-old", Boolean(this.payload));
      this.host.dataset.state = "old";
    }

    show(payload) {
      this.payload = payload;
      this.notice.hidden = true;
      this.frame.classList.remove("dcp-old");
      const { header } = payload;
      const density = header.pairs / header.tokens ** 2;
      const count = (value) => value.toLocaleString("en-US");
      const numbers = [
        ["Drawn", header.title],
        ["Tokens", count(header.tokens)],
        ["Visible pairs", count(header.pairs)],
        ["Density", `${(100 * density).toPrecision(3)} %`],
        ["Empty rows", header.empty_rows === null ? "not counted" : count(header.empty_rows)],
        ["Form", header.form],
      ];
      this.numbers.replaceChildren(...numbers.map(([name, value]) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
      this.pixels.setAttribute("aria-label", `${header.title}: ${numbers.map((pair) => pair.join(" ")).join(", ")}`);
      this.legend.replaceChildren(...header.kinds.map((kind, at) => el("span", { class: "dcp-legend-item" },
        swatch(KINDS[at % KINDS.length]), kind)));
      this.draw();
      this.writeRows();
      this.host.dataset.state = "drawn";
      this.host.dataset.title = header.title;
    }

    draw() {
      if (!this.payload || !this.host.clientWidth) return;
      const { header, columns: { share } } = this.payload;
      const cells = Math.round(Math.sqrt(share.length));
      const room = Math.min(520, this.host.clientWidth - BAR - 6);
      const side = cells > room ? room : cells * Math.max(1, Math.floor(room / cells));
      const ratio = cells > side ? 1 : window.devicePixelRatio || 1;
      const empty = colour("--canvas");
      const full = colour("--accent");
      const image = new ImageData(cells, cells);
      const mixed = new Uint32Array(image.data.buffer);
      const table = new Uint32Array(256);
      for (let level = 0; level < 256; level++) {
        // The root keeps thin lines of long samples, such as a sink, from fading away.
        const part = Math.sqrt(level / 255);
        const [red, green, blue] = full.map((to, at) => Math.round(empty[at] + (to - empty[at]) * part));
        table[level] = 0xff000000 | (blue << 16) | (green << 8) | red;
      }
      for (let at = 0; at < share.length; at++) mixed[at] = table[share[at]];
      const small = new OffscreenCanvas(cells, cells);
      small.getContext("2d").putImageData(image, 0, 0);
      resize(this.pixels, side, side, ratio);
      const pen = this.pixels.getContext("2d");
      pen.imageSmoothingEnabled = cells > side;
      pen.drawImage(small, 0, 0, this.pixels.width, this.pixels.height);
      this.drawStripes(side, header.tokens);
    }

    drawStripes(side, tokens) {
      const { stripe_start: start, stripe_end: end, stripe_kind: kind, stripe_number: number } = this.payload.columns;
      resize(this.top, side, start.length ? BAR : 0, 1);
      resize(this.left, start.length ? BAR : 0, side, 1);
      for (const [canvas, isRow] of [[this.top, false], [this.left, true]]) {
        const pen = canvas.getContext("2d");
        for (let at = 0; at < start.length; at++) {
          const from = (start[at] / tokens) * side;
          const size = ((end[at] - start[at]) / tokens) * side;
          pen.fillStyle = KINDS[kind[at] % KINDS.length];
          pen.globalAlpha = number[at] % 2 ? 0.55 : 1;
          if (isRow) pen.fillRect(0, from, BAR, size);
          else pen.fillRect(from, 0, size, BAR);
        }
      }
    }

    tell(event) {
      if (!this.payload) return;
      const { header, columns: { share } } = this.payload;
      const cells = Math.round(Math.sqrt(share.length));
      const box = this.pixels.getBoundingClientRect();
      const cell = (place, size) => Math.min(cells - 1, Math.max(0, Math.floor((place / size) * cells)));
      const row = cell(event.clientY - box.top, box.height);
      const column = cell(event.clientX - box.left, box.width);
      const level = share[row * cells + column];
      const name = (at) => {
        const first = at * header.cell;
        const last = Math.min(header.tokens, first + header.cell) - 1;
        return `${first === last ? first : `${first} to ${last}`}${this.kindAt(first)}`;
      };
      const seen = level === 0 ? "not visible" : level === 255 ? "visible" : `${Math.round(level / 2.55)} % visible`;
      this.tip.textContent = `query ${name(row)}, key ${name(column)}: ${seen}`;
    }

    kindAt(token) {
      const { stripe_start: start, stripe_end: end, stripe_kind: kind, stripe_number: number } = this.payload.columns;
      const at = start.findIndex((from, index) => from <= token && token < end[index]);
      return at < 0 ? "" : ` (${this.payload.header.kinds[kind[at]]} ${number[at]})`;
    }

    // What the canvas shows, for who cannot see it: the keys of every query.
    writeRows() {
      if (!this.rows.open || !this.payload) return;
      const { header, columns: { share } } = this.payload;
      const pre = this.rows.querySelector("pre");
      if (header.tokens > MOST_ROWS) {
        pre.textContent = `Rows are written out up to ${MOST_ROWS} tokens; this sample has ${header.tokens}.`;
        return;
      }
      const lines = [];
      for (let row = 0; row < header.tokens; row++) {
        const ranges = [];
        for (let key = 0; key < header.tokens; key++) {
          if (!share[row * header.tokens + key]) continue;
          const last = ranges.at(-1);
          if (last && last[1] === key - 1) last[1] = key;
          else ranges.push([key, key]);
        }
        const seen = ranges.map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(", ");
        lines.push(`query ${row}${this.kindAt(row)}: ${seen || "nothing"}`);
      }
      pre.textContent = lines.join("\n");
    }
  }

  function swatch(colour) {
    const made = el("span", { class: "dcp-swatch" });
    made.style.backgroundColor = colour;
    return made;
  }

  function resize(canvas, width, height, ratio) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }

  Object.assign(window.dcp.edit, { Picture, colour, resize });
})();
