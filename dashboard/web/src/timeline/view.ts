// The timeline as its parts see it: what is shown, where it is drawn, and how to move it. The marks, the selection, the
// path and the tools beside the picture read this; timeline.ts is it.
import type { AxisRange, Ticks } from "../kit/axis.ts";
import type { Box } from "../kit/layers.ts";
import type { CanvasView } from "../kit/view.ts";
import type { Facts } from "../page/facts.ts";
import type { Source, Values } from "../state.ts";
import type { EventColumns, EventTable, Phase, TimelineHeader } from "./events.ts";
import type { Row, Rows, Scroll } from "./layout.ts";

/** One trace: all events, those that the filters leave, among them what the selection means and what the search finds. */
export interface Trace {
  readonly header: TimelineHeader;
  readonly columns: EventColumns;
  readonly unit: number; // ns
  readonly all: EventTable;
  readonly phases: readonly Phase[];
  shown: EventTable;
  brush: EventTable | null;
  hits: EventTable | null;
}

/** The things under a point: a row, a time, a trace, an event, as far as there are any. */
export interface Place { isGutter: boolean; isNodes: boolean; row?: Row; time?: number; trace?: Trace; event?: number | undefined }

/** The parts of the page beside the timeline. */
export interface Tool { dispose(): void }

export const WORDS: Readonly<Record<Source, string>> = { simulated: "predicted", measured: "measured" };

export const GUTTER = 44;
export const NODES = 20; // width of the strip of nodes beside the devices

export interface TimelineView extends CanvasView {
  /** The element with filters, steps and panels; there only where the timeline has a page of its own. */
  readonly page: HTMLElement | null;
  readonly traces: readonly Trace[];
  /** Which traces have rows: all, or the one that the state names. */
  readonly sources: readonly Trace[];
  readonly header: TimelineHeader;
  readonly devices: number;
  readonly nodeStarts: readonly number[]; // the first device of each node, then the number of devices
  readonly nodes: number;
  readonly time: AxisRange;
  readonly scroll: Scroll;
  readonly path: { draw(pen: CanvasRenderingContext2D): void };
  readonly state: Values;
  /** An area that is being marked. */
  readonly pending: readonly number[] | null;
  /** The server's answer about the selected event. */
  readonly facts: Facts["values"];
  readonly open: ReadonlySet<number>;
  readonly layout: Rows;
  readonly ticks: Ticks;
  readonly line: string;
  readonly muted: string;
  readonly ink: string;
  readonly accent: string;
  readonly paper: string;
  rowsInView(): readonly Row[];
  rowOf(source: number, device: number): Row | undefined;
  /** The upper edge of a row, in CSS pixels below the axis; pinned rows stand still. */
  topOf(row: Row): number;
  /** Where an event is drawn, in CSS pixels of the host; null if its device has no row of its own or is scrolled away. */
  boxOf(trace: Trace, event: number): Box | null;
  drawMarks(): void;
  select(trace: Trace, event: number): void;
  /** Opens or closes the rows of a node's devices. */
  toggle(node: number): void;
}
