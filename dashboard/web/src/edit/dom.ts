// What the parts of the page /edit share: controls with their labels, requests of which only the latest counts.
import { make } from "../kit/dom.ts";

type Properties = Readonly<Record<string, unknown>>;

/** A value, its label, and the reason why it cannot be chosen, if there is one. */
export type Option = readonly [value: string, label: string, reason?: string | null];

/**
 * A control with an id under its label; `note` is an element that says its value, for sliders. Without `for` the
 * label would belong to the note, which browsers take for a control too.
 */
export function field(label: string, control: HTMLElement, note: HTMLElement | null = null): HTMLElement {
  return make("label", { className: "dcp-field", for: control.id }, make("span", { className: "dcp-field-label" }, label, note), control);
}

export function select(options: readonly Option[], value: string, properties: Properties = {}): HTMLSelectElement {
  const made = make("select", properties);
  fill(made, options, value);
  return made;
}

export function fill(box: HTMLSelectElement, options: readonly Option[], value: string): void {
  box.replaceChildren(...options.map(([name, label, reason]) => make("option", { value: name, disabled: Boolean(reason), title: reason }, label)));
  if (options.some(([name]) => name === value)) box.value = value;
}

/** Runs `work` for the latest call only: one at a time, the calls in between are skipped. */
export function latest(work: () => Promise<void>): () => Promise<void> {
  let isWanted = false;
  let isBusy = false;
  return async () => {
    isWanted = true;
    if (isBusy) return;
    isBusy = true;
    while (isWanted) {
      isWanted = false;
      await work();
    }
    isBusy = false;
  };
}

export function later(action: () => unknown, pause_ms: number): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, pause_ms);
  };
}
