// Bars per device, one row per quantity (compute, tokens, bytes, buffers, waits), all on one device axis. SVG: the
// theme colours it, it stays sharp in print, and a bar is marked without drawing anything anew.
import { button, closest, hasModifier, make } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { Tooltip } from "../kit/layers.ts";
import { devicesOf, toggleSelection } from "../page/selection.ts";
import { state } from "../state.ts";
import type { DevicesHeader, DevicesPayload, Quantity } from "./columns.ts";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 100;
const LABEL = 34; // CSS pixels that a number on the axis takes

export class DeviceBars {
  readonly dispose: () => void;
  private readonly host: HTMLElement;
  private readonly header: DevicesHeader;
  private readonly columns: DevicesPayload["columns"];
  private readonly size: number;
  private readonly bars: SVGElement[][];
  private readonly axis = make("div", { className: "dcp-bars-axis", "aria-hidden": "true" });
  private readonly tooltip: Tooltip;
  private chosen: readonly number[] = [];

  constructor(host: HTMLElement, { header, columns }: DevicesPayload, label: string) {
    this.host = host;
    this.header = header;
    this.columns = columns;
    this.size = header.num_devices;
    host.tabIndex = 0;
    host.setAttribute("role", "group");
    host.setAttribute("aria-label", `${label}: ${this.size} devices, ${header.rows.length} quantities. Arrows `
      + "select a device; the table of devices shows the numbers.");
    this.bars = header.rows.map((row) => this.addRow(row));
    host.append(this.axis);
    this.resize();
    this.tooltip = new Tooltip(host);
    host.classList.add("dcp-canvas-host");
    host.addEventListener("pointermove", (event) => this.hover(event));
    host.addEventListener("pointerleave", () => this.tooltip.hide());
    host.addEventListener("click", (event) => this.click(event));
    host.addEventListener("keydown", (event) => this.key(event));
    this.mark();
    this.dispose = state.follow((_, changed) => { if (changed.has("sel")) this.mark(); });
  }

  /** As many device numbers as fit, at steps of powers of two. */
  resize(): void {
    const room = Math.max(1, Math.floor(this.host.clientWidth / LABEL));
    let step = 1;
    while (this.size / step > room) step *= 2;
    const labels = [];
    for (let device = 0; device < this.size; device += step) {
      const label = make("span", {}, String(device));
      label.style.left = `${((device + 0.5) / this.size) * 100}%`;
      labels.push(label);
    }
    this.axis.replaceChildren(...labels);
  }

  private addRow(row: Quantity): SVGElement[] {
    const values = this.columns[row.id];
    const most = Float64Array.from(values).reduce((best, value, device) => (value > values[best] ? device : best), 0);
    const link = button(`device ${most}`, "dcp-link", () => {}, { tabIndex: -1, "data-sel": `device.${most}` });
    const claim = make("span", { className: "dcp-bars-claim" }, "max/mean ", make("strong", {}, format.ratio(row.ratio)), " · most on ", link,
      ` (${amount(values[most], row.unit)}) · mean ${amount(row.mean, row.unit)}`);
    const head = make("div", { className: "dcp-bars-head" }, make("span", { className: "dcp-bars-title", title: row.meaning }, row.label), claim);
    const svg = shape("svg", { viewBox: `0 0 ${this.size} ${HEIGHT}`, preserveAspectRatio: "none", class: "dcp-bars", "aria-hidden": "true" });
    const scale = HEIGHT / Math.max(values[most], 1e-12);
    for (const border of this.header.node_starts.slice(1, -1)) svg.append(line(border, border, 0, HEIGHT, "dcp-bars-node"));
    const bars = Array.from(values, (value, device) => shape("rect", {
      x: device + 0.1, width: 0.8, y: HEIGHT - value * scale, height: value * scale, class: `dcp-bar dcp-bar-${row.kind}`,
    }));
    svg.append(...bars, line(0, this.size, HEIGHT - row.mean * scale, HEIGHT - row.mean * scale, "dcp-bars-mean"));
    this.host.append(head, svg);
    return bars;
  }

  // Selected devices keep their colour, the others fade.
  private mark(): void {
    const chosen = devicesOf(state.get().sel);
    this.host.classList.toggle("dcp-has-chosen", chosen.length > 0);
    for (const device of this.chosen) for (const bars of this.bars) bars[device]?.classList.remove("dcp-chosen");
    for (const device of chosen) for (const bars of this.bars) bars[device]?.classList.add("dcp-chosen");
    this.chosen = chosen;
  }

  private deviceAt(event: MouseEvent): number | undefined {
    const box = closest(event, "svg.dcp-bars")?.getBoundingClientRect();
    const device = box ? Math.floor(((event.clientX - box.left) / box.width) * this.size) : -1;
    return device >= 0 && device < this.size ? device : undefined;
  }

  private hover(event: MouseEvent): void {
    const device = this.deviceAt(event);
    if (device === undefined) { this.tooltip.hide(); return; }
    const box = this.host.getBoundingClientRect();
    const lines = this.header.rows.map((row) => `${row.label}: ${amount(this.columns[row.id][device], row.unit)}`);
    this.tooltip.show(event.clientX - box.left, event.clientY - box.top, [`Device ${device}`, ...lines], box);
  }

  private click(event: MouseEvent): void {
    const device = this.deviceAt(event);
    if (device !== undefined) toggleSelection({ type: "device", device });
  }

  private key(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step || hasModifier(event) || event.target !== this.host) return;
    event.preventDefault();
    const now = state.get().sel?.device;
    state.set({ sel: { type: "device", device: now === undefined ? 0 : Math.max(0, Math.min(this.size - 1, now + step)) } });
  }
}

function amount(value: number, unit: Quantity["unit"]): string {
  if (unit === "bytes") return format.size(value);
  return unit === "seconds" ? format.duration(value * 1e9) : format.amount(value);
}

function shape(name: "svg" | "rect" | "line", values: Readonly<Record<string, string | number>>): SVGElement {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(values)) made.setAttribute(key, String(value));
  return made;
}

function line(x1: number, x2: number, y1: number, y2: number, className: string): SVGElement {
  return shape("line", { x1, x2, y1, y2, class: className, "vector-effect": "non-scaling-stroke" });
}
