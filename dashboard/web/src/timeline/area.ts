// Beside the timeline: sums over the marked area as a table.
import { button, make, part } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { state } from "../state.ts";
import { aggregate } from "./events.ts";
import { markShown } from "./selection.ts";
import { type TimelineView, type Trace, WORDS } from "./view.ts";

type Marked = readonly [t0: number, t1: number, first: number, last: number];

const HEAD = ["Kind", "Time", "Share", "Events", "Bytes", "Least", "Most"];

export class AreaSums {
  readonly dispose: () => void;
  private readonly timeline: TimelineView;
  private readonly slot: HTMLElement;

  constructor(page: HTMLElement, timeline: TimelineView) {
    this.timeline = timeline;
    this.slot = part(page, ".dcp-timeline-area");
    const keys = ["area", "kinds", "longer", "source"] as const;
    this.dispose = state.follow((_, changed) => { if (keys.some((key) => changed.has(key))) this.show(); });
    this.show();
  }

  private show(): void {
    const area = this.inside(state.get().area);
    if (!area) {
      const mark = button("Mark visible area", "dcp-toggle", () => markShown(this.timeline));
      this.slot.replaceChildren(make("p", { className: "dcp-muted" }, "Hold Shift and drag, or press m, to add up the events of an area. "), mark);
      return;
    }
    const [t0, t1, first, last] = area;
    const close = button("Unmark", "dcp-toggle", () => state.set({ area: null }));
    const where = first === last ? `device ${first}` : `devices ${first} to ${last}`;
    this.slot.replaceChildren(make("p", {}, `${format.duration(t1 - t0)} from ${format.duration(t0)}, ${where} `, close),
      ...this.timeline.sources.flatMap((trace) => this.table(trace, area)));
  }

  private inside(area: readonly number[] | undefined): Marked | null {
    if (!area) return null;
    const [t0, t1, first, last] = area;
    const most = this.timeline.devices - 1;
    return t1 > t0 && first <= last && first <= most ? [t0, t1, Math.max(0, first), Math.min(most, last)] : null;
  }

  /** Per kind: time over all devices and its share, events, bytes, and the least and most busy device. */
  private table({ header, shown, unit }: Trace, [t0, t1, first, last]: Marked): HTMLElement[] {
    const sums = aggregate(shown, header.kinds.length, t0 / unit, t1 / unit, first, last);
    const whole = (t1 - t0) * (last - first + 1);
    const cell = (text: string) => make("td", { className: "dcp-number" }, text);
    const rows = sums.flatMap(({ time, count, bytes, perDevice }, kind) => (count ? [make("tr", {},
      make("th", { scope: "row" }, header.kind_names[kind]), cell(format.duration(time * unit)), cell(`${format.digits((100 * time * unit) / whole)} %`),
      cell(format.count(count)), cell(bytes ? format.size(bytes) : ""),
      ...[Math.min, Math.max].map((pick) => extreme(perDevice, pick, first, unit)))] : []));
    const head = HEAD.map((text, i) => make("th", { scope: "col", className: i ? "dcp-number" : "" }, text));
    return [make("h3", {}, WORDS[header.source]), make("div", { className: "dcp-scroll", tabIndex: 0 },
      make("table", { className: "dcp-table dcp-area-table" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)))];
  }
}

/** The least or most of all devices; it names the device and a click selects that. */
function extreme(perDevice: Float64Array, pick: (...values: number[]) => number, first: number, unit: number): HTMLElement {
  const value = perDevice.reduce((one, other) => pick(one, other));
  const device = first + perDevice.indexOf(value);
  const select = () => state.set({ sel: { type: "device", device } });
  return make("td", { className: "dcp-number" }, button(format.duration(value * unit), "dcp-link", select, { title: `device ${device}` }));
}
