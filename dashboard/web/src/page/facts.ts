// Facts about one thing (dcp.facts/1) as the server sends them, and how a word of them becomes an element.
import { make } from "../kit/dom.ts";

export interface Word { text: string; sel?: string; time?: string; source?: string }
interface Row { label: string; parts: Word[] }

/** Facts about one thing, as dcp_dashboard/facts/text.py writes them. */
export interface Facts {
  title: string;
  sel: string; // empty: several things, each with its link
  sections: { heading: string; rows: Row[] }[];
  values?: { event?: number; source?: string; chain?: number[] };
}

/** Plain words, or a button that selects: nothing is loaded by it, so it is no link. */
export function word({ text, sel, time, source }: Word): Node | string {
  if (!sel) return text;
  const title = time ? "Select and show this time in the timeline" : null;
  return make("button", {
    type: "button", className: "dcp-link", title, "data-sel": sel, "data-time": time, "data-source": time && source,
  }, text);
}
