// The exact visible pairs of the shown part of the mask, once it is small enough: asked for when the window rests,
// with some room around it, and drawn as pixels of their tile's colour against hollow ones.
import { type Column, loadColumns, type Payload } from "../api.ts";
import type { AxisRange } from "../kit/axis.ts";
import { isAbort } from "../kit/dom.ts";
import type { Layers } from "../kit/layers.ts";

const PER_PIXEL = 2.2; // tokens; with more of them a pixel would show one pair of many
const MOST = 1 << 24; // pairs of a window, as the server bounds it
const REST_MS = 60;

type Tokens = readonly [firstQuery: number, pastQuery: number, firstKey: number, pastKey: number];
type PairsPayload = Payload<{ tokens: Tokens }, "bits">;

/** The window of a mask: what is shown of both axes, and how many tiles there are. */
interface Shown { readonly across: AxisRange; readonly down: AxisRange; readonly count: number }

export class MaskPairs {
  private readonly host: HTMLElement;
  private readonly url: string;
  private readonly redraw: () => void;
  private known: { tokens: Tokens; bits: Column; stride: number } | null = null;
  private asked: AbortController | undefined;
  private timer = 0;

  /** `host` says in `data-detail` whether pairs are "loading" or "shown". */
  constructor(host: HTMLElement, url: string, redraw: () => void) {
    this.host = host;
    this.url = url;
    this.redraw = redraw;
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.asked?.abort();
  }

  /** Fetches the pairs of the shown tokens unless they are here or too many. */
  want(across: AxisRange, down: AxisRange, total: number, pixels: number): void {
    clearTimeout(this.timer);
    const isSmall = down.span * across.span <= MOST * 0.9 && across.span <= PER_PIXEL * pixels;
    this.host.dataset.detail = !isSmall ? "none" : this.holds(across, down) ? "shown" : "loading";
    if (this.host.dataset.detail !== "loading") { this.asked?.abort(); return; }
    this.timer = window.setTimeout(() => void this.fetch(across, down, total), REST_MS);
  }

  private holds(across: AxisRange, down: AxisRange): boolean {
    const [q0, q1, k0, k1] = this.known?.tokens ?? [0, 0, 0, 0];
    return q0 <= down.start && down.end <= q1 && k0 <= across.start && across.end <= k1;
  }

  private async fetch(across: AxisRange, down: AxisRange, total: number): Promise<void> {
    const fits = (Math.sqrt((MOST * 0.99) / (across.span * down.span)) - 1) / 2;
    const around = (range: AxisRange): number[] => {
      const room = range.span * Math.min(0.3, fits);
      return [Math.max(0, Math.floor(range.start - room)), Math.min(total, Math.ceil(range.end + room))];
    };
    const tokens = [...around(down), ...around(across)];
    this.asked?.abort();
    this.asked = new AbortController();
    try {
      const { header, columns } = await loadColumns<PairsPayload>(`${this.url}?tokens=${tokens.join("-")}`, this.asked.signal);
      this.known = { tokens: header.tokens, bits: columns.bits, stride: (header.tokens[3] - header.tokens[2] + 7) >> 3 };
      this.redraw();
      this.host.dataset.detail = "shown";
    } catch (error) {
      if (isAbort(error)) return;
      this.known = null; // the tiles stay as they are: nothing is claimed
      this.host.dataset.detail = "failed";
    }
  }

  /** Recolours the pixels of a tile whose pair is not visible. */
  hollow({ buffer, pixels: { width, height } }: Layers, tiles: Uint32Array, colourOf: (tile: number) => number, { across, down, count }: Shown): void {
    if (!this.known || this.host.dataset.detail === "none") return;
    const { tokens: [q0, q1, k0, k1], bits, stride } = this.known;
    const colours = new Map<number, number>();
    const keys = Int32Array.from({ length: width }, (_, x) => Math.floor(across.start + ((x + 0.5) / width) * across.span));
    for (let y = 0; y < height; y++) {
      const q = Math.floor(down.start + ((y + 0.5) / height) * down.span);
      if (q < q0 || q >= q1) continue;
      const row = (q - q0) * stride;
      for (let x = 0, at = y * width; x < width; x++, at++) {
        const k = keys[x] - k0;
        if (tiles[at] >= count || k < 0 || keys[x] >= k1 || (bits[row + (k >> 3)] >> (7 - (k & 7))) & 1) continue;
        let colour = colours.get(tiles[at]);
        if (colour === undefined) colours.set(tiles[at], colour = colourOf(tiles[at]));
        buffer[at] = colour;
      }
    }
  }
}
