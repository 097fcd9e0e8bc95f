// The mask with its placement: queries down, keys across, both in tokens of the packed batch.
//
// Zooming rasterises which tile each pixel shows; recolouring only looks up the colour of that tile. The strips at the
// left and at the bottom show who owns the tokens of that row or column, the names beyond them of which sequence they
// are; a click there selects the sequence. Zoomed in far enough, partial tiles show their pairs ("dcp.pairs/1").
import type { Column } from "../api.ts";
import { AxisRange, ticks } from "../kit/axis.ts";
import { mix, pixel, themeColour } from "../kit/colours.ts";
import { make, swatch } from "../kit/dom.ts";
import { saveRow } from "../kit/export.ts";
import * as format from "../kit/format.ts";
import type { Box } from "../kit/layers.ts";
import { CanvasView, type Hovered } from "../kit/view.ts";
import { toggleSelection } from "../page/selection.ts";
import { type Key, type Selection, type Values, state } from "../state.ts";
import { kindOf, type MaskColumns, type MaskHeader, type MaskPayload, type Mode, tileFacts } from "./columns.ts";
import * as groups from "./groups.ts";
import { handleKey } from "./keys.ts";
import { edgeLabels, sequenceAt } from "./labels.ts";
import { MaskPairs } from "./pairs.ts";
import * as raster from "./raster.ts";
import type { MaskView } from "./view.ts";

const NAMES = 14; // of the sequences, beyond the axes
const LEFT = 56 + NAMES;
const STRIP = 8;
const BOTTOM = 34 + NAMES;
const GAP = 3;
const APART = 5; // CSS pixels between the borders of two sequences
const FAINT = 0.14; // how much of its colour a tile keeps that is not selected
const HOLLOW = 0.2; // and a pair that is not visible, inside of a tile
const SIDE = 620;

type Pen = CanvasRenderingContext2D;

export class Mask extends CanvasView implements MaskView {
  readonly header: MaskHeader;
  readonly columns: MaskColumns;
  readonly count: number;
  tiles = new Uint32Array(0);
  group = 0;
  index: raster.RowIndex = { first: new Uint32Array(1), order: new Uint32Array(0) };
  private readonly across: AxisRange;
  private readonly down: AxisRange;
  private readonly legend = make("div", { className: "dcp-legend" });
  private readonly save = saveRow("mask", this);
  private readonly pairs: MaskPairs | null;
  private readonly isLinked: boolean;
  private readonly first: string;
  private readonly unfollow: (() => void) | undefined;
  private mode: Mode;
  private chosen: Selection | undefined;
  private background = 0;

  constructor(host: HTMLElement, { header, columns }: MaskPayload, label: string) {
    const labels = header.group_labels;
    super(host, `${label}: ${format.count(columns.tile_q.length / (labels?.length ?? 1))} tiles of `
      + `${format.count(header.num_tokens)} tokens${labels ? ` in each of ${labels.length} groups of heads` : ""}. `
      + "Enter selects a tile, arrow keys go to the next one; the tables of tiles and devices show the same data.");
    this.header = header;
    this.columns = columns;
    this.count = columns.tile_q.length;
    this.across = new AxisRange(header.num_tokens, 16);
    this.down = new AxisRange(header.num_tokens, 16);
    host.after(this.legend);
    this.legend.after(this.save);
    const { pairs, linked, mode } = host.dataset;
    this.pairs = pairs ? new MaskPairs(host, pairs, () => this.recolour()) : null;
    this.isLinked = linked !== "no";
    this.listen();
    const { tokens, sel, colour } = this.isLinked ? state.get() : {};
    this.showTokens(tokens);
    this.showGroup(groups.ofSelection(this, sel) ?? groups.asked(this));
    this.first = mode ?? header.modes[0].id;
    this.mode = this.modeOf(colour ?? this.first);
    this.showMode();
    this.resize();
    if (!this.isLinked) return;
    this.unfollow = state.follow((now, changed) => this.follow(now, changed));
    groups.tell(this.group);
  }

  /** Only the tiles of this group of heads are drawn, hit and walked over; a plan of one group has only group 0. */
  showGroup(group: number): void {
    this.group = group;
    this.host.dataset.group = String(group);
    this.index = raster.byRow(this.columns.tile_q, this.columns.block_start.length, this.columns.tile_group, group);
  }

  isShown(tile: number): boolean { return !this.columns.tile_group || this.columns.tile_group[tile] === this.group; }

  dispose(): void {
    this.legend.remove();
    this.save.remove();
    this.pairs?.dispose();
    this.unfollow?.();
  }

  private follow(values: Values, changed: ReadonlySet<Key>): void {
    if (changed.has("tokens") && String(this.window() ?? "") !== String(values.tokens ?? "")) {
      this.showTokens(values.tokens);
      this.redraw();
    }
    if (this.columns.tile_group && (changed.has("group") || changed.has("sel"))) groups.follow(this, changed);
    if (changed.has("colour")) this.setMode(values.colour ?? this.first);
    if (changed.has("sel") || changed.has("tiles")) this.recolour();
  }

  private showTokens(tokens: Values["tokens"]): void {
    this.down.show(tokens?.slice(0, 2));
    this.across.show(tokens?.slice(2));
  }

  /** The shown tokens as the state keeps them, null for all. */
  private window(): number[] | null {
    if (this.across.isWhole && this.down.isWhole) return null;
    return [this.down.start, this.down.end, this.across.start, this.across.end].map(Math.round);
  }

  override moved(): void { if (this.isLinked) state.set({ tokens: this.window() }); }

  override ranges(): AxisRange[] { return [this.across, this.down]; }

  private modeOf(name: string | undefined): Mode {
    return this.header.modes.find((known) => known.id === name) ?? this.header.modes[0];
  }

  setMode(name: string | undefined): void {
    const mode = this.modeOf(name);
    if (mode === this.mode) return;
    this.mode = mode;
    this.showMode();
    this.recolour();
  }

  private showMode(): void {
    if (this.host.dataset.mode !== this.mode.id) this.host.dataset.mode = this.mode.id;
    this.legend.replaceChildren(...this.mode.legend.map(({ label, colours, devices }) => (devices
      ? make("span", { className: "dcp-legend-devices" }, label, ...devices.map((device, at) => this.namedDevice(device, colours[at])))
      : make("span", { className: "dcp-legend-item" }, ...colours.map((colour) => swatch(colour, "dcp-swatch dcp-swatch-joined")), label))));
  }

  /** A device of the legend; a click selects it where the mask follows the selection. */
  private namedDevice(device: number, colour: string): HTMLElement {
    const parts = [swatch(colour, "dcp-swatch"), String(device)];
    if (!this.isLinked) return make("span", { className: "dcp-legend-item" }, ...parts);
    return make("button", { type: "button", className: "dcp-legend-item", "data-sel": `device.${device}`, title: `Select device ${device}` }, ...parts);
  }

  resize(): void {
    const width = Math.max(240, this.host.clientWidth);
    const side = Math.min(width - LEFT, Number(this.host.dataset.side) || SIDE);
    this.layers.resize(width, side + BOTTOM, { left: LEFT, top: 0, width: side, height: side });
    this.tiles = new Uint32Array(this.layers.buffer.length);
    this.redraw();
  }

  redraw(): void {
    this.rasterise();
    this.pairs?.want(this.across, this.down, this.header.num_tokens, this.layers.area.width);
    this.recolour();
  }

  private rasterise(): void {
    const { block_start: start, block_end: end, tile_kv: cols } = this.columns;
    const { width, height } = this.layers.pixels;
    const across = raster.spans(start, end, this.across, width);
    const down = raster.spans(start, end, this.down, height);
    raster.rasterise(this.tiles, this.count, { cols, index: this.index, across, down, width });
  }

  override recolour(): void {
    const begun = performance.now();
    const colours = this.colours();
    const { buffer } = this.layers;
    const { tiles, across, down, count } = this;
    for (let i = 0; i < tiles.length; i++) buffer[i] = colours[tiles[i]];
    this.pairs?.hollow(this.layers, tiles, (tile) => mix(this.background, colours[tile], HOLLOW), { across, down, count });
    this.layers.put();
    this.drawMarks();
    this.host.dataset.frameMs = (performance.now() - begun).toFixed(2);
  }

  /** The pixel colour of every tile, the last entry for where there is none; what is not selected is faint. */
  private colours(): Uint32Array {
    this.background = pixel(themeColour("--canvas"));
    const palette = Uint32Array.from(this.mode.palette, pixel);
    const value = (this.columns as Readonly<Record<string, Column>>)[this.mode.column];
    const colours = new Uint32Array(this.count + 1);
    colours[this.count] = this.background;
    const { sel, tiles } = this.isLinked ? state.get() : {};
    this.chosen = sel;
    const belongs = raster.isShown(sel, tiles, this.columns);
    if (!belongs) {
      for (let tile = 0; tile < this.count; tile++) colours[tile] = palette[value[tile]];
      return colours;
    }
    const faint = palette.map((colour) => mix(this.background, colour, FAINT));
    for (let tile = 0; tile < this.count; tile++) colours[tile] = (belongs(tile) ? palette : faint)[value[tile]];
    return colours;
  }

  private toX(token: number): number {
    const { left, width } = this.layers.area;
    return left + ((token - this.across.start) / this.across.span) * width;
  }

  private toY(token: number): number { return ((token - this.down.start) / this.down.span) * this.layers.area.height; }

  drawMarks(): void {
    const pen = this.layers.pen();
    const { left, width, height } = this.layers.area;
    this.drawOwners(pen);
    pen.fillStyle = themeColour("--muted");
    pen.globalAlpha = 0.5;
    let [lastX, lastY] = [left, 0];
    for (const border of this.header.cu_seqlens.slice(1, -1)) { // of borders that would run together, the first
      const [x, y] = [this.toX(border), this.toY(border)];
      if (x > lastX + APART && x < left + width) { dashed(pen, x, 0, 0, height); lastX = x; }
      if (y > lastY + APART && y < height) { dashed(pen, left, y, width, 0); lastY = y; }
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = themeColour("--line");
    pen.lineWidth = 1;
    pen.strokeRect(left - 0.5, 0.5, width, height - 1);
    this.drawAxes(pen);
    this.drawNames(pen);
    const tile = this.chosen?.type === "tile" ? this.chosen.tile : undefined;
    if (tile !== undefined && tile < this.count && this.isShown(tile)) this.drawChosen(pen, this.boxOf(tile));
  }

  /** A frame that can be seen around the smallest tile, and lines to both axes. */
  private drawChosen(pen: Pen, { x, y, width, height }: Box): void {
    const { left, width: right, height: bottom } = this.layers.area;
    pen.strokeStyle = themeColour("--ink");
    pen.lineWidth = 2;
    const [w, h] = [Math.max(5, width), Math.max(5, height)];
    pen.strokeRect(x + (width - w) / 2 - 1, y + (height - h) / 2 - 1, w + 2, h + 2);
    pen.fillStyle = themeColour("--ink");
    pen.globalAlpha = 0.35;
    pen.fillRect(left, y + height / 2, Math.max(0, x - left - 2), 1);
    pen.fillRect(x + width / 2, y + height + 3, 1, Math.max(0, bottom - y - height - 3));
    pen.fillRect(x + width + 3, y + height / 2, Math.max(0, left + right - x - width - 3), 1);
    pen.globalAlpha = 1;
  }

  private drawOwners(pen: Pen): void {
    const { block_start: start, block_end: end, block_owner: owner } = this.columns;
    const { left, width, height } = this.layers.area;
    const [x0, x1] = raster.spans(start, end, this.across, width);
    const [y0, y1] = raster.spans(start, end, this.down, height);
    for (let block = 0; block < owner.length; block++) {
      pen.fillStyle = this.header.device_colours[owner[block]];
      if (x0[block] < x1[block]) pen.fillRect(left + x0[block], height + GAP, x1[block] - x0[block], STRIP);
      if (y0[block] < y1[block]) pen.fillRect(left - GAP - STRIP, y0[block], STRIP, y1[block] - y0[block]);
    }
  }

  private drawAxes(pen: Pen): void {
    const { left, width, height } = this.layers.area;
    pen.fillStyle = themeColour("--muted");
    pen.textAlign = "center";
    const across = ticks(this.across.start, this.across.end, width / 110);
    for (const token of across.values) {
      const x = this.toX(token);
      if (x + 44 < left + width) pen.fillText(tokens(token, across.step), Math.max(x, left + 4), height + BOTTOM - NAMES - 8);
    }
    pen.textAlign = "right";
    pen.fillText("keys", left + width, height + BOTTOM - NAMES - 8);
    pen.textBaseline = "middle";
    const down = ticks(this.down.start, this.down.end, height / 80);
    for (const token of down.values) {
      const y = this.toY(token);
      if (y < height - 24) pen.fillText(tokens(token, down.step), left - GAP - STRIP - 4, Math.max(y, 6));
    }
    pen.fillText("queries", left - GAP - STRIP - 4, height - 6);
  }

  private drawNames(pen: Pen): void {
    const { left, width, height } = this.layers.area;
    const draw = (range: AxisRange, size: number, x: number, y: number, turn: number): void => {
      const { start, end, span } = range;
      for (const { sequence, text, at } of edgeLabels(this.header.cu_seqlens, this.header.sequence_names, { start, end, span, size }, (words) => pen.measureText(words).width)) {
        pen.save();
        pen.fillStyle = themeColour(this.chosen?.sequence === sequence ? "--ink" : "--muted");
        pen.translate(turn ? x : x + at, turn ? y + at : y);
        pen.rotate(turn);
        pen.fillText(text, 0, 0);
        pen.restore();
      }
    };
    pen.textAlign = "center";
    draw(this.across, width, left, height + BOTTOM - NAMES / 2, 0);
    draw(this.down, height, NAMES / 2, 0, -Math.PI / 2);
  }

  private boxOf(tile: number): Box {
    const { block_start: start, block_end: end, tile_q: rows, tile_kv: cols } = this.columns;
    const { left, width, height } = this.layers.area;
    const [x, right] = [start, end].map((edge) => Math.max(left, Math.min(left + width, this.toX(edge[cols[tile]]))));
    const [y, bottom] = [start, end].map((edge) => Math.max(0, Math.min(height, this.toY(edge[rows[tile]]))));
    return { x, y, width: right - x, height: bottom - y };
  }

  /** The tile under the pointer, or undefined. */
  private tileAt(event: MouseEvent): number | undefined {
    const [x, y] = this.point(event);
    const { left, width, height } = this.layers.area;
    if (x < left || x >= left + width || y < 0 || y >= height) return undefined;
    const { width: columns, height: rows } = this.layers.pixels;
    const column = Math.min(columns - 1, Math.floor(((x - left) / width) * columns));
    const tile = this.tiles[Math.min(rows - 1, Math.floor((y / height) * rows)) * columns + column];
    return tile < this.count ? tile : undefined;
  }

  /** The sequence whose edge is under the pointer, -1 if none is. */
  private sequenceAt(event: MouseEvent): number {
    const [x, y] = this.point(event);
    const { left, width, height } = this.layers.area;
    const { across, down, header: { cu_seqlens: borders } } = this;
    if (x < left && y < height) return sequenceAt(borders, down.start + (y / height) * down.span);
    if (x >= left && x < left + width && y >= height) return sequenceAt(borders, across.start + ((x - left) / width) * across.span);
    return -1;
  }

  protected override under(event: MouseEvent): Hovered | null {
    const tile = this.tileAt(event);
    return tile === undefined ? null : { id: tile, lines: () => this.describe(tile), box: () => this.boxOf(tile) };
  }

  protected override click(event: MouseEvent): void {
    if (!this.isLinked) return;
    const [tile, sequence] = [this.tileAt(event), this.sequenceAt(event)];
    if (tile !== undefined) toggleSelection(tileFacts(this.columns, tile));
    else if (sequence >= 0) toggleSelection({ type: "sequence", sequence });
    else state.set({ sel: null });
  }

  /** Arrows move the selected tile, Enter zooms to it; without one Enter selects the middle one. */
  protected override key(event: KeyboardEvent): boolean { return this.isLinked && !event.shiftKey && handleKey(this, event.key); }

  protected describe(tile: number): string[] {
    const c = this.columns;
    const [q, kv] = [c.tile_q[tile], c.tile_kv[tile]];
    const owned = (block: number) => `${format.count(c.block_start[block])} to ${format.count(c.block_end[block] - 1)}, `
      + `owned by device ${c.block_owner[block]}`;
    const sequence = c.block_sequence[q];
    const name = this.header.sequence_names[sequence];
    return [
      `Tile ${q} × ${kv} on device ${c.tile_device[tile]}${groups.words(this, tile)}`,
      `${format.count(c.tile_pairs[tile])} pairs, ${kindOf(c, tile)}`,
      `sequence ${sequence}${name ? `, ${name}` : ""}`,
      `division ${c.tile_division[tile]}, backward ${c.tile_backward_division[tile]}`,
      `queries ${owned(q)}`,
      `keys ${owned(kv)}`,
    ];
  }
}

/** Thousands once the ticks are thousands apart; every label of an axis alike. */
function tokens(count: number, step: number): string {
  return count >= 10000 && step >= 1000 ? `${format.digits(count / 1000)}k` : format.count(count);
}

function dashed(pen: Pen, x: number, y: number, width: number, height: number): void {
  const length = Math.max(width, height);
  for (let at = 0; at < length; at += 6) {
    pen.fillRect(Math.round(x + (width ? at : 0)), Math.round(y + (height ? at : 0)), width ? 3 : 1, height ? 3 : 1);
  }
}
