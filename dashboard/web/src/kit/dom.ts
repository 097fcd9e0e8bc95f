// Elements without markup, and what happens to them.

type Properties = Record<string, unknown>;
export type Child = Node | string | null | undefined;

/** Makes an element: make("button", {className, "aria-label": ...}, ...children). Null leaves a property or a child out. */
export function make<K extends keyof HTMLElementTagNameMap>(tag: K, properties: Properties = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name in element) (element as unknown as Properties)[name] = value;
    else element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A button that calls back. */
export function button(text: string, className: string, onclick: () => void, properties: Properties = {}): HTMLButtonElement {
  return make("button", { type: "button", className, onclick, ...properties }, text);
}

export function swatch(colour: string, className = "dcp-swatch"): HTMLElement {
  const made = make("span", { className, "aria-hidden": "true" });
  made.style.backgroundColor = colour;
  return made;
}

/** The element below a host that a selector names; it is part of the page, so a missing one is a fault. */
export function part<T extends HTMLElement = HTMLElement>(host: ParentNode, selector: string): T {
  const found = host.querySelector<T>(selector);
  if (!found) throw new Error(`expected ${selector} on the page, found none`);
  return found;
}

/** The element around the target of an event that a selector names. */
export function closest<T extends HTMLElement = HTMLElement>(event: Event, selector: string): T | null {
  return event.target instanceof Element ? event.target.closest<T>(selector) : null;
}

export const hasModifier = (event: KeyboardEvent | MouseEvent): boolean => event.ctrlKey || event.metaKey || event.altKey;

/** A click that opens something elsewhere (a new tab, a menu) is the browser's. */
export const isPlainClick = (event: MouseEvent): boolean => !event.button && !event.shiftKey && !hasModifier(event);

/** True if keys go into a text that is being typed. */
export function isTyping(event: Event): boolean {
  return closest(event, "input, textarea, select, [contenteditable=true], .cm-editor") !== null;
}

export const hasDialog = (): boolean => document.querySelector("dialog[open]") !== null;

export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

export const isAbort = (error: unknown): boolean => error instanceof DOMException && error.name === "AbortError";
