// The panel that says everything about the selected thing: it asks the server for the facts (dcp.facts/1) and shows
// them as rows whose links select further.
import { loadJson } from "../api.ts";
import { button, isAbort, make, messageOf } from "../kit/dom.ts";
import { type Selection, state } from "../state.ts";
import { type Facts, word } from "./facts.ts";
import { addFinder } from "./finder.ts";
import { pinned, togglePin } from "./selection.ts";

const MOST_KEPT = 200;
const LEFT_OUT = "This page shows only devices and divisions. To see tiles, events and messages, open the plan file with dcpm dashboard.";

/** The address of the facts about a selection, null if there is none. */
export function addressOf(key: string, sel: Selection | undefined): string | null {
  if (!sel) return null;
  const base = `/api/plan/${key}`;
  switch (sel.type) {
    case "tile": return `${base}/tile/${sel.tile}`;
    case "sequence": return `${base}/sequence/${sel.sequence}`;
    case "device": return `${base}/device/${sel.device}${sel.peer === undefined ? "" : `/${sel.peer}`}`;
    case "division": {
      const way = sel.backward ? "backward" : "forward";
      return `${base}/division/${way}/${sel.division}${sel.device === undefined ? "" : `?device=${sel.device}`}`;
    }
    case "transfer":
      return sel.transfer === undefined ? `${base}/device/${sel.device}/${sel.peer}` : `${base}/transfer/${sel.transfer}`;
    case "event": return sel.source ? `${base}/event/${sel.source}/${sel.event}` : `${base}/device/${sel.device}`;
  }
}

/** Pins the selected device, or lets it go; nothing if no device is selected. */
function pinning(): HTMLElement | null {
  const { sel, pins } = state.get();
  if (sel?.device === undefined) return null;
  const { device } = sel;
  const isPinned = pinned(pins, Infinity).has(device);
  const text = isPinned ? "Unpin" : "Pin";
  return button(text, "dcp-quiet", () => togglePin(device), {
    "aria-label": `${text} device ${device}`,
    title: isPinned ? `Move device ${device} back to its place (t)` : `Keep device ${device} at the top of timeline and tables (t)`,
  });
}

function section({ heading, rows }: Facts["sections"][number]): HTMLElement {
  const list = make("dl", {}, ...rows.flatMap(({ label, parts }) => [make("dt", {}, label), make("dd", {}, ...parts.map(word))]));
  return make("section", {}, heading ? make("h4", {}, heading) : null, list);
}

export class Inspector {
  private readonly host: HTMLElement;
  private readonly hint: readonly ChildNode[];
  private readonly isAlone: boolean;
  private readonly known: Map<string, Facts>;
  private readonly unfollow: () => void;
  private asked: AbortController | undefined;

  constructor(host: HTMLElement) {
    this.host = host;
    this.hint = [...host.childNodes];
    // A page that needs no server brings what it knows along.
    const bundle = document.getElementById("dcp-bundle");
    this.isAlone = Boolean(bundle);
    const { facts } = JSON.parse(bundle?.textContent ?? '{"facts": {}}') as { facts: Record<string, Facts> };
    this.known = new Map(Object.entries(facts));
    addFinder(host, (found) => { state.set({ sel: null }); this.draw(found); }); // so each that is offered can be selected
    void this.show();
    this.unfollow = state.follow((_, changed) => { if (changed.has("sel") || changed.has("pins")) void this.show(); });
  }

  dispose(): void {
    this.unfollow();
    this.asked?.abort();
  }

  private async show(): Promise<void> {
    this.asked?.abort();
    const address = addressOf(this.host.dataset.key ?? "", state.get().sel);
    if (!address) { this.fill("empty", ...this.hint); return; }
    const known = this.known.get(address) ?? (this.isAlone ? this.known.get(address.split("?")[0]) : undefined);
    if (known) { this.draw(known); return; }
    if (this.isAlone) { this.fill("empty", make("p", { className: "dcp-hint" }, LEFT_OUT), this.clearing()); return; }
    this.asked = new AbortController();
    this.host.dataset.state = "loading";
    try {
      const answer = await loadJson<Facts>(address, { signal: this.asked.signal }); // an abort must not be kept as an answer
      if (this.known.size > MOST_KEPT) this.known.clear();
      this.known.set(address, answer);
      this.draw(answer);
    } catch (error) {
      if (isAbort(error)) return;
      this.fill("failed", make("p", { role: "alert" }, `This selection cannot be shown: ${messageOf(error)}`), this.clearing());
    }
  }

  /** Also takes away what the finder offered, which is no selection. */
  private clearing(): HTMLElement {
    return button("Clear", "dcp-quiet", () => { state.set({ sel: null }); void this.show(); }, { title: "Esc" });
  }

  private fill(how: string, ...children: Node[]): void {
    this.host.dataset.state = how;
    this.host.replaceChildren(...children);
  }

  private draw(facts: Facts): void {
    const head = make("div", { className: "dcp-inspector-head" }, make("h3", {}, facts.title), make("div", {}, pinning(), this.clearing()));
    const body = make("div", { className: "dcp-inspector-body" }, ...facts.sections.map(section));
    // Scrolls around the columns: columns of a limited height would go on to the right, out of sight.
    this.fill("shown", head, make("div", { className: "dcp-inspector-scroll" }, body));
    this.host.dispatchEvent(new CustomEvent("dcp:facts", { bubbles: true, detail: facts }));
    performance.mark("dcp facts shown");
  }
}
