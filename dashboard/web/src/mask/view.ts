// The mask as its keyboard and its groups of heads see it: what is drawn, and how to move it.
import type { AxisRange } from "../kit/axis.ts";
import type { CanvasView } from "../kit/view.ts";
import type { MaskColumns, MaskHeader } from "./columns.ts";
import type { RowIndex } from "./raster.ts";

export interface MaskView extends CanvasView {
  readonly header: MaskHeader;
  readonly columns: MaskColumns;
  readonly count: number;
  /** The tile of every pixel, `count` where there is none. */
  readonly tiles: Uint32Array;
  readonly group: number;
  readonly index: RowIndex;
  ranges(): AxisRange[];
  isShown(tile: number): boolean;
  showGroup(group: number): void;
}
