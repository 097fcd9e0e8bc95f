// Who sends whom how much: a cell per ordered pair of devices, or of nodes; rows send, columns receive.
import { blend, pixel, themeColour } from "../kit/colours.ts";
import * as format from "../kit/format.ts";
import { CanvasView, type Hovered } from "../kit/view.ts";
import { state } from "../state.ts";
import { nodeOf } from "../timeline/layout.ts";
import type { DevicesHeader, DevicesPayload } from "./columns.ts";

const LEFT = 44;
const TOP = 22;
const RIGHT = 78;
const STEPS = 64;
const PALEST = 6; // a cell that sends at all can be seen
const LABEL = 22; // CSS pixels that a number takes

type Pen = CanvasRenderingContext2D;
type Cell = [row: number, column: number];

/** Bytes from row to column, and the row of each device. */
interface Matrix { readonly size: number; readonly bytes: Float64Array; readonly most: number; readonly rowOf: readonly number[] }

export class Traffic extends CanvasView {
  readonly dispose: () => void;
  private readonly header: DevicesHeader;
  private readonly byDevice: Matrix;
  private readonly byNode: Matrix;

  constructor(host: HTMLElement, { header, columns }: DevicesPayload, label: string) {
    super(host, `${label}: bytes that ${header.num_devices} devices send to each other. Arrow keys `
      + "move over the pairs; the selection panel shows the numbers.");
    this.header = header;
    const devices = Array.from({ length: header.num_devices }, (_, device) => device);
    this.byDevice = summed(columns, devices);
    this.byNode = summed(columns, devices.map((device) => nodeOf(header.node_starts, device)));
    this.listen();
    this.resize();
    this.dispose = state.follow((_, changed) => {
      if (changed.has("traffic")) this.redraw();
      else if (changed.has("sel")) this.drawMarks();
    });
  }

  private get isByNode(): boolean { return state.get().traffic === "node"; }

  private get matrix(): Matrix { return this.isByNode ? this.byNode : this.byDevice; }

  resize(): void {
    const width = Math.max(240, this.host.clientWidth);
    const side = Math.max(120, Math.min(width - LEFT - RIGHT, 420));
    this.layers.resize(width, side + TOP + 6, { left: LEFT, top: TOP, width: side, height: side });
    this.redraw();
  }

  redraw(): void {
    const { size, bytes, most } = this.matrix;
    const gap = pixel(themeColour("--panel"));
    const shades = blend(pixel(themeColour("--canvas")), pixel(themeColour("--send")), STEPS);
    const { buffer, pixels: { width, height }, ratio } = this.layers;
    const hasGaps = width / size >= 5 * ratio;
    for (let y = 0; y < height; y++) {
      const row = Math.floor((y * size) / height);
      const isEdge = hasGaps && Math.floor(((y + ratio) * size) / height) !== row;
      for (let x = 0; x < width; x++) {
        const column = Math.floor((x * size) / width);
        const value = bytes[row * size + column];
        const shade = value ? PALEST + Math.round((value / most) * (STEPS - 1 - PALEST)) : 0;
        const isGap = isEdge || (hasGaps && Math.floor(((x + ratio) * size) / width) !== column);
        buffer[y * width + x] = isGap ? gap : shades[shade];
      }
    }
    this.layers.put();
    this.drawMarks();
  }

  private drawMarks(): void {
    const pen = this.layers.pen();
    const { left, top, width } = this.layers.area;
    const { size } = this.matrix;
    const cell = width / size;
    pen.fillStyle = themeColour("--muted");
    let every = 1;
    while (cell * every < LABEL) every *= 2;
    pen.textAlign = "center";
    for (let i = 0; i < size; i += every) pen.fillText(String(i), left + (i + 0.5) * cell, top - 6);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let i = 0; i < size; i += every) pen.fillText(String(i), left - 6, top + (i + 0.5) * cell);
    pen.save();
    pen.translate(9, top + width / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(this.isByNode ? "from node" : "from device", 0, 0);
    pen.restore();
    pen.globalAlpha = 0.5;
    for (const i of this.isByNode ? [] : this.header.node_starts.slice(1, -1)) {
      pen.fillRect(Math.round(left + i * cell) - 1, top, 1, width);
      pen.fillRect(left, Math.round(top + i * cell) - 1, width, 1);
    }
    pen.globalAlpha = 1;
    this.drawScale(pen);
    this.drawChosen(pen, cell);
  }

  private drawScale(pen: Pen): void {
    const { left, top, width } = this.layers.area;
    const { most } = this.matrix;
    const x = left + width + 14;
    const shades = pen.createLinearGradient(0, top + width, 0, top);
    shades.addColorStop(0, themeColour("--canvas"));
    shades.addColorStop(1, themeColour("--send"));
    pen.fillStyle = shades;
    pen.fillRect(x, top, 8, width);
    pen.fillStyle = themeColour("--muted");
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const share of [0, 0.5, 1]) {
      const y = top + (1 - share) * width + 10 * (share - 0.5);
      pen.fillText(most ? format.size(most * share) : share ? "" : "0 B", x + 14, y);
    }
  }

  /** A frame around the row and the column of a device, or around the cell of a pair. */
  private drawChosen(pen: Pen, cell: number): void {
    const { device, peer } = state.get().sel ?? {};
    if (device === undefined) return;
    const { left, top, width } = this.layers.area;
    const { rowOf } = this.matrix;
    const row = rowOf[device];
    pen.strokeStyle = themeColour("--ink");
    pen.lineWidth = 1.5;
    if (peer === undefined) {
      pen.strokeRect(left - 1, top + row * cell - 1, width + 1, cell + 1);
      pen.strokeRect(left + row * cell - 1, top - 1, cell + 1, width + 1);
      return;
    }
    const column = rowOf[peer];
    pen.strokeRect(left + column * cell - 1, top + row * cell - 1, cell + 1, cell + 1);
    pen.globalAlpha = 0.35;
    pen.fillStyle = themeColour("--ink");
    pen.fillRect(left, top + (row + 0.5) * cell, column * cell - 2, 1);
    pen.fillRect(left + (column + 0.5) * cell, top, 1, row * cell - 2);
    pen.globalAlpha = 1;
  }

  private cellAt(event: MouseEvent): Cell | null {
    const [x, y] = this.point(event);
    const { left, top, width } = this.layers.area;
    const { size } = this.matrix;
    const column = Math.floor(((x - left) / width) * size);
    const row = Math.floor(((y - top) / width) * size);
    return row >= 0 && row < size && column >= 0 && column < size ? [row, column] : null;
  }

  protected override under(event: MouseEvent): Hovered | null {
    const at = this.cellAt(event);
    if (!at) return null;
    const [row, column] = at;
    const { left, top, width } = this.layers.area;
    const { size, bytes } = this.matrix;
    const cell = width / size;
    const moved = bytes[row * size + column];
    const name = this.isByNode ? "node" : "device";
    return {
      id: `${name} ${row} ${column}`,
      box: () => ({ x: left + column * cell, y: top + row * cell, width: cell, height: cell }),
      lines: () => [
        row === column && !this.isByNode ? `${name} ${row}` : `${name} ${row} sends ${name} ${column}`,
        moved ? format.size(moved) : "nothing",
      ],
    };
  }

  private choose([row, column]: Cell): void {
    if (this.isByNode) return; // a node is no selection
    state.set({ sel: row === column ? { type: "device", device: row } : { type: "device", device: row, peer: column } });
  }

  protected override click(event: MouseEvent): void {
    const at = this.cellAt(event);
    if (at) this.choose(at);
  }

  protected override key(event: KeyboardEvent): boolean {
    const moves: Readonly<Record<string, Cell>> = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    const move = moves[event.key];
    if (!move) return false;
    const { sel } = state.get();
    const now = sel?.device === undefined ? [0, -1] : [sel.device, sel.peer ?? sel.device];
    const [row, column] = now.map((value, axis) => Math.max(0, Math.min(this.matrix.size - 1, value + move[axis])));
    this.choose([row, column]);
    return true;
  }
}

/** Sums the bytes between devices over the rows that the devices belong to. */
function summed({ source, target, bytes: moved }: DevicesPayload["columns"], rowOf: readonly number[]): Matrix {
  const size = Math.max(...rowOf) + 1;
  const bytes = new Float64Array(size * size);
  for (let i = 0; i < moved.length; i++) bytes[rowOf[source[i]] * size + rowOf[target[i]]] += moved[i];
  return { size, bytes, most: bytes.reduce((one, other) => Math.max(one, other), 0), rowOf };
}
