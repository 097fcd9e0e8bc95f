// Choosing things anywhere on a page: whatever carries `data-sel` (a selection as the URL writes it) selects on a
// click, with `data-time` also the range of the timeline; Esc clears; rows of tables follow.
import { closest, hasDialog, isPlainClick, isTyping } from "../kit/dom.ts";
import { decodeSelection, type Patch, same, type Selection, state } from "../state.ts";

const LEAST_MARGIN = 50; // ns before and after what a link shows

/** Selects, or clears when it is selected already. */
export function toggleSelection(sel: Selection): void {
  state.set({ sel: same(state.get().sel, sel) ? null : sel });
}

/** The devices that a selection names: the one it is about, and the other end of a message. */
export function devicesOf(sel: Selection | undefined): number[] {
  return [sel?.device, sel?.peer].filter((device) => device !== undefined);
}

/** "3,17" -> the devices that stay at the top, in the order in which they were pinned. */
export function pinned(pins: string | undefined, devices: number): Set<number> {
  return new Set((pins ?? "").split(",").filter(Boolean).map(Number).filter((device) => Number.isInteger(device) && device >= 0 && device < devices));
}

/** Pins a device to the top, or lets it go. */
export function togglePin(device: number): void {
  const pins = pinned(state.get().pins, Infinity);
  if (!pins.delete(device)) pins.add(device);
  state.set({ pins: [...pins].join(",") || null });
}

/** The changes of a link: the thing it names, and the time around it with some of what is before and after. */
function patchOf({ dataset: { sel, time = "", source } }: HTMLElement): Patch {
  const patch: { -readonly [K in keyof Patch]: Patch[K] } = {};
  if (sel) patch.sel = decodeSelection(sel);
  const [start, end, ...rest] = time.split("-").map(Number);
  if (!time || start === undefined || end === undefined || rest.length || !Number.isFinite(start + end)) return patch;
  const margin = Math.max(LEAST_MARGIN, (end - start) * 0.4);
  patch.time = [Math.max(0, start - margin), end + margin];
  const shown = document.getElementById("timelines")?.dataset.show ?? state.get().source;
  if (source && shown && shown !== "both") patch.source = source;
  return patch;
}

export function followSelections(): void {
  document.addEventListener("click", (event) => {
    const link = closest(event, "[data-sel]");
    if (!link || !isPlainClick(event)) return;
    event.preventDefault();
    state.set(patchOf(link));
    const { time, jump } = link.dataset;
    if (time && jump) document.querySelector(jump)?.scrollIntoView({ block: "nearest" });
  });
  // The first Esc clears the selection; with nothing selected it is the canvas's own.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || isTyping(event) || hasDialog() || !state.get().sel) return;
    event.preventDefault();
    event.stopPropagation();
    state.set({ sel: null });
  }, true);
}

/** A table whose rows carry `data-device`. */
export class DeviceTable {
  readonly dispose: () => void;
  private readonly host: HTMLElement;
  private frame = 0;

  constructor(host: HTMLElement) {
    this.host = host;
    this.pin();
    this.mark();
    this.dispose = state.follow((_, changed) => {
      if (changed.has("pins")) this.pin();
      if (changed.has("sel")) this.mark();
    });
  }

  /** Pinned devices come first and stay there while the others scroll. */
  private pin(): void {
    const rows = [...this.host.querySelectorAll<HTMLElement>("tr[data-device]")];
    const pins = [...pinned(state.get().pins, rows.length)];
    if (!pins.length && !this.host.querySelector(".dcp-pinned")) return;
    const place = ({ dataset: { device } }: HTMLElement): number => {
      const at = pins.indexOf(Number(device));
      return at < 0 ? pins.length + Number(device) : at;
    };
    rows.sort((a, b) => place(a) - place(b));
    rows[0]?.parentElement?.append(...rows);
    let top = this.host.querySelector("thead")?.offsetHeight ?? 0;
    rows.forEach((row, at) => {
      row.classList.toggle("dcp-pinned", at < pins.length);
      if (at >= pins.length) return;
      row.style.setProperty("--top", `${top}px`);
      top += row.offsetHeight;
    });
  }

  private mark(): void {
    for (const row of this.host.querySelectorAll("tr[aria-selected=true]")) row.removeAttribute("aria-selected");
    for (const device of devicesOf(state.get().sel)) {
      this.host.querySelector(`tr[data-device="${device}"]`)?.setAttribute("aria-selected", "true");
    }
    // Sizes are read when the frame has been laid out anyway.
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => setTimeout(() => this.reveal()));
  }

  private reveal(): void {
    const row = this.host.querySelector<HTMLElement>("tr[aria-selected=true]");
    if (!row) return;
    const { scrollTop, clientHeight } = this.host;
    if (row.offsetTop < scrollTop || row.offsetTop > scrollTop + clientHeight - 40) {
      this.host.scrollTop = row.offsetTop - clientHeight / 2;
    }
  }
}
