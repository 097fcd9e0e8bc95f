// A field above the panel of the selection: "seq 17", "device 3", "tile 120", "division 2 backward" select in every view,
// and so does the name of a sequence's row, which the server finds.
import { loadJson } from "../api.ts";
import { make } from "../kit/dom.ts";
import { decodeSelection, type Selection, state } from "../state.ts";
import type { Facts } from "./facts.ts";

const TYPES: Readonly<Record<string, "sequence" | "device" | "tile" | "division">> = {
  seq: "sequence", sequence: "sequence", gpu: "device", device: "device", tile: "tile", division: "division",
};
const EXAMPLES = "seq 17, the name of a row, device 3, tile 120, division 2 backward";
const PATTERN = /^\s*([a-z]+)\s*(\d{1,9})\s*(forward|backward)?\s*$/i;

/** The selection that a text names, null if it names nothing. */
export function selectionOf(text: string): Selection | null {
  const [, word = "", number, way] = PATTERN.exec(text) ?? [];
  const type = TYPES[word.toLowerCase()];
  if (!type || (way && type !== "division")) return null;
  const sel = { type, [type]: Number(number) };
  return type === "division" ? { ...sel, backward: Number(way?.toLowerCase() === "backward") } : sel;
}

async function find(field: HTMLInputElement, key: string, offer: (found: Facts) => void): Promise<void> {
  const { value } = field;
  const facts = selectionOf(value) ? null : await sequencesNamed(value, key);
  if (field.value !== value) return; // typed on meanwhile
  const sel = selectionOf(value) ?? decodeSelection(facts?.sel ?? "");
  field.setAttribute("aria-invalid", String(Boolean(value.trim()) && !sel && !facts));
  if (sel) state.set({ sel });
  else if (facts) offer(facts);
}

/** The sequence whose row has a name, or links to several; null if none has it, or no server can be asked. */
async function sequencesNamed(name: string, key: string): Promise<Facts | null> {
  if (!name.trim() || !key) return null;
  return loadJson<Facts>(`/api/plan/${key}/sequence?name=${encodeURIComponent(name)}`).catch(() => null);
}

/** Puts the field into the head of the panel that a host lies in, once; `offer` shows what several things have a name. */
export function addFinder(host: HTMLElement, offer: (found: Facts) => void): void {
  const head = host.closest(".dcp-panel")?.querySelector(".dcp-panel-head");
  if (!head || head.querySelector(".dcp-finder")) return;
  const field = make("input", {
    className: "dcp-input dcp-finder", type: "search", placeholder: "Find by name …", title: EXAMPLES, "aria-label": `Select by name: ${EXAMPLES}`,
  });
  field.addEventListener("change", () => void find(field, host.dataset.key ?? "", offer));
  head.firstElementChild?.after(field);
}
