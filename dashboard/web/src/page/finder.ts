// A field above the panel of the selection: "seq 17", "device 3", "tile 120", "division 2 backward" select in every view.
import { make } from "../kit/dom.ts";
import { state } from "../session.ts";
import type { Selection } from "../state.ts";

const TYPES: Readonly<Record<string, "sequence" | "device" | "tile" | "division">> = {
  seq: "sequence", sequence: "sequence", gpu: "device", device: "device", tile: "tile", division: "division",
};
const EXAMPLES = "seq 17, device 3, tile 120, division 2 backward";
const PATTERN = /^\s*([a-z]+)\s*(\d{1,9})\s*(forward|backward)?\s*$/i;

/** The selection that a text names, null if it names nothing. */
export function selectionOf(text: string): Selection | null {
  const [, word = "", number, way] = PATTERN.exec(text) ?? [];
  const type = TYPES[word.toLowerCase()];
  if (!type || (way && type !== "division")) return null;
  const sel = { type, [type]: Number(number) };
  return type === "division" ? { ...sel, backward: Number(way?.toLowerCase() === "backward") } : sel;
}

function find(field: HTMLInputElement): void {
  const sel = selectionOf(field.value);
  field.setAttribute("aria-invalid", String(Boolean(field.value.trim()) && !sel));
  if (sel) state.set({ sel });
}

/** Puts the field into the head of the panel that a host lies in, once. */
export function addFinder(host: HTMLElement): void {
  const head = host.closest(".dcp-panel")?.querySelector(".dcp-panel-head");
  if (!head || head.querySelector(".dcp-finder")) return;
  const field = make("input", {
    className: "dcp-input dcp-finder", type: "search", placeholder: "seq 17", title: EXAMPLES, "aria-label": `Select by name: ${EXAMPLES}`,
  });
  field.addEventListener("change", () => find(field));
  head.firstElementChild?.after(field);
}
