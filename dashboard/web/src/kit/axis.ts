// An axis of a picture: the part of it that is shown, and its ticks.

/** A half-open range inside [0, full) that zooms around a point and never leaves it. */
export class AxisRange {
  full: number;
  smallest: number;
  start = 0;
  end = 0;

  constructor(full: number, smallest: number) {
    this.full = Math.max(full, 1e-9);
    this.smallest = Math.min(smallest, this.full);
    this.reset();
  }

  get span(): number { return this.end - this.start; }

  get isWhole(): boolean { return this.span >= this.full * (1 - 1e-9); }

  reset(): void { this.place(0, this.full); }

  zoom(factor: number, fraction: number): void {
    const fixed = this.start + this.span * fraction;
    const span = Math.min(this.full, Math.max(this.smallest, this.span * factor));
    this.place(fixed - span * fraction, span);
  }

  pan(fraction: number): void { this.place(this.start + this.span * fraction, this.span); }

  /** Shows [start, end) or as much of it as there is; nothing at all shows the whole. */
  show(range: readonly number[] | null | undefined): void {
    if (!range) { this.reset(); return; }
    const [start, end] = range as [number, number];
    const span = Math.min(this.full, Math.max(this.smallest, end - start));
    this.place((start + end) / 2 - span / 2, span);
  }

  place(start: number, span: number): void {
    this.start = Math.max(0, Math.min(this.full - span, start));
    this.end = this.start + span;
  }
}

export interface Ticks { step: number; values: number[] }

/** Steps of 1, 2 or 5 times a power of ten that put about `count` ticks on a range. */
export function ticks(start: number, end: number, count: number): Ticks {
  const raw = (end - start) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) ?? 10 * power;
  const values = [];
  for (let i = Math.ceil(start / step); i * step <= end; i++) values.push(i * step);
  return { step, values };
}
