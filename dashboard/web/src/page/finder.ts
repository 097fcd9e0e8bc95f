// A field above the panel of the selection: "seq 17", "device 3", "tile 120", "division 2 backward" select in every view,
// and so does the name of a sequence's row, which the server finds.
import { loadJson } from "../api.ts";
import { make } from "../kit/dom.ts";
import { state } from "../session.ts";
import { decodeSelection, type Selection } from "../state.ts";

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

async function find(field: HTMLInputElement, key: string): Promise<void> {
  const { value } = field;
  const sel = selectionOf(value) ?? await sequenceNamed(value, key);
  if (field.value !== value) return; // typed on meanwhile
  field.setAttribute("aria-invalid", String(Boolean(value.trim()) && !sel));
  if (sel) state.set({ sel });
}

/** The sequence whose row has a name, null if none has, or no server can be asked. */
async function sequenceNamed(name: string, key: string): Promise<Selection | null> {
  if (!name.trim() || !key) return null;
  try {
    return decodeSelection((await loadJson<{ sel: string }>(`/api/plan/${key}/sequence?name=${encodeURIComponent(name)}`)).sel);
  } catch { return null; }
}

/** Puts the field into the head of the panel that a host lies in, once. */
export function addFinder(host: HTMLElement): void {
  const head = host.closest(".dcp-panel")?.querySelector(".dcp-panel-head");
  if (!head || head.querySelector(".dcp-finder")) return;
  const field = make("input", {
    className: "dcp-input dcp-finder", type: "search", placeholder: "seq 17", title: EXAMPLES, "aria-label": `Select by name: ${EXAMPLES}`,
  });
  field.addEventListener("change", () => void find(field, host.dataset.key ?? ""));
  head.firstElementChild?.after(field);
}
