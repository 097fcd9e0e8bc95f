// The settings of a plan on /edit: cluster, devices, blocks, tolerance, method, and how much of the sample is planned.
import { make } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { field, type Option, select } from "./dom.ts";

const DEFAULTS = {
  cluster: "", nodes: "2", per: "4", block: "auto", tol: "10", method: "portfolio", effort: "balanced",
  scale: "1024", copies: "1", heads: "8/2/128", dtype: "2", limit: "60",
};
type Name = keyof typeof DEFAULTS;
const NAMES = Object.keys(DEFAULTS) as Name[];
const LABELS: Readonly<Record<Name, string>> = {
  cluster: "Cluster", nodes: "Nodes", per: "Devices per node", block: "Block", tol: "Tolerance",
  method: "Method", effort: "Effort of the plan", scale: "Lengths of the sample", copies: "Copies in the batch",
  heads: "Heads q/kv/size", dtype: "Element size", limit: "Time limit of the plan",
};
const BLOCKS = ["auto", "64", "128", "256", "512", "1024", "2048", "4096", "8192"];
const SCALES = ["1", "16", "64", "256", "1024", "4096", "16384"];
const POWERS = [1, 2, 4, 8, 16, 32, 64];
const MOST_TOLERANCE = 50; // %

/** The choices that the page brings along. */
export interface Choices {
  readonly clusters: readonly string[]; readonly methods: readonly (readonly [name: string, reason: string])[]; readonly efforts: readonly string[];
}

/** A plan as the server's `read_batch` reads it. */
export interface PlanRequest {
  readonly cluster: string; readonly nodes: number; readonly devices_per_node: number; readonly block: number | null;
  readonly tolerance: number; readonly method: string; readonly budget: string; readonly scale: number; readonly copies: number;
  readonly heads: string; readonly dtype_bytes: number; readonly limit_s: number;
}

type Texts = Readonly<Record<string, string>>;

/** A control with its value as text; `note` says that of a slider. */
interface Control { readonly element: HTMLInputElement | HTMLSelectElement; readonly note?: HTMLOutputElement; read(): string; tell(): string }

export class Settings {
  private readonly defaults: Record<Name, string>;
  private readonly controls: Readonly<Record<Name, Control>>;

  /** start: settings that the text brings along; given: those of the address; changed() after any change. */
  constructor(host: HTMLElement, choices: Choices, start: Texts, given: Texts, changed: () => void) {
    this.defaults = { ...DEFAULTS, cluster: choices.clusters[0] };
    for (const name of NAMES) this.defaults[name] = start[name] ?? this.defaults[name];
    this.controls = controls(choices, (name) => given[name] ?? this.defaults[name]);
    for (const name of NAMES) {
      const { element, note } = this.controls[name];
      element.id = `edit-${name}`;
      note?.setAttribute("for", element.id);
      host.append(field(LABELS[name], element, note));
      element.addEventListener("input", () => { this.notes(); changed(); });
    }
    this.notes();
  }

  private notes(): void {
    for (const { element, note, tell } of Object.values(this.controls)) {
      if (!note) continue;
      note.textContent = tell();
      element.setAttribute("aria-valuetext", tell());
    }
  }

  /** The settings that differ from the defaults, for the address. */
  address(): Record<string, string> {
    const values = NAMES.map((name) => [name, this.controls[name].read()] as const);
    return Object.fromEntries(values.filter(([name, value]) => value !== this.defaults[name]));
  }

  request(): PlanRequest {
    const text = (name: Name) => this.controls[name].read();
    const number = (name: Name) => Number(text(name));
    return {
      cluster: text("cluster"), nodes: number("nodes"), devices_per_node: number("per"),
      block: text("block") === "auto" ? null : number("block"), tolerance: number("tol") / 100, method: text("method"),
      budget: text("effort"), scale: number("scale"), copies: Math.round(number("copies")), heads: text("heads").trim(),
      dtype_bytes: number("dtype"), limit_s: number("limit"),
    };
  }
}

function controls({ clusters, methods, efforts }: Choices, at: (name: Name) => string): Record<Name, Control> {
  const pick = (name: Name, options: readonly Option[]) => plain(select(options, at(name)));
  const labelled = (values: readonly string[], label: (value: string) => string): Option[] => values.map((value) => [value, label(value)]);
  const same = (name: string) => name;
  return {
    cluster: pick("cluster", labelled(clusters, same)),
    nodes: power(at("nodes")),
    per: power(at("per")),
    block: pick("block", labelled(BLOCKS, (size) => (size === "auto" ? size : `${size} tokens`))),
    tol: slider(Number(at("tol")), MOST_TOLERANCE, String, (value) => `${value} %`),
    method: pick("method", methods.map(([name, reason]): Option => [name, name === "portfolio" ? "default search" : name, reason])),
    effort: pick("effort", labelled(efforts, same)),
    scale: pick("scale", labelled(SCALES, (size) => `× ${format.count(Number(size))}`)),
    copies: plain(make("input", { type: "number", min: 1, max: 256, step: 1, value: at("copies") })),
    heads: plain(make("input", { value: at("heads"), title: "Query heads / key and value heads / size of a head", spellcheck: false, size: 10 })),
    dtype: pick("dtype", labelled(["1", "2", "4", "8"], (size) => (size === "1" ? "1 byte" : `${size} bytes`))),
    limit: pick("limit", labelled(["10", "60", "300", "600"], (size) => `${size} s`)),
  };
}

function plain(element: HTMLInputElement | HTMLSelectElement): Control {
  return { element, read: () => element.value, tell: () => element.value };
}

function slider(value: number, most: number, read: (value: number) => string, tell: (value: number) => string): Control {
  const element = make("input", { type: "range", min: 0, max: most, step: 1, value });
  return { element, note: make("output"), read: () => read(Number(element.value)), tell: () => tell(Number(element.value)) };
}

/** A slider over powers of two, and over a number between them if a plan or an address brings one. */
function power(value: string): Control {
  const given = Math.min(64, Math.max(1, Math.round(Number(value)) || 1));
  const steps = [...new Set([...POWERS, given])].sort((one, other) => one - other);
  const at = (step: number) => String(steps[step]);
  return slider(steps.indexOf(given), steps.length - 1, at, at);
}
