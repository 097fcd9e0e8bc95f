// The two pickers of /compare: choosing a plan opens the comparison. Dash calls back.
import { openPage } from "./navigation.ts";

declare global {
  interface Window { dash_clientside?: { no_update?: unknown; dcp?: Record<string, unknown> } }
}

/** The address that compares two sides, each "<key>~<source>" or nothing. */
export function comparisonOf(a: string | null, b: string | null): string {
  const query = new URLSearchParams();
  for (const [name, value] of [["a", a], ["b", b]] as const) {
    if (!value) continue;
    const [key = "", source = ""] = value.split("~");
    query.set(name, key);
    query.set(`${name}s`, source);
  }
  return `/compare?${query}`;
}

export function followPickers(): void {
  // `shown` is what the page shows now: nothing happens while it is the same.
  function compare(a: string | null, b: string | null, shown: readonly [unknown, unknown]): unknown {
    if (location.pathname === "/compare" && (a !== shown[0] || b !== shown[1])) openPage(comparisonOf(a, b));
    return window.dash_clientside?.no_update;
  }
  window.dash_clientside ??= {};
  window.dash_clientside.dcp = { compare };
}
