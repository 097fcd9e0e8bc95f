// A picture on a canvas that one zooms, pans, points at and walks through with keys: mask, timeline and traffic are such.
import type { AxisRange } from "./axis.ts";
import { hasModifier } from "./dom.ts";
import { type Box, Layers, Tooltip } from "./layers.ts";

/** A place in the picture, in shares of its width and height. */
export type Place = [across: number, down: number];

/** The thing under the pointer: `id` tells it from other things, `lines` say it, `box` frames it. */
export interface Hovered { id: string | number; lines: () => readonly string[]; box: () => Box | null }

type Change = (range: AxisRange, axis: number) => void;

const STILL = 4; // CSS pixels that a hand moves during a click
const zoomBy = (factor: number): Change => (range) => range.zoom(factor, 0.5);
const panAlong = (axis: number, by: number): Change => (range, along) => { if (along === axis) range.pan(by); };
const KEYS: Readonly<Record<string, Change>> = {
  "0": (range) => range.reset(),
  Escape: (range) => range.reset(),
  "+": zoomBy(0.7), "=": zoomBy(0.7), w: zoomBy(0.7),
  "-": zoomBy(1 / 0.7), s: zoomBy(1 / 0.7),
  a: panAlong(0, -0.15), ArrowLeft: panAlong(0, -0.15),
  d: panAlong(0, 0.15), ArrowRight: panAlong(0, 0.15),
  ArrowUp: panAlong(1, -0.15),
  ArrowDown: panAlong(1, 0.15),
};

export abstract class CanvasView {
  readonly host: HTMLElement;
  readonly layers: Layers;
  private readonly tooltip: Tooltip;
  private hovered: { id: Hovered["id"]; lines: readonly string[] } | null = null;
  private frame = 0;

  constructor(host: HTMLElement, label: string) {
    this.host = host;
    this.layers = new Layers(host, label);
    this.tooltip = new Tooltip(host);
  }

  abstract redraw(): void;

  /** After a change of the theme. */
  recolour(): void { this.redraw(); }

  /** Sizes and draws anew; called by whoever mounts the view. */
  abstract resize(): void;

  /** The thing under the pointer. */
  protected abstract under(event: MouseEvent): Hovered | null;

  protected abstract click(event: MouseEvent): void;

  /** The ranges that wheel, drag and keys move, across and down; null where an axis stands still. */
  ranges(): (AxisRange | null)[] { return []; }

  /** After a range has changed. */
  moved(): void {}

  /** A key of this view alone; true: handled. */
  protected key(_event: KeyboardEvent): boolean { return false; }

  /** A wheel step of this view alone; true: handled. */
  protected wheel(_event: WheelEvent): boolean { return false; }

  /** Marks an area while shift is held; a view that can says so by `canMark`. */
  protected mark(_from: Place, _to: Place, _isDone: boolean): void {}

  protected readonly canMark: boolean = false;

  /** Follows the pointer and the keys from now on; the last thing a constructor does before it draws. */
  protected listen(): void {
    const target = this.layers.marks;
    target.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    target.addEventListener("dblclick", () => this.apply((range) => range.reset()));
    target.addEventListener("keydown", (event) => this.onKey(event));
    this.followPointer(target);
  }

  /** The pointer in CSS pixels of the host. */
  point(event: MouseEvent): [x: number, y: number] {
    const box = this.layers.marks.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  fractions(event: MouseEvent): Place {
    const [x, y] = this.point(event);
    const { left, top, width, height } = this.layers.area;
    const inside = (value: number) => Math.max(0, Math.min(1, value));
    return [inside((x - left) / width), inside((y - top) / height)];
  }

  /** A redraw at the next frame, however many things ask for it. */
  schedule(): void {
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.redraw(); });
  }

  /** Draws at once; a redraw that was scheduled would be the same. */
  protected unschedule(): void {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  leave(): void {
    if (!this.hovered) return;
    this.hovered = null;
    this.tooltip.hide();
    this.layers.outline(null);
  }

  private hover(event: MouseEvent): void {
    const found = this.under(event);
    if (!found) { this.leave(); return; }
    // Made once: the pointer moves on over the same thing.
    if (found.id !== this.hovered?.id) {
      this.hovered = { id: found.id, lines: found.lines() };
      this.layers.outline(found.box());
    }
    const [x, y] = this.point(event);
    this.tooltip.show(x, y, this.hovered.lines, this.layers);
  }

  private apply(change: Change): void {
    this.ranges().forEach((range, axis) => { if (range) change(range, axis); });
    this.schedule();
    this.moved();
  }

  private onWheel(event: WheelEvent): void {
    if (this.wheel(event)) { event.preventDefault(); return; }
    // Zooming out of the whole picture scrolls the page on.
    if (event.deltaY >= 0 && this.ranges().every((range) => !range || range.isWhole)) return;
    if (!this.ranges().length) return;
    event.preventDefault();
    const at = this.fractions(event);
    const factor = Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004);
    this.apply((range, axis) => range.zoom(factor, at[axis]));
    this.leave();
  }

  private onKey(event: KeyboardEvent): void {
    if (hasModifier(event)) return;
    if (this.key(event)) { event.preventDefault(); return; }
    const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action || !this.ranges().length) return;
    event.preventDefault();
    this.leave();
    this.apply(action);
  }

  // A press that stays within a few pixels is a click; one that goes on pans, or marks an area with shift held.
  private followPointer(target: HTMLElement): void {
    let press: { at: Place; from: Place; x: number; y: number; isMark: boolean; isFar: boolean } | null = null;
    let last: number | null = null; // browsers repeat the last movement after a change of the page
    target.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const at = this.fractions(event);
      press = { at, from: at, x: event.clientX, y: event.clientY, isMark: event.shiftKey && this.canMark, isFar: false };
      target.setPointerCapture(event.pointerId);
    });
    target.addEventListener("pointermove", (event) => {
      const place = event.clientX * 65536 + event.clientY;
      if (!press && place === last) return;
      last = place;
      if (!press) { this.hover(event); return; }
      if (Math.hypot(event.clientX - press.x, event.clientY - press.y) > STILL) press.isFar = true;
      if (!press.isFar) return;
      const at = this.fractions(event);
      const before = press.at;
      press.at = at;
      this.leave();
      if (press.isMark) this.mark(press.from, at, false);
      else this.apply((range, axis) => range.pan(before[axis] - at[axis]));
    });
    target.addEventListener("pointerup", (event) => {
      const done = press;
      press = null;
      if (done && !done.isFar) this.click(event);
      if (done?.isFar && done.isMark) this.mark(done.from, done.at, true);
    });
    target.addEventListener("pointercancel", () => { press = null; });
    target.addEventListener("pointerleave", () => { last = null; this.leave(); });
  }
}
