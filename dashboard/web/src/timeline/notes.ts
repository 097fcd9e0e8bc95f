// Notes that a reader leaves at a moment, at a device, or at both. They live in the address alone, so that a reload and
// a shared link show them; they are few and short, and stand on the page as text, never as markup.
import { button, make, part } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { state } from "../state.ts";
import { eventOf } from "./selection.ts";
import type { TimelineView, Tool } from "./view.ts";

/** A note: `time` in ns after the first event. */
export interface Note { readonly time?: number; readonly device?: number; readonly text: string }

export const MOST_NOTES = 8;
export const MOST_LETTERS = 140; // of a note
const FLAG = 14; // CSS pixels

const whole = (text: string): number | undefined => (/^\d{1,15}$/.test(text) ? Number(text) : undefined);
const plain = (text: string): string => text.replace(/\s+/g, " ").trim().slice(0, MOST_LETTERS);

/** "1200,3,late\n,5,busy" -> notes: a moment, a device and a text each; lines that say no text or no place are left out. */
export function readNotes(text: string | undefined): Note[] {
  return (text ?? "").split("\n").slice(0, MOST_NOTES).flatMap((line) => {
    const [time = "", device = "", ...rest] = line.split(",");
    const note = { time: whole(time), device: whole(device), text: plain(rest.join(",")) };
    if (!note.text || (note.time === undefined && note.device === undefined)) return [];
    return [{ text: note.text, ...(note.time !== undefined && { time: note.time }), ...(note.device !== undefined && { device: note.device }) }];
  });
}

export function writeNotes(notes: readonly Note[]): string | null {
  return notes.slice(0, MOST_NOTES).map(({ time, device, text }) => `${time ?? ""},${device ?? ""},${plain(text)}`).join("\n") || null;
}

function placeText({ time, device }: Omit<Note, "text">): string {
  const parts = [device === undefined ? "" : `device ${device}`, time === undefined ? "" : `at ${format.duration(time)}`];
  return parts.filter(Boolean).join(" ");
}

/** A numbered flag for every note: in the row of its device, or at the top. */
export function drawNotes(timeline: TimelineView, pen: CanvasRenderingContext2D): void {
  const { area: { left, top, width } } = timeline.layers;
  readNotes(timeline.state.notes).forEach(({ time, device }, n) => {
    const share = time === undefined ? 0 : (time - timeline.time.start) / timeline.time.span;
    const row = device === undefined ? undefined : timeline.rowOf(0, device);
    if (share < 0 || share > 1 || (device !== undefined && !row)) return;
    const [x, y] = [left + share * width, top + (row ? timeline.topOf(row) : 0)];
    pen.fillStyle = timeline.ink;
    pen.fillRect(Math.min(x, left + width - 1), y, 1, row ? row.height : timeline.layers.area.height);
    const start = Math.min(x, left + width - FLAG);
    pen.fillRect(start, y, FLAG, FLAG);
    pen.fillStyle = timeline.paper;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(String(n + 1), start + FLAG / 2, y + FLAG / 2 + 0.5);
  });
}

/** The list of notes beside the timeline, and where one writes another. */
export class Notes implements Tool {
  readonly dispose: () => void;
  private readonly timeline: TimelineView;
  private readonly list = make("ol", { className: "dcp-notes" });
  private readonly text = make("input", { type: "text", className: "dcp-input", maxLength: MOST_LETTERS, "aria-label": "Text of the note" });
  private readonly add = make("button", { type: "submit", className: "dcp-toggle" }, "Add note");
  private readonly where = make("p", { className: "dcp-muted" });

  constructor(page: HTMLElement, timeline: TimelineView) {
    this.timeline = timeline;
    const form = make("form", { onsubmit: (event: Event) => { event.preventDefault(); this.write(); } }, this.text, this.add);
    part(page, ".dcp-timeline-notes").replaceChildren(this.list, form, this.where);
    this.dispose = state.follow((_, changed) => { if (["notes", "sel", "time"].some((key) => changed.has(key as "notes"))) this.show(); });
    this.show();
  }

  /** The selected event's begin and device, the selected device, or the middle of what is shown. */
  private get place(): Omit<Note, "text"> {
    const { sel } = state.get();
    const { traces, time, devices } = this.timeline;
    for (const trace of traces) {
      const e = eventOf(sel, trace);
      if (e !== undefined) return { time: Math.round(trace.columns.start[e] * trace.unit), device: trace.columns.device[e] };
    }
    if (sel?.device !== undefined && sel.device < devices) return { device: sel.device };
    return { time: Math.round((time.start + time.end) / 2) };
  }

  private write(): void {
    const text = plain(this.text.value);
    if (!text) return;
    state.set({ notes: writeNotes([...readNotes(state.get().notes), { ...this.place, text }]) });
    this.text.value = "";
  }

  private show(): void {
    const notes = readNotes(state.get().notes);
    this.list.replaceChildren(...notes.map((note, n) => make("li", {},
      button(`${placeText(note)}: ${note.text}`, "dcp-link", () => this.visit(note)), " ",
      button("Remove", "dcp-quiet", () => state.set({ notes: writeNotes(notes.filter((_, at) => at !== n)) }), { "aria-label": `Remove note ${n + 1}` }))));
    const isFull = notes.length >= MOST_NOTES;
    this.add.disabled = this.text.disabled = isFull;
    this.where.textContent = isFull ? `The page address stores at most ${MOST_NOTES} notes: remove one first.` : `Position: ${placeText(this.place)}. The page address stores the note.`;
  }

  /** Selects the device of a note and brings its moment into the picture. */
  private visit({ time, device }: Note): void {
    const { span, full } = this.timeline.time;
    const start = Math.max(0, Math.min(full - span, (time ?? 0) - span / 2));
    state.set({
      ...(device !== undefined && { sel: { type: "device", device } as const }),
      ...(time !== undefined && !this.timeline.time.isWhole && { time: [start, start + span] }),
    });
  }
}
