// The exact visible pairs of the shown part of the mask, once it is small enough: asked for when the window rests,
// with some room around it, and drawn as pixels of their tile's colour against hollow ones.
"use strict";

window.dcp = window.dcp || {};

window.dcp.MaskPairs = class {
  static PER_PIXEL = 2.2; // tokens; with more of them a pixel would show one pair of many

  static MOST = 1 << 24; // pairs of a window, as the server bounds it

  // `host` says in `data-detail` whether pairs are "loading" or "shown".
  constructor(host, redraw) {
    this.host = host;
    this.url = host.dataset.pairs;
    this.redraw = redraw;
    this.shown = null; // {tokens: [q0, q1, k0, k1], bits, stride}
  }

  dispose() {
    clearTimeout(this.timer);
    this.asked?.abort();
  }

  // Fetches the pairs of the shown tokens unless they are here or too many.
  want(across, down, total, pixels) {
    clearTimeout(this.timer);
    const inner = [down.start, down.end, across.start, across.end];
    const isSmall = this.url && down.span * across.span <= this.constructor.MOST * 0.9
      && across.span <= this.constructor.PER_PIXEL * pixels;
    this.host.dataset.detail = !isSmall ? "none" : this.holds(inner) ? "shown" : "loading";
    if (this.host.dataset.detail !== "loading") return;
    this.timer = setTimeout(() => this.fetch(across, down, total), 60);
  }

  holds([q0, q1, k0, k1]) {
    const [a, b, c, d] = this.shown?.tokens || [0, 0, 0, 0];
    return a <= q0 && q1 <= b && c <= k0 && k1 <= d;
  }

  async fetch(across, down, total) {
    const fits = (Math.sqrt((this.constructor.MOST * 0.99) / (across.span * down.span)) - 1) / 2;
    const around = (range) => {
      const room = range.span * Math.min(0.3, fits);
      return [Math.max(0, Math.floor(range.start - room)), Math.min(total, Math.ceil(range.end + room))];
    };
    const tokens = [...around(down), ...around(across)];
    this.asked?.abort();
    this.asked = new AbortController();
    try {
      const { header, columns } = await window.dcp.columns.load(`${this.url}?tokens=${tokens.join("-")}`, this.asked.signal);
      this.shown = { tokens: header.tokens, bits: columns.bits, stride: (header.tokens[3] - header.tokens[2] + 7) >> 3 };
      this.redraw();
      this.host.dataset.detail = "shown";
    } catch (error) {
      if (error.name === "AbortError") return;
      this.shown = null; // the tiles stay as they are: nothing is claimed
      this.host.dataset.detail = "failed";
    }
  }

  // Recolours the pixels of a tile whose pair is not visible. `mask` gives the shown ranges.
  hollow({ buffer, pixels: { width, height } }, tiles, colourOf, { across, down, count }) {
    if (!this.shown || this.host.dataset.detail === "none") return;
    const { tokens: [q0, q1, k0, k1], bits, stride } = this.shown;
    const known = new Map();
    const keys = Int32Array.from({ length: width }, (_, x) => Math.floor(across.start + ((x + 0.5) / width) * across.span));
    for (let y = 0; y < height; y++) {
      const q = Math.floor(down.start + ((y + 0.5) / height) * down.span);
      if (q < q0 || q >= q1) continue;
      const row = (q - q0) * stride;
      for (let x = 0, at = y * width; x < width; x++, at++) {
        const k = keys[x] - k0;
        if (tiles[at] >= count || k < 0 || keys[x] >= k1 || (bits[row + (k >> 3)] >> (7 - (k & 7))) & 1) continue;
        let colour = known.get(tiles[at]);
        if (colour === undefined) known.set(tiles[at], colour = colourOf(tiles[at]));
        buffer[at] = colour;
      }
    }
  }
};
