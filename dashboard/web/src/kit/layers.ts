// The layers of a picture on a canvas: pixels, a pen for text and lines above them, an outline, a tooltip.
import { make } from "./dom.ts";
import { SvgPen } from "./svg_pen.ts";

export interface Box { x: number; y: number; width: number; height: number }
export interface Area { left: number; top: number; width: number; height: number }
export interface Size { width: number; height: number }

/** One tooltip per canvas; text only, one node for all its lines (the first is bold by style). It reads no sizes: where it opens is said in shares of itself. */
export class Tooltip {
  private readonly box: HTMLElement;
  private readonly text = document.createTextNode("");

  constructor(parent: HTMLElement) {
    this.box = make("div", { className: "dcp-tooltip", hidden: true }, this.text);
    parent.append(this.box);
  }

  /** `room` is the size of the parent: the tooltip opens towards where more of it is. */
  show(x: number, y: number, lines: readonly string[], room: Size): void {
    const text = lines.join("\n");
    if (this.text.data !== text) this.text.data = text;
    if (this.box.hidden) this.box.hidden = false;
    const along = (at: number, size: number) => (at > size / 2 ? `calc(${Math.round(at - 14)}px - 100%)` : `${Math.round(at + 14)}px`);
    this.box.style.transform = `translate(${along(x, room.width)}, ${along(y, room.height)})`;
  }

  hide(): void { this.box.hidden = true; }
}

/** A pixel canvas and, above it, a canvas for text and lines; both sharp on dense screens. */
export class Layers {
  readonly host: HTMLElement;
  readonly pixels = make("canvas", { className: "dcp-pixels" });
  readonly marks: HTMLCanvasElement;
  private readonly frame = make("div", { className: "dcp-outline", hidden: true });
  private readonly paper: CanvasRenderingContext2D;
  private readonly context: CanvasRenderingContext2D;
  private font = "";
  private image = new ImageData(1, 1);
  private recorder: SvgPen | null = null;
  ratio = 1;
  width = 0;
  height = 0;
  area: Area = { left: 0, top: 0, width: 0, height: 0 };
  buffer = new Uint32Array(1);

  constructor(host: HTMLElement, label: string) {
    host.classList.add("dcp-canvas-host");
    this.host = host;
    this.marks = make("canvas", { className: "dcp-marks", tabIndex: 0, role: "img", "aria-label": label });
    this.paper = contextOf(this.pixels);
    this.context = contextOf(this.marks);
    host.append(this.pixels, this.marks, this.frame);
  }

  /** Sizes both layers; `area` is the rectangle of the pixel canvas in CSS pixels. */
  resize(width: number, height: number, area: Area): void {
    Object.assign(this, { width, height, area });
    this.ratio = window.devicePixelRatio || 1;
    this.font = `11px ${getComputedStyle(this.host).fontFamily}`;
    this.host.style.height = `${height}px`;
    sizeCanvas(this.marks, width, height, this.ratio);
    sizeCanvas(this.pixels, area.width, area.height, this.ratio);
    Object.assign(this.pixels.style, { left: `${area.left}px`, top: `${area.top}px` });
    this.image = new ImageData(this.pixels.width, this.pixels.height);
    this.buffer = new Uint32Array(this.image.data.buffer);
  }

  /** A frame around what is hovered, an element so that hovering draws nothing; null takes it away. */
  outline(box: Box | null): void {
    this.frame.hidden = !box;
    if (!box) return;
    this.frame.style.transform = `translate(${box.x - 1}px, ${box.y - 1}px)`;
    this.frame.style.width = `${Math.max(2, box.width) + 2}px`;
    this.frame.style.height = `${Math.max(2, box.height) + 2}px`;
  }

  /** What `draw` draws on the marks, as elements of an SVG; the canvas stays as it is. */
  record(draw: () => void): SvgPen {
    const pen = new SvgPen(contextOf(make("canvas")));
    pen.font = this.font;
    this.recorder = pen;
    try { draw(); } finally { this.recorder = null; }
    return pen;
  }

  put(): void { this.paper.putImageData(this.image, 0, 0); }

  /** The 2D context of the marks, cleared, in CSS pixels; texts stand on their line, from the left. */
  pen(): CanvasRenderingContext2D {
    if (this.recorder) return this.recorder as unknown as CanvasRenderingContext2D;
    const { context } = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.marks.width, this.marks.height);
    Object.assign(context, { font: this.font, textAlign: "left", textBaseline: "alphabetic" });
    return context;
  }
}

/** Sets the pixels of a canvas and its size on the page, in CSS pixels. */
export function sizeCanvas(canvas: HTMLCanvasElement, width: number, height: number, ratio: number): void {
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

export function contextOf(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser gives no 2D canvas: it may have too many of them open");
  return context;
}
