// A pen that keeps what it draws as elements of an SVG.

const ANCHORS: Readonly<Record<string, string>> = { left: "start", start: "start", center: "middle", right: "end", end: "end" };
const BASELINES: Readonly<Record<string, string>> = { middle: "central", alphabetic: "auto", top: "hanging", bottom: "auto" };

/** As much of a canvas's pen as the views draw with. `ruler` measures texts. */
export class SvgPen {
  fillStyle = "#000000";
  strokeStyle = "#000000";
  lineWidth = 1;
  lineJoin = "miter";
  globalAlpha = 1;
  textAlign = "start";
  textBaseline = "alphabetic";
  font = "";
  readonly parts: string[] = [];
  private path = "";
  private readonly saved: { state: Partial<SvgPen>; groups: number; moves: string }[] = [];
  private groups = 0;
  private clips = 0;
  private moves = "";

  private readonly ruler: CanvasRenderingContext2D;

  constructor(ruler: CanvasRenderingContext2D) {
    this.ruler = ruler;
    this.font = ruler.font;
  }

  measureText(text: string): TextMetrics {
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  save(): void {
    const { fillStyle, strokeStyle, lineWidth, lineJoin, globalAlpha, textAlign, textBaseline, font } = this;
    this.saved.push({ state: { fillStyle, strokeStyle, lineWidth, lineJoin, globalAlpha, textAlign, textBaseline, font }, groups: this.groups, moves: this.moves });
  }

  restore(): void {
    const before = this.saved.pop();
    if (!before) return;
    for (; this.groups > before.groups; this.groups--) this.parts.push("</g>");
    this.moves = before.moves;
    Object.assign(this, before.state);
  }

  translate(x: number, y: number): void { this.moves += `translate(${x} ${y}) `; }
  rotate(angle: number): void { this.moves += `rotate(${(angle * 180) / Math.PI}) `; }
  beginPath(): void { this.path = ""; }
  moveTo(x: number, y: number): void { this.path += `M${short(x)} ${short(y)}`; }
  lineTo(x: number, y: number): void { this.path += `L${short(x)} ${short(y)}`; }
  closePath(): void { this.path += "Z"; }
  rect(x: number, y: number, width: number, height: number): void { this.path += `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}Z`; }

  clip(): void {
    const name = `clip${this.clips++}`;
    this.parts.push(`<clipPath id="${name}"><path d="${this.path}"/></clipPath><g clip-path="url(#${name})">`);
    this.groups++;
  }

  fill(): void { this.add(`<path d="${this.path}"`, this.filled()); }
  stroke(): void { this.add(`<path d="${this.path}"`, this.stroked()); }
  fillRect(x: number, y: number, width: number, height: number): void { this.add(box(x, y, width, height), this.filled()); }
  strokeRect(x: number, y: number, width: number, height: number): void { this.add(box(x, y, width, height), this.stroked()); }

  fillText(text: string, x: number, y: number): void {
    const look = `text-anchor="${ANCHORS[this.textAlign]}" dominant-baseline="${BASELINES[this.textBaseline]}" style="font: ${escape(this.font)}"`;
    this.add(`<text x="${short(x)}" y="${short(y)}" ${look}`, this.filled(), `${escape(text)}</text>`);
  }

  private add(begin: string, look: string, inside = ""): void {
    const moved = this.moves ? ` transform="${this.moves.trim()}"` : "";
    this.parts.push(`${begin} ${look}${moved}${inside ? `>${inside}` : "/>"}`);
  }

  private filled(): string { return `fill="${escape(this.fillStyle)}"${this.opacity()}`; }

  private stroked(): string {
    return `fill="none" stroke="${escape(this.strokeStyle)}" stroke-width="${this.lineWidth}" stroke-linejoin="${this.lineJoin}"${this.opacity()}`;
  }

  private opacity(): string { return this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : ""; }
}

const short = (value: number): number => Math.round(value * 100) / 100;

/** Canvases draw boxes of negative size too; SVG does not. */
function box(x: number, y: number, width: number, height: number): string {
  return `<rect x="${short(Math.min(x, x + width))}" y="${short(Math.min(y, y + height))}" width="${short(Math.abs(width))}" height="${short(Math.abs(height))}"`;
}

/** A text as XML; characters that XML forbids are left out. */
export function escape(text: string): string {
  const signs: Readonly<Record<string, string>> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  // eslint-disable-next-line no-control-regex -- these are what XML forbids
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "").replace(/[&<>"]/g, (sign) => signs[sign]);
}
