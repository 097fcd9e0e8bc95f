// The pickers of mask and sample on /edit; what can be picked follows the text.
import { make } from "../kit/dom.ts";
import { field, fill, type Option, select } from "./dom.ts";

export interface MaskOutline {
  readonly name: string;
  readonly parameters: readonly string[];
  readonly columns: readonly string[];
  readonly example: string;
  readonly wants: boolean; // needs arguments
}

export interface SampleOutline { readonly name: string; readonly tokens: number; readonly columns: readonly string[]; readonly error?: string }

/** The names that a text defines. */
export interface Outline { readonly masks: readonly MaskOutline[]; readonly samples: readonly SampleOutline[] }

const SMALL = 64; // tokens of a sample on which the windows of practice cannot be seen

export class Chooser {
  /** The choice of the reader, also while the text does not define it. */
  wanted: { mask: string; sample: string };
  private readonly mask = select([], "", { id: "edit-mask" });
  private readonly sample = select([], "", { id: "edit-sample" });
  private readonly call: HTMLInputElement;
  private readonly expression: HTMLInputElement;
  private readonly own: HTMLInputElement;
  private readonly fields: Readonly<Record<"call" | "expression" | "own", HTMLElement>>;
  private readonly batch: string | null;
  private outline: Outline = { masks: [], samples: [] };

  /** settings: what the address chooses; batch: the text's batch of a plan, if there is one. */
  constructor(host: HTMLElement, settings: Readonly<Record<string, string>>, batch: string | null, changed: () => void) {
    this.batch = batch;
    this.wanted = { mask: settings.mask ?? "", sample: settings.sample ?? "" };
    const input = (id: string, placeholder: string, value = "") => make("input", { id, placeholder, value, spellcheck: false });
    this.call = input("edit-arguments", "", settings.call);
    this.expression = input("edit-expression", "causal and q - k < 1k", settings.expression);
    this.own = input("edit-own", '4096 or {"lens": [3, 4]}', settings.own);
    this.fields = {
      call: field("Arguments", this.call), expression: field("Expression", this.expression),
      own: field("Tokens, or columns as JSON", this.own),
    };
    host.append(field("Mask", this.mask), this.fields.call, this.fields.expression, field("Sample", this.sample), this.fields.own);
    for (const control of [this.mask, this.call, this.expression, this.sample, this.own]) {
      control.addEventListener("input", () => {
        this.wanted = { mask: this.mask.value, sample: this.sample.value };
        if (control === this.mask) this.offer(this.outline);
        this.reveal();
        changed();
      });
    }
  }

  /** Fills the pickers from an outline; keeps the choice if it still exists, else takes the first sample that fits. */
  offer(outline: Outline): void {
    this.outline = outline;
    const { masks, samples } = outline;
    const mask = this.wanted.mask === "other" ? undefined : masks.find(({ name }) => name === this.wanted.mask) ?? masks.at(0);
    fill(this.mask, [...masks.map(({ name }): Option => [name, name]), ["other", "other: an expression"]], mask?.name ?? "other");
    this.call.placeholder = (mask?.example || mask?.parameters.map((name) => `${name} = …`).join(", ")) ?? "";
    const columns = mask?.columns ?? [];
    const fitting = samples.filter((sample) => sample.tokens && columns.every((name) => sample.columns.includes(name)));
    const options: Option[] = [...samples.map(({ name, tokens, error }): Option => [name, error ? name : `${name} (${tokens} tokens)`, error ?? null]),
      ["own", columns.length ? `other: ${columns.join(", ")} …` : "other: a length"]];
    if (this.batch) options.unshift(["batch", "the batch of the plan"]);
    const chosen = options.some(([name]) => name === this.wanted.sample) ? this.wanted.sample : fitting.at(0)?.name ?? "own";
    fill(this.sample, options, chosen);
    if (!this.own.value && chosen === "own") this.own.value = columns.length ? "" : "16";
    this.reveal();
  }

  private get chosen(): MaskOutline | undefined { return this.outline.masks.find(({ name }) => name === this.mask.value); }

  // Shows the fields that the choices ask for.
  private reveal(): void {
    this.fields.call.hidden = !this.chosen?.parameters.length;
    this.fields.expression.hidden = this.mask.value !== "other";
    this.fields.own.hidden = this.sample.value !== "own";
  }

  /**
   * The mask with its arguments, and the sample. Where none were typed, the picture of a small sample takes the arguments
   * of an example, which show what the mask does; the plan takes the defaults.
   */
  request(isPicture: boolean): { batch: string | null; mask: string; sample: string } {
    const { chosen: mask } = this;
    const sample = this.outline.samples.find(({ name }) => name === this.sample.value);
    const isSmall = isPicture && sample !== undefined && sample.tokens <= SMALL;
    let call = mask?.parameters.length ? this.call.value.trim() || (mask.wants || isSmall ? mask.example : "") : "";
    if (call && !call.startsWith("(")) call = `(${call})`;
    return {
      batch: this.sample.value === "batch" ? this.batch : null,
      mask: mask ? `${mask.name}${call}` : this.expression.value.trim(),
      sample: this.sample.value === "own" ? this.own.value : this.sample.value,
    };
  }

  /** The part that the address keeps. */
  address(): Record<string, string> {
    const own = this.sample.value === "own" ? this.own.value : "";
    return { mask: this.wanted.mask, call: this.call.value, expression: this.expression.value, sample: this.wanted.sample, own };
  }
}
