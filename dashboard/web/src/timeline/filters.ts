// The row of controls above the timeline: which traces and kinds, how long at least, search, table, exports. All of it
// is in the state; a control sets it and follows it.
import { button, hasDialog, hasModifier, isTyping, make, part, swatch } from "../kit/dom.ts";
import { saveButtons } from "../kit/export.ts";
import * as format from "../kit/format.ts";
import { type Key, state } from "../state.ts";
import { isOrder } from "./event_table.ts";
import { idOf } from "./events.ts";
import { nodeOf } from "./layout.ts";
import { show } from "./selection.ts";
import type { TimelineView, Trace } from "./view.ts";

const LABELS: Readonly<Record<string, string>> = { simulated: "Predicted", measured: "Measured", both: "Both" };
const SHOWN_ANEW: readonly Key[] = ["find", "kinds", "longer", "source"];

/** "1.5 ms", "20us", "300" (µs) -> ns; 0 for nothing, NaN for anything else. */
export function parseDuration(text: string): number {
  if (!text.trim()) return 0;
  const [, value, unit = ""] = /^\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|μs|ms|s|)\s*$/i.exec(text) ?? [];
  const factors: Readonly<Record<string, number>> = { ns: 1, ms: 1e6, s: 1e9 };
  return Math.round(Number(value) * (factors[unit.toLowerCase()] ?? 1e3));
}

function group(label: string, ...children: (Node | string)[]): HTMLElement {
  return make("div", { className: "dcp-tool-group", role: "group", "aria-label": label }, ...children);
}

const downloads = (text: string, title: string): HTMLAnchorElement => make("a", { className: "dcp-toggle", title, download: "" }, text);

export class Filters {
  private readonly timeline: TimelineView;
  private readonly address: string;
  private readonly sources: ReadonlyMap<string, HTMLElement>;
  private readonly kinds: ReadonlyMap<string, HTMLElement>;
  private readonly longer = make("input", { type: "text", className: "dcp-input dcp-input-short", placeholder: "any", "aria-label": "Shortest duration to show" });
  private readonly find = make("input", {
    type: "search", className: "dcp-input", placeholder: "/ search: gpu 17, division 3", "aria-label": "Search events",
  });
  private readonly found = make("output", { className: "dcp-found", "aria-live": "polite" });
  private readonly table = button("Table", "dcp-toggle", () => state.set({ view: state.get().view === "table" ? null : "table" }));
  private readonly csv = downloads("CSV", "Save the shown events as CSV");
  private readonly perfetto = downloads("Perfetto", "Save for ui.perfetto.dev");
  private readonly unfollow: () => void;
  private readonly onKey = (event: KeyboardEvent): void => this.key(event);
  private hit = -1;

  constructor(page: HTMLElement, timeline: TimelineView) {
    this.timeline = timeline;
    this.address = `/api/plan/${page.dataset.key}`;
    this.sources = this.sourceButtons();
    this.kinds = this.kindButtons();
    this.listen();
    const arrow = (text: string, by: number, label: string) => button(text, "dcp-toggle", () => this.step(by), { "aria-label": label });
    part(page, ".dcp-timeline-tools").prepend(
      group("Trace to show", ...this.sources.values()), group("Kinds to show", ...this.kinds.values()),
      group("Duration", make("label", { className: "dcp-tool-label" }, "at least ", this.longer)),
      group("Search", this.find, arrow("‹", -1, "Previous match"), arrow("›", 1, "Next match"), this.found),
      group("View", this.table), group("Export", this.csv, this.perfetto, ...saveButtons("timeline", timeline)),
    );
    this.unfollow = state.follow((_, changed) => this.show(changed));
    document.addEventListener("keydown", this.onKey);
    this.show(new Set(["find", "longer", "kinds", "source", "view", "order"]));
  }

  dispose(): void {
    this.unfollow();
    document.removeEventListener("keydown", this.onKey);
  }

  private sourceButtons(): Map<string, HTMLElement> {
    const names: string[] = this.timeline.traces.map(({ header }) => header.source);
    if (names.length > 1) names.push("both");
    return new Map(names.map((name) => [name, button(LABELS[name], "dcp-toggle", () => state.set({ source: name }))]));
  }

  private kindButtons(): Map<string, HTMLElement> {
    const { kinds, kind_names: names, colours } = this.timeline.header;
    return new Map(kinds.map((kind, i) => [kind, make("button", {
      type: "button", className: "dcp-toggle dcp-kind", title: `Show or hide ${names[i]}`, onclick: () => this.toggle(kind),
    }, swatch(colours[i]), names[i])]));
  }

  private listen(): void {
    this.longer.addEventListener("change", () => {
      const least = parseDuration(this.longer.value);
      this.longer.setAttribute("aria-invalid", String(Number.isNaN(least)));
      this.longer.title = Number.isNaN(least) ? "A duration such as 20 µs or 1.5 ms" : "";
      if (!Number.isNaN(least)) state.set({ longer: least ? String(least) : null });
    });
    this.find.addEventListener("input", () => { this.hit = -1; state.set({ find: this.find.value.trim() || null }); });
    this.find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { state.set({ find: null }); this.timeline.layers.marks.focus(); event.stopPropagation(); }
    });
  }

  private get shownKinds(): readonly string[] {
    return state.get().kinds?.split(",") ?? this.timeline.header.kinds;
  }

  private toggle(kind: string): void {
    const all = this.timeline.header.kinds;
    const shown = new Set(this.shownKinds);
    if (!shown.delete(kind)) shown.add(kind);
    const kept = all.filter((name) => shown.has(name));
    state.set({ kinds: kept.length === all.length ? null : kept.join(",") || "none" });
  }

  /** Hits of the shown traces one behind the other, by number. */
  private hitAt(number: number): { trace: Trace; e: number } | null {
    let rest = number;
    for (const trace of this.timeline.sources) {
      const size = trace.hits?.start.length ?? 0;
      if (trace.hits && rest < size) return { trace, e: idOf(trace.hits, rest) };
      rest -= size;
    }
    return null;
  }

  private get hits(): number { return this.timeline.sources.reduce((sum, { hits }) => sum + (hits?.start.length ?? 0), 0); }

  private step(by: number): void {
    const { hits } = this;
    if (!hits) return;
    this.hit = this.hit < 0 && by < 0 ? hits - 1 : (this.hit + by + hits) % hits;
    const found = this.hitAt(this.hit);
    if (!found) return;
    const node = nodeOf(this.timeline.nodeStarts, found.trace.columns.device[found.e]);
    if (!this.timeline.open.has(node)) this.timeline.toggle(node);
    show(this.timeline, found.trace, found.e);
    this.count();
  }

  private count(): void {
    this.found.textContent = state.get().find ? `${this.hit >= 0 ? format.count(this.hit + 1) : "–"}/${format.count(this.hits)}` : "";
  }

  /** Shows the state: pressed buttons, texts, addresses of exports. */
  private show(changed: ReadonlySet<Key>): void {
    const values = state.get();
    const [{ header }, other] = this.timeline.sources;
    const source = other ? "both" : header.source;
    for (const [name, shown] of this.sources) shown.setAttribute("aria-pressed", String(name === source));
    for (const [kind, shown] of this.kinds) shown.setAttribute("aria-pressed", String(this.shownKinds.includes(kind)));
    this.table.setAttribute("aria-pressed", String(values.view === "table"));
    if (changed.has("longer")) this.longer.value = values.longer ? format.duration(Number(values.longer)) : "";
    if (changed.has("find") && document.activeElement !== this.find) this.find.value = values.find ?? "";
    if (SHOWN_ANEW.some((key) => changed.has(key))) { this.hit = -1; this.count(); }
    const query = new URLSearchParams({ source });
    this.perfetto.href = `${this.address}/trace.pftrace?${query}`;
    for (const key of ["kinds", "longer", "find"] as const) if (values[key]) query.set(key, values[key]);
    if (values.order && isOrder(values.order)) query.set("sort", values.order);
    this.csv.href = `${this.address}/events.csv?${query}`;
  }

  // Wherever the focus is on this page, but in a text.
  private key(event: KeyboardEvent): void {
    if (hasModifier(event) || isTyping(event) || event.defaultPrevented || hasDialog()) return;
    if (event.key === "/") { event.preventDefault(); this.find.focus(); this.find.select(); }
    if (event.key === "n" || event.key === "N") this.step(event.key === "N" ? -1 : 1);
  }
}
