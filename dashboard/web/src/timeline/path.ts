// The critical path over the timeline: a line through the events that decided the end, and in words what it spends its
// time on; a click on a share selects the longest step of its kind.
import { loadColumns, type Payload } from "../api.ts";
import { themeColour } from "../kit/colours.ts";
import { button, isAbort, make } from "../kit/dom.ts";
import { word, type Word } from "../page/facts.ts";
import { type Source, state } from "../state.ts";
import { band, type Row } from "./layout.ts";
import type { TimelineView } from "./view.ts";

/** The payload "dcp.path/1" of dcp_dashboard/api/devices.py. */
type PathPayload = Payload<{ source: Source; shares: readonly Word[] }, "event" | "start" | "end">;

const WORDS: Readonly<Record<Source, string>> = { simulated: "Predicted critical path", measured: "Measured critical path" };
const FAINT = 0.35; // where something is selected, which is what the page is about then

/** The part of a step within a time, as shares of it; null if none is. */
export function within(from: number, to: number, start: number, end: number): [number, number] | null {
  if (to < start || from > end) return null;
  return [Math.max(0, (from - start) / (end - start)), Math.min(1, (to - start) / (end - start))];
}

export class CriticalPath {
  private readonly timeline: TimelineView;
  private readonly place: HTMLElement | null;
  private readonly asked = new AbortController();
  private paths: readonly PathPayload[] = [];

  constructor(timeline: TimelineView, host: HTMLElement) {
    this.timeline = timeline;
    this.place = host.parentElement?.querySelector<HTMLElement>(".dcp-path") ?? null;
    if (this.place && host.dataset.path) void this.load(host.dataset.path.split(" "));
  }

  dispose(): void { this.asked.abort(); }

  private async load(urls: readonly string[]): Promise<void> {
    try {
      this.paths = await Promise.all(urls.map((url) => loadColumns<PathPayload>(url, this.asked.signal)));
    } catch (error) {
      if (!isAbort(error)) this.place?.replaceChildren("The critical path cannot be shown.");
      return;
    }
    this.say();
    this.timeline.schedule();
  }

  /** Writes the shares of each path that is shown, with the button that hides the line. */
  say(): void {
    if (!this.paths.length || !this.place) return;
    this.place.hidden = state.get().view === "table";
    const isShown = state.get().path !== "off";
    const lines = this.shown().map(({ header: { source, shares } }) => make("p", { className: "dcp-hint" },
      make("span", { className: "dcp-path-line" }), button(WORDS[source], "dcp-link", () => state.set({ path: isShown ? "off" : null }), {
        "aria-pressed": String(isShown), title: "Show or hide the line of the critical path: the chain of events that determines the total time" }),
      ": ", ...shares.flatMap((share, at) => [at ? ", " : "", word(share)]), "."));
    this.place.replaceChildren(...lines);
  }

  private shown(): PathPayload[] {
    return this.timeline.sources.flatMap((trace) => this.paths.filter(({ header }) => header.source === trace.header.source));
  }

  /** One line through the middle of the lanes of its events; a step ends where the next one begins. */
  draw(pen: CanvasRenderingContext2D): void {
    if (state.get().path === "off") return;
    pen.globalAlpha = state.get().sel ? FAINT : 1;
    pen.lineJoin = "round";
    for (const { header, columns } of this.shown()) {
      this.trace(pen, this.timeline.sources.findIndex((trace) => trace.header.source === header.source), columns);
      for (const [colour, width] of [["--canvas", 5], ["--ink", 2]] as const) {
        pen.strokeStyle = themeColour(colour);
        pen.lineWidth = width;
        pen.stroke();
      }
    }
    pen.globalAlpha = 1;
    pen.lineWidth = 1;
  }

  private trace(pen: CanvasRenderingContext2D, source: number, columns: PathPayload["columns"]): void {
    const { layers: { area: { left, top, width } }, time } = this.timeline;
    const { device, lane } = this.timeline.sources[source].columns;
    const rows = new Map<number, Row>();
    for (const row of this.timeline.layout.rows) {
      // Pinned rows come first, and are always in sight.
      if (row.source === source) for (let at = row.devices[0]; at < row.devices[1]; at++) if (!rows.has(at)) rows.set(at, row);
    }
    let isBegun = false;
    pen.beginPath();
    for (let at = 0; at < columns.event.length; at++) {
      const event = columns.event[at];
      const [row, part] = [rows.get(device[event]), within(columns.start[at], columns.end[at], time.start, time.end)];
      if (!row || !part) continue;
      const [upper, lower] = band(row, lane[event]);
      const y = top + this.timeline.topOf(row) + (upper + lower) / 2;
      if (isBegun) pen.lineTo(left + part[0] * width, y);
      else pen.moveTo(left + part[0] * width, y);
      pen.lineTo(left + part[1] * width, y);
      isBegun = true;
    }
  }
}
