// The timeline: per device a band of compute, with waits as a thin line in its gaps, one of sends, one of receives.
//
// It shows one or two traces, predicted and measured, on one time axis. This file holds what is shown and reacts;
// events.ts knows the events, layout.ts the rows, cover.ts makes pixels, marks.ts draws lines and texts, selection.ts
// what is selected.
import { loadEach } from "../api.ts";
import { AxisRange, type Ticks, ticks } from "../kit/axis.ts";
import { pixel, themeColour } from "../kit/colours.ts";
import { saveRow } from "../kit/export.ts";
import * as format from "../kit/format.ts";
import type { Box } from "../kit/layers.ts";
import { CanvasView, type Hovered, type Place as Share } from "../kit/view.ts";
import type { Facts } from "../page/facts.ts";
import { pinned } from "../page/selection.ts";
import { type Key, type Values, state } from "../state.ts";
import { addTrack, channelsOf, paintLine, type Shades, shadeTables } from "./cover.ts";
import {
  eventAt, type EventTable, phases, searchTest, subset, type TimelineHeader, type TimelinePayload, wholeTable,
} from "./events.ts";
import { BANDS, DRAWN, lanesAt, layoutRows, openNodes, openText, type Row, type Rows, Scroll, THIN } from "./layout.ts";
import * as marks from "./marks.ts";
import { CriticalPath } from "./path.ts";
import { brushTest, factsOf, fit, handleKey, reveal } from "./selection.ts";
import { GUTTER, NODES, type Place, type TimelineView, type Tool, type Trace } from "./view.ts";

const AXIS = 34;
const LEAST_HIGH = 14; // CSS pixels of a row where the page may grow
const ROOM = 576; // CSS pixels of all rows on the overview
const MOST_PINS = 8; // devices with rows at the top
const CLOSED_ROOM = 900; // and of the rows that make it show nodes instead
const DRAWN_KEYS: readonly Key[] = ["source", "kinds", "longer", "find", "open", "area"];

/** `data-url` may hold several addresses: predicted and measured under one axis. */
export function loadTimelines(host: HTMLElement, signal: AbortSignal): Promise<TimelinePayload[]> {
  return loadEach<TimelinePayload>(host.dataset.url ?? "", signal);
}

export class Timeline extends CanvasView implements TimelineView {
  readonly page: HTMLElement | null;
  readonly traces: readonly Trace[];
  readonly header: TimelineHeader;
  readonly devices: number;
  readonly nodeStarts: readonly number[];
  readonly nodes: number;
  readonly time: AxisRange;
  readonly scroll = new Scroll(1, 1);
  readonly path: CriticalPath;
  state: Values = state.get();
  pending: readonly number[] | null = null;
  facts: Facts["values"];
  open: ReadonlySet<number> = new Set<number>();
  layout: Rows = { rows: [], height: 1, total: 0, pinned: 0 };
  ticks: Ticks = { step: 1, values: [] };
  line = "";
  muted = "";
  ink = "";
  accent = "";
  paper = "";
  protected override readonly canMark: boolean = true;
  private background = 0;
  private shades: { bright: Shades; dim: Shades } = { bright: [], dim: [] };
  private isMoving = false;
  private readonly save = saveRow("timeline", this);
  private readonly tools: readonly Tool[];
  private readonly unfollow: () => void;
  private readonly onWindow = (): void => this.resize();
  private readonly onFacts = ({ detail }: CustomEvent<Facts>): void => { this.facts = detail.values; this.schedule(); };

  /** `tools` are made for a timeline that has a page of its own. */
  constructor(host: HTMLElement, payloads: readonly TimelinePayload[], label: string, tools: readonly (new (page: HTMLElement, timeline: TimelineView) => Tool)[] = []) {
    const page = host.closest<HTMLElement>(".dcp-timeline-page");
    const [{ header }] = payloads;
    const counted = payloads.reduce((sum, { columns }) => sum + columns.start.length, 0);
    super(host, `${label}: ${format.count(counted)} events of ${header.num_devices} devices. `
      + `${page ? "The table" : "The table of devices"} shows the same data as numbers.`);
    this.page = page;
    this.header = header;
    this.devices = header.num_devices;
    this.nodeStarts = header.node_starts;
    this.nodes = this.nodeStarts.length - 1;
    this.traces = payloads.map(traceOf);
    this.time = new AxisRange(Math.max(1, Number(host.dataset.until ?? header.longest_ns)), 20);
    this.time.show(this.state.time);
    this.filter();
    this.path = new CriticalPath(this, host);
    this.listen();
    this.unfollow = state.follow((values, changed) => this.follow(values, changed));
    document.addEventListener("dcp:facts", this.onFacts as EventListener);
    // Controls follow the state after this: what they count is up to date then. They say how much room is left.
    this.tools = page ? tools.map((Made) => new Made(page, this)) : [];
    this.resize();
    if (page) window.addEventListener("resize", this.onWindow);
    else host.after(this.save);
  }

  dispose(): void {
    this.unfollow();
    this.path.dispose();
    document.removeEventListener("dcp:facts", this.onFacts as EventListener);
    window.removeEventListener("resize", this.onWindow);
    this.save.remove();
    for (const tool of this.tools) tool.dispose();
  }

  get sources(): readonly Trace[] {
    const named = this.page ? this.traces.filter(({ header }) => header.source === this.state.source) : [];
    return named.length ? named : this.traces;
  }

  /** On its own page the canvas is as high as the window; elsewhere it takes what its rows need. */
  resize(): void {
    const { nodeStarts, page } = this;
    const width = Math.max(200, this.host.clientWidth);
    const above = page ? this.host.getBoundingClientRect().top + window.scrollY : 0;
    const room = page ? Math.max(320, window.innerHeight - above - AXIS - 28) : ROOM;
    const sources = this.sources.length;
    this.open = openNodes(page ? this.state.open : undefined, { nodeStarts, sources, room: page ? room : CLOSED_ROOM });
    const isMixed = this.open.size < this.nodes;
    const pins = [...pinned(this.state.pins, this.devices)].slice(0, MOST_PINS);
    this.layout = layoutRows({ nodeStarts, sources, room, open: this.open, least: page && !isMixed ? THIN : LEAST_HIGH, pins });
    const { total, pinned: fixed, height: step } = this.layout;
    const below = Math.max(4 * step, room - fixed);
    const whole = fixed ? below - (below % step) : below; // below pinned rows none is cut
    const rest = page ? Math.min(total - fixed, whole) : total - fixed;
    const height = fixed + rest;
    Object.assign(this.scroll, { full: total - fixed, smallest: rest, step: fixed ? step : 0 });
    this.scroll.place(Math.min(this.scroll.start, total - height), rest);
    const gutter = GUTTER + (this.nodes > 1 ? NODES : 0);
    this.layers.resize(width, height + AXIS + 1, { left: gutter, top: AXIS, width: width - gutter, height });
    this.recolour();
  }

  /** Theme colours may have changed: makes the tables from coverage to pixel anew. */
  override recolour(): void {
    [this.line, this.muted, this.ink, this.accent, this.paper] = ["--line", "--muted", "--ink", "--accent", "--panel"].map(themeColour);
    this.background = pixel(themeColour("--canvas"));
    this.shades = shadeTables(this.header.colours, this.background);
    this.redraw();
  }

  override ranges(): (AxisRange | null)[] { return [this.time, this.scroll.isWhole ? null : this.scroll]; }

  redraw(): void {
    const begun = performance.now();
    this.unschedule();
    const { pixels, buffer } = this.layers;
    buffer.fill(this.background);
    this.drawGrid();
    const cover = new Float64Array(pixels.width * 3);
    const isDim = this.traces.some(({ brush }) => brush);
    for (const row of this.rowsInView()) {
      const { shown, brush } = this.sources[row.source];
      for (const lane of DRAWN) {
        this.drawLane(row, lane, shown, isDim ? this.shades.dim : this.shades.bright, cover);
        if (brush) this.drawLane(row, lane, brush, this.shades.bright, cover);
      }
    }
    this.layers.put();
    this.drawMarks();
    this.host.dataset.frameMs = (performance.now() - begun).toFixed(2);
  }

  drawMarks(): void { marks.draw(this); }

  rowsInView(): readonly Row[] {
    const { rows, height, pinned: fixed } = this.layout;
    const first = Math.max(0, Math.floor((fixed + this.scroll.start) / height));
    return [...rows.slice(0, fixed / height), ...rows.slice(first, Math.ceil((fixed + this.scroll.end) / height))];
  }

  // Lines at the ticks lie under the events, so that they never cut one in two.
  private drawGrid(): void {
    const { pixels, buffer } = this.layers;
    const line = pixel(this.line);
    this.ticks = ticks(this.time.start, this.time.end, this.layers.area.width / 80);
    for (const ns of this.ticks.values) {
      const x = Math.round(((ns - this.time.start) / this.time.span) * pixels.width);
      for (let y = 0; x < pixels.width && y < pixels.height; y++) buffer[y * pixels.width + x] = line;
    }
  }

  // All pixel rows of a lane are alike: the first is coloured over what is there, the others copy it.
  private drawLane(row: Row, lane: number, table: EventTable, shades: Shades, cover: Float64Array): void {
    const { pixels: { width, height }, buffer } = this.layers;
    const { unit } = this.sources[row.source];
    const [top, bottom] = this.laneRows(row, lane);
    if (bottom <= 0 || top >= height) return;
    cover.fill(0, 0, width * channelsOf(lane));
    const [first, past] = row.devices;
    let any = false;
    for (let device = first; device < past; device++) {
      any = addTrack(table, device * 4 + lane, this.time.start / unit, this.time.end / unit, cover, width) || any;
    }
    if (!any) return;
    const y0 = Math.max(0, top);
    paintLine(buffer.subarray(y0 * width, (y0 + 1) * width), cover, width, lane, shades, past - first);
    for (let y = y0 + 1; y < Math.min(height, bottom); y++) buffer.copyWithin(y * width, y0 * width, (y0 + 1) * width);
  }

  topOf(row: Row): number { return row.isPinned ? row.y : row.y - this.scroll.start; }

  /** The row at a height below the axis. */
  private rowAt(y: number): Row {
    const { rows, height, pinned: fixed } = this.layout;
    const at = Math.floor((y < fixed ? y : y + this.scroll.start) / height);
    return rows[Math.max(0, Math.min(rows.length - 1, at))];
  }

  /** First and one-past-last pixel row of a lane, in device pixels of the canvas. */
  private laneRows(row: Row, lane: number): [top: number, bottom: number] {
    const [top, bottom] = BANDS[lane].map((share) => Math.round((this.topOf(row) + share * row.height) * this.layers.ratio));
    return [top, Math.max(top + 1, bottom)];
  }

  rowOf(source: number, device: number): Row | undefined {
    return this.layout.rows.find((row) => row.source === source && device >= row.devices[0] && device < row.devices[1]);
  }

  boxOf(trace: Trace, e: number): Box | null {
    const { left, top, width, height } = this.layers.area;
    const { device, lane, start, end } = trace.columns;
    const row = this.rowOf(this.sources.indexOf(trace), device[e]);
    if (!row || row.isNode) return null;
    const [y0, y1] = this.laneRows(row, lane[e]).map((y) => y / this.layers.ratio);
    if (y1 <= 0 || y0 >= height) return null;
    const toX = (t: number) => left + Math.max(0, Math.min(1, (t * trace.unit - this.time.start) / this.time.span)) * width;
    const x = toX(start[e]);
    return { x, y: top + y0, width: toX(end[e]) - x, height: y1 - y0 };
  }

  private at(event: MouseEvent): Place {
    const [x, y] = this.point(event);
    const { left, top, width, height } = this.layers.area;
    const found: Place = { isGutter: x < left, isNodes: x < left - GUTTER };
    if (y < top || y >= top + height || x >= left + width) return found;
    const row = this.rowAt(y - top);
    if (found.isGutter) return { ...found, row };
    const trace = this.sources[row.source];
    const time = this.time.start + ((x - left) / width) * this.time.span;
    if (row.isNode) return { ...found, row, trace, time };
    const { unit, shown } = trace;
    const tracks = lanesAt((y - top - this.topOf(row)) / row.height).map((lane) => row.devices[0] * 4 + lane);
    return { ...found, row, trace, time, event: eventAt(shown, tracks, time / unit, (2 / width) * (this.time.span / unit)) };
  }

  protected override under(event: MouseEvent): Hovered | null {
    const found = this.at(event);
    const { row, trace, event: e } = found;
    const lines = () => marks.describe(this, found);
    if (row && trace && e !== undefined) return { id: `${row.source} ${e}`, lines, box: () => this.boxOf(trace, e) };
    return row && (row.isNode || found.isNodes) ? { id: `row ${row.y}`, lines, box: () => null } : null;
  }

  protected override click(event: MouseEvent): void {
    const { row, trace, event: e, isGutter, isNodes } = this.at(event);
    if (trace && e !== undefined) this.select(trace, e);
    else if (row && (row.isNode || isNodes)) this.toggle(row.node);
    else if (row && isGutter) state.set({ sel: { type: "device", device: row.devices[0] } });
    else if (row) state.set({ sel: null });
  }

  select(trace: Trace, e: number): void { state.set({ sel: factsOf(trace, e) }); }

  toggle(node: number): void {
    if (!this.page) return;
    this.leave();
    const open = new Set(this.open);
    if (!open.delete(node)) open.add(node);
    state.set({ open: openText(open, this.nodes) });
  }

  protected override wheel(event: WheelEvent): boolean {
    if (!event.shiftKey || this.scroll.isWhole) return false;
    this.scroll.pan(Math.sign(event.deltaY || event.deltaX) * 0.15);
    this.schedule();
    return true;
  }

  protected override key(event: KeyboardEvent): boolean { return handleKey(this, event); }

  protected override mark(from: Share, to: Share, isDone: boolean): void {
    if (!this.page) return;
    this.pending = this.areaBetween(from, to);
    if (isDone) { state.set({ area: this.pending }); this.pending = null; }
    this.schedule();
  }

  /** [t0, t1, first device, last device] of two points in fractions of the picture. */
  private areaBetween(from: Share, to: Share): number[] {
    const times = [from[0], to[0]].map((share) => Math.round(this.time.start + share * this.time.span));
    const devices = [from[1], to[1]].flatMap((share) => {
      const [first, past] = this.rowAt(share * this.layers.area.height).devices;
      return [first, past - 1];
    });
    return [Math.min(...times), Math.max(...times), Math.min(...devices), Math.max(...devices)];
  }

  /** Takes over the settings of other views and of the page's tools. */
  private follow(values: Values, changed: ReadonlySet<Key>): void {
    this.state = values;
    if (changed.has("time") && !this.isMoving) {
      this.time.show(values.time);
      this.schedule();
    }
    const has = (...keys: Key[]) => keys.some((key) => changed.has(key));
    if (this.page && has("kinds", "longer", "find")) this.filter();
    if (has("sel")) this.brush();
    if (has("pins") || (this.page && has("open", "source"))) this.resize();
    if (has("path", "source", "view")) this.path.say();
    if (has("sel")) reveal(this);
    // Stepping goes along with the divisions here, where the timeline is all there is to see.
    if (this.page && has("sel") && !has("time") && values.sel?.type === "division") fit(this);
    if (has("sel", "path", "notes") || (this.page && has(...DRAWN_KEYS))) this.schedule();
  }

  override moved(): void {
    this.isMoving = true;
    state.set({ time: this.time.isWhole ? null : [this.time.start, this.time.end] });
    this.isMoving = false;
  }

  // Events that the filters leave, those that a search finds, and what the selection means among them.
  private filter(): void {
    const { kinds, longer, find } = this.page ? this.state : {};
    for (const trace of this.traces) {
      const { columns, header, all, unit } = trace;
      const isShown = kinds ? header.kinds.map((kind) => kinds.split(",").includes(kind)) : null;
      const least = Number(longer ?? 0) / unit;
      const keep = (e: number) => (!isShown || isShown[columns.kind[e]]) && columns.end[e] - columns.start[e] >= least;
      trace.shown = isShown || least ? subset(all, keep) : all;
      const test = find ? searchTest(find, columns, header.names) : null;
      trace.hits = test ? subset(trace.shown, test) : null;
    }
    this.brush();
  }

  private brush(): void {
    for (const trace of this.traces) {
      const test = brushTest(this.state.sel, trace);
      trace.brush = test ? subset(trace.shown, test) : null;
    }
  }
}

function traceOf({ header, columns }: TimelinePayload): Trace {
  const all = wholeTable(columns, header.num_devices);
  return { header, columns, unit: header.unit_ns, all, shown: all, brush: null, hits: null, phases: phases(columns) };
}
