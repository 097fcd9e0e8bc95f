// What devices hold over time, below the timeline and under its axis: per device the own tensors, the working buffers,
// and the buffers of what it receives, filled and empty. The columns are those of "dcp.memory/1".
import { type Column, loadEach, type Payload } from "../api.ts";
import { AxisRange } from "../kit/axis.ts";
import { mix, pixel, themeColour } from "../kit/colours.ts";
import * as format from "../kit/format.ts";
import { CanvasView, type Hovered } from "../kit/view.ts";
import { devicesOf, pinned } from "../page/selection.ts";
import { type Source, type Values, state } from "../state.ts";
import { firstFrom } from "./events.ts";
import { GUTTER, NODES, WORDS } from "./view.ts";

export interface MemoryHeader {
  readonly source: Source;
  readonly num_devices: number;
  readonly unit_ns: number;
  readonly longest_ns: number;
  readonly limit_bytes: number;
}

type Name = "saved" | "forward" | "backward" | "buffers" | "began" | "ended" | "ptr" | "time" | "filled";
export type MemoryColumns = Readonly<Record<Name, Column>>;
export type MemoryPayload = Payload<MemoryHeader, Name>;

/** Bytes of one device at a time: held in all, own tensors, buffers of what is received, and what of them is filled. */
export interface Held { total: number; saved: number; buffers: number; filled: number }

interface Row { readonly payload: MemoryPayload; readonly device: number }

const ROW = 44; // CSS pixels
const GAP = 6;
const FOOT = 4;
const ALL = 8; // rows that show every device
const MOST = 4; // devices that are shown of more, beside those that are selected or pinned
const NEAR = 1.25; // a limit so near to what is held is a line

/** The most that a device holds between two times, in units of the payload. */
export function heldBetween({ header, columns }: MemoryPayload, device: number, from: number, to: number): Held {
  const { saved, buffers, began, ended, ptr, time, filled } = columns;
  const found: Held = { total: saved[device], saved: saved[device], buffers: 0, filled: 0 };
  (["forward", "backward"] as const).forEach((way, at) => {
    const place = at * header.num_devices + device;
    if (began[place] >= to || ended[place] <= from || columns[way][device] < found.total) return;
    found.total = columns[way][device];
    found.buffers = buffers[place];
  });
  let step = firstFrom(time, ptr[device], ptr[device + 1], Math.floor(from) + 1) - 1; // times are whole: the last step by then
  for (; step < ptr[device + 1] && time[step] < to; step++) if (step >= ptr[device]) found.filled = Math.max(found.filled, filled[step]);
  return found;
}

/** The most that a device ever holds. */
export function peakOf({ header, columns }: MemoryPayload, device: number): number {
  const isBusy = [0, 1].map((way) => columns.ended[way * header.num_devices + device] > columns.began[way * header.num_devices + device]);
  return Math.max(columns.saved[device], isBusy[0] ? columns.forward[device] : 0, isBusy[1] ? columns.backward[device] : 0);
}

/** The devices that have a row: all of few; of many the pinned ones, the selected ones, and those that hold most. */
export function shownDevices(payload: MemoryPayload, sources: number, { sel, pins }: Pick<Values, "sel" | "pins">): number[] {
  const devices = payload.header.num_devices;
  const first = [...pinned(pins, devices)];
  const all = Array.from({ length: devices }, (_, device) => device);
  if (devices * sources <= ALL) return [...new Set([...first, ...all])];
  const most = [...all].sort((a, b) => peakOf(payload, b) - peakOf(payload, a));
  return [...new Set([...first, ...devicesOf(sel).filter((device) => device < devices), ...most.slice(0, MOST)])];
}

/** The address may hold several: predicted and measured. They are asked for once the place comes into sight. */
export async function loadWhenSeen(host: HTMLElement, signal: AbortSignal): Promise<MemoryPayload[]> {
  await new Promise<void>((resolve) => {
    const seen = new IntersectionObserver((entries) => {
      if (entries.some(({ isIntersecting }) => isIntersecting)) { seen.disconnect(); resolve(); }
    }, { rootMargin: "120px" });
    seen.observe(host);
    signal.addEventListener("abort", () => { seen.disconnect(); resolve(); });
  });
  signal.throwIfAborted();
  return loadEach<MemoryPayload>(host.dataset.url ?? "", signal);
}

export class Memory extends CanvasView {
  readonly dispose: () => void;
  private readonly payloads: readonly MemoryPayload[];
  private readonly time: AxisRange;
  private readonly gutter: number;
  private rows: readonly Row[] = [];
  private isMoving = false;

  constructor(host: HTMLElement, payloads: readonly MemoryPayload[], label: string) {
    const [{ header }] = payloads;
    super(host, `${label}: what devices hold over time. The table of devices holds the size of their buffers.`);
    this.payloads = payloads;
    this.gutter = GUTTER + (host.dataset.nodes === "1" ? 0 : NODES);
    this.time = new AxisRange(Math.max(1, header.longest_ns), 20);
    this.time.show(state.get().time);
    this.listen();
    this.resize();
    this.dispose = state.follow((values, changed) => {
      if (changed.has("time") && !this.isMoving) { this.time.show(values.time); this.schedule(); }
      if ((["sel", "pins", "source"] as const).some((key) => changed.has(key))) this.resize();
    });
  }

  private get sources(): readonly MemoryPayload[] {
    const named = this.payloads.filter(({ header }) => header.source === state.get().source);
    return named.length ? named : this.payloads;
  }

  resize(): void {
    const { sources } = this;
    const devices = shownDevices(sources[0], sources.length, state.get());
    this.rows = devices.flatMap((device) => sources.map((payload) => ({ payload, device })));
    const width = Math.max(200, this.host.clientWidth);
    const height = this.rows.length * (ROW + GAP);
    this.layers.resize(width, height + FOOT, { left: this.gutter, top: 0, width: width - this.gutter, height });
    this.redraw();
  }

  override ranges(): (AxisRange | null)[] { return [this.time, null]; }

  override moved(): void {
    this.isMoving = true;
    state.set({ time: this.time.isWhole ? null : [this.time.start, this.time.end] });
    this.isMoving = false;
  }

  /** Bytes of a full row: the most that any device holds, or the limit if that is near. */
  private get scale(): number {
    const most = Math.max(1, ...this.sources.flatMap((payload) => Array.from({ length: payload.header.num_devices }, (_, device) => peakOf(payload, device))));
    const limit = this.payloads[0].header.limit_bytes;
    return limit <= most * NEAR ? Math.max(most, limit) * 1.02 : most;
  }

  redraw(): void {
    this.unschedule();
    const { buffer, pixels: { width }, ratio } = this.layers;
    const [ground, own, received] = ["--canvas", "--neutral", "--receive"].map((name) => pixel(themeColour(name)));
    buffer.fill(pixel(themeColour("--panel")));
    const colours = [own, mix(ground, own, 0.45), received, mix(ground, received, 0.3)];
    const { scale } = this;
    this.rows.forEach(({ payload, device }, n) => {
      const top = Math.round(n * (ROW + GAP) * ratio);
      const high = Math.round(ROW * ratio);
      const { unit_ns: unit } = payload.header;
      for (let x = 0; x < width; x++) {
        const from = (this.time.start + (x / width) * this.time.span) / unit;
        const held = heldBetween(payload, device, from, from + this.time.span / width / unit);
        const empty = Math.max(0, held.buffers - held.filled);
        const tops = [held.saved, held.total - held.buffers, held.total - empty, held.total].map((bytes) => top + high - Math.round((bytes / scale) * high));
        for (let y = top; y < top + high; y++) {
          const part = y >= tops[0] ? 0 : tops.findIndex((edge) => y >= edge);
          buffer[y * width + x] = part < 0 ? ground : colours[part];
        }
      }
    });
    this.layers.put();
    this.drawMarks();
  }

  private drawMarks(): void {
    const pen = this.layers.pen();
    const { font } = pen;
    const small = font.replace("11px", "10px"); // a size fits into the gutter
    const { left, width } = this.layers.area;
    const { scale } = this;
    const [muted, ink, bad, accent] = ["--muted", "--ink", "--bad", "--accent"].map(themeColour);
    const chosen = devicesOf(state.get().sel);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    this.rows.forEach(({ payload, device }, n) => {
      const y = n * (ROW + GAP);
      pen.fillStyle = ink;
      pen.fillText(`${this.sources.length > 1 ? `${WORDS[payload.header.source][0]} ` : ""}${device}`, left - 8, y + ROW / 2 - 8);
      pen.fillStyle = muted;
      pen.font = small;
      pen.fillText(format.size(peakOf(payload, device)), left - 3, y + ROW / 2 + 7);
      pen.font = font;
      pen.fillStyle = accent;
      if (chosen.includes(device)) pen.fillRect(left - 3, y, 3, ROW);
      const limit = y + ROW - (payload.header.limit_bytes / scale) * ROW;
      pen.fillStyle = bad;
      if (limit >= y) pen.fillRect(left, Math.round(limit), width, 1);
    });
  }

  protected override under(event: MouseEvent): Hovered | null {
    const [x, y] = this.point(event);
    const { left, width } = this.layers.area;
    const n = Math.floor(y / (ROW + GAP));
    const row = this.rows.at(n);
    if (n < 0 || !row || x < left || x >= left + width) return null;
    const { payload, device } = row;
    const time = this.time.start + ((x - left) / width) * this.time.span;
    const from = time / payload.header.unit_ns;
    const held = heldBetween(payload, device, from, from + this.time.span / width / payload.header.unit_ns);
    const lines = () => [`device ${device} holds ${format.size(held.total)}`, `${WORDS[payload.header.source]}, at ${format.duration(time)}`,
      `own tensors ${format.size(held.saved)}`, `working copies and sums ${format.size(held.total - held.saved - held.buffers)}`,
      `receive buffers ${format.size(held.buffers)}, ${format.size(held.filled)} filled`];
    return { id: `${n} ${Math.round(x)}`, lines, box: () => null };
  }

  protected override click(event: MouseEvent): void {
    const row = this.rows.at(Math.floor(this.point(event)[1] / (ROW + GAP)));
    if (row) state.set({ sel: { type: "device", device: row.device } });
  }
}
