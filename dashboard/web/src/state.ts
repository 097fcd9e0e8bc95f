// One state for all views of a page: what is selected, which range is shown, what is filtered, and the URL that
// says so. Views never talk to each other: they set the state and follow it.

export const SOURCES = ["simulated", "measured"] as const;
export type Source = (typeof SOURCES)[number];

const TYPES = ["device", "division", "tile", "transfer", "event", "sequence"] as const;

/**
 * The one selected thing. Beside its type it has the ids that are known of it, all integers but `source`; a view marks
 * what carries the ids that it knows of: a selected tile has a device and a division too.
 */
export interface Selection {
  readonly type: (typeof TYPES)[number];
  readonly device?: number;
  readonly division?: number;
  readonly backward?: number; // 0 or 1
  readonly peer?: number;
  readonly block?: number;
  readonly tile?: number;
  readonly q?: number;
  readonly kv?: number;
  readonly group?: number;
  readonly kind?: number;
  readonly transfer?: number;
  readonly sequence?: number;
  readonly event?: number; // row of the payload `source`
  readonly source?: Source;
}

/** The state that views show; each key stands in the URL under its own name, so that a reload or a shared link shows the same. */
export interface Values {
  readonly sel?: Selection;
  readonly time?: readonly number[]; // [start, end] of the shown timeline, ns after the first event
  readonly tokens?: readonly number[]; // [first query, past the last, first key, past the last] of the shown mask
  readonly area?: readonly number[]; // [start, end, first device, last device] that is marked in the timeline, ns
  readonly colour?: string; // how tiles are coloured
  readonly tiles?: string; // "full", "partial": the tiles that keep their colour, "empty": none of them
  readonly group?: string; // the group of heads whose tiles the mask shows, counted from 0 (the first one has no key)
  readonly source?: string; // the trace of the timeline, or "both"
  readonly kinds?: string; // shown kinds of events, comma between
  readonly longer?: string; // ns
  readonly find?: string;
  readonly open?: string; // nodes whose devices have rows, comma between, or "all", "none"
  readonly view?: string; // "table"
  readonly order?: string; // a column, "-" in front: falling
  readonly traffic?: string; // "node"
  readonly pins?: string; // devices that stay at the top, comma between
  readonly notes?: string; // what timeline/notes.ts reads, a line for each
  readonly path?: string; // "off": without the line of the critical path
  readonly share?: string; // per cent of a step that attention takes
  readonly model?: string; // whose step a gain is about
}

export type Key = keyof Values;
export type Patch = { readonly [K in Key]?: Values[K] | null };
export type Follower = (values: Values, changed: ReadonlySet<Key>) => void;
export type TextKey = (typeof TEXTS)[number];

const TEXTS = ["colour", "tiles", "group", "source", "kinds", "longer", "find", "open", "view", "order", "traffic", "pins", "notes", "path", "share", "model"] as const;
const RANGES = { time: 2, tokens: 4, area: 4 } as const;
const RANGE_KEYS = Object.keys(RANGES) as (keyof typeof RANGES)[];
const KEYS: readonly Key[] = ["sel", ...RANGE_KEYS, ...TEXTS];
const REST_MS = 150;
const MOST_CHARACTERS = 200; // of a text
const MOST_OF_NOTES = 1500;

/** "tile.12~device.3" -> {type: "tile", tile: 12, device: 3}; anything else is no selection. */
export function decodeSelection(text: string): Selection | null {
  const facts: Record<string, number | string> = {};
  for (const part of text.split("~")) {
    const [name = "", value = ""] = part.split(".");
    if (!/^[a-z]{1,12}$/.test(name) || !/^(\d{1,9}|simulated|measured)$/.test(value)) return null;
    facts[name] = /^\d/.test(value) ? Number(value) : value;
  }
  const type = TYPES.find((known) => known === text.split(".")[0]);
  return type ? Object.freeze({ ...facts, type }) : null;
}

export function encodeSelection({ type, ...facts }: Selection): string {
  const rest = Object.entries(facts).filter(([name]) => name !== type);
  const known: Readonly<Record<string, unknown>> = facts;
  return [[type, known[type]], ...rest].map(([name, value]) => `${String(name)}.${String(value)}`).join("~");
}

/** The state that the query of an address says. */
export function readQuery(search: string): Values {
  const query = new URLSearchParams(search);
  const found: Record<string, unknown> = {};
  const chosen = decodeSelection(query.get("sel") ?? "");
  if (chosen) found.sel = chosen;
  for (const name of RANGE_KEYS) {
    const numbers = (query.get(name) ?? "").split("-").map(Number);
    if (numbers.length === RANGES[name] && numbers.every(Number.isFinite)) found[name] = Object.freeze(numbers);
  }
  for (const name of TEXTS) {
    const text = query.get(name);
    if (text) found[name] = text.slice(0, name === "notes" ? MOST_OF_NOTES : MOST_CHARACTERS);
  }
  return Object.freeze(found);
}

/** The query of an address that shows a state; what else the address says stays. */
export function writeQuery(values: Values, search = ""): string {
  const query = new URLSearchParams(search);
  for (const name of KEYS) query.delete(name);
  if (values.sel) query.set("sel", encodeSelection(values.sel));
  for (const name of RANGE_KEYS) if (values[name]) query.set(name, values[name].map(Math.round).join("-"));
  for (const name of TEXTS) if (values[name]) query.set(name, values[name]);
  return query.size ? `?${query.toString().replaceAll("%7E", "~")}` : "";
}

export function same(one: unknown, other: unknown): boolean {
  return (one ?? null) === (other ?? null) || JSON.stringify(one) === JSON.stringify(other);
}

/** A state with some keys changed; null removes one. */
export function patched(values: Values, patch: Patch): Values {
  const next = Object.entries({ ...values, ...patch }).filter(([, value]) => value !== null && value !== undefined);
  return Object.freeze(Object.fromEntries(next));
}

export class State {
  private readonly followers = new Set<Follower>();
  private values: Values = readQuery(location.search);
  private path = location.pathname;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    window.addEventListener("popstate", () => this.reread());
    window.addEventListener("_dashprivate_pushstate", () => this.reread()); // Dash's links announce themselves so
  }

  /** The state now, frozen. */
  get(): Values { return this.values; }

  /** Changes keys (null removes one); tells followers, and the URL once things come to rest. */
  set(patch: Patch): void {
    const changed = new Set((Object.keys(patch) as Key[]).filter((name) => !same(this.values[name], patch[name])));
    if (!changed.size) return;
    this.values = patched(this.values, patch);
    // Browsers refuse more than some hundred changes of the URL in half a minute.
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), REST_MS);
    this.tell(changed);
  }

  /** Calls back after every change; gives a function that ends it. */
  follow(follower: Follower): () => void {
    this.followers.add(follower);
    return () => { this.followers.delete(follower); };
  }

  /** The query of a link to another page that shows the same: state, without what only this page understands. */
  query(): string { return writeQuery(this.values); }

  /** Writes the URL now, for whoever is about to leave the page. */
  flush(): void { if (this.timer !== undefined) this.write(); }

  private write(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (location.pathname !== this.path || location.protocol === "file:") return; // a file keeps its address
    const query = writeQuery(this.values, location.search);
    if (query !== location.search) history.replaceState(history.state, "", location.pathname + query + location.hash);
  }

  private tell(changed: ReadonlySet<Key>): void {
    if (changed.size) for (const follower of this.followers) follower(this.values, changed);
  }

  // Another page, or back and forward: the URL says what is to be shown.
  private reread(): void {
    const before = this.values;
    this.path = location.pathname;
    clearTimeout(this.timer);
    this.timer = undefined;
    this.values = readQuery(location.search);
    this.tell(new Set(KEYS.filter((name) => !same(before[name], this.values[name]))));
  }
}

/** The state of this page, one for all views. */
export const state = new State();
