// Brings views to life: whatever Dash puts on the page with a known class is loaded and drawn, follows changes of size,
// theme and `data-mode`, and is let go when Dash takes it away. `data-state` says how far it is: loading, drawn, failed.
import { loadColumns, type Payload } from "./api.ts";
import { isAbort, messageOf } from "./kit/dom.ts";
import { markCurrent } from "./page/navigation.ts";

/** Events in the life of a view after it was made. */
export interface View {
  resize?(): void;
  recolour?(): void;
  setMode?(name: string | undefined): void;
  dispose?(): void;
}

/** Makes the view of a host, once what it shows has come. */
export type Maker = (host: HTMLElement, label: string, signal: AbortSignal) => Promise<View>;

interface Mounted { readonly abort: AbortController; view?: View; sizes?: ResizeObserver }

/** A view of columns, by default those of the host's `data-url`. */
export function drawn<P>(
  Made: new (host: HTMLElement, payload: P, label: string) => View,
  load: (host: HTMLElement, signal: AbortSignal) => Promise<P> = (host, signal) => loadColumns(host.dataset.url ?? "", signal) as Promise<P & Payload>,
): Maker {
  return async (host, label, signal) => {
    const payload = await load(host, signal);
    signal.throwIfAborted();
    return new Made(host, payload, label);
  };
}

/** A view of what the page holds already. */
export function plain(Made: new (host: HTMLElement) => View): Maker {
  return (host) => Promise.resolve(new Made(host));
}

/** Makes what is inside of elements that bring it along as HTML (dcp_dashboard/pages/layout.py): no scripts run in it. */
function fill(host: HTMLElement): void {
  const { body } = new DOMParser().parseFromString(host.dataset.html ?? "", "text/html");
  host.replaceChildren(...body.childNodes);
}

/** Mounts, from now on, whatever has one of these classes. */
export function mountViews(makers: Readonly<Record<string, Maker>>): void {
  const mounted = new Map<Element, Mounted>();

  async function mount(host: HTMLElement, make: Maker): Promise<void> {
    const label = host.dataset.label ?? "Mask";
    const record: Mounted = { abort: new AbortController() };
    mounted.set(host, record);
    host.dataset.state = "loading";
    try {
      const view = await make(host, label, record.abort.signal);
      record.view = view;
      let width = host.clientWidth;
      record.sizes = new ResizeObserver(() => {
        if (!host.clientWidth || host.clientWidth === width) return;
        width = host.clientWidth;
        view.resize?.();
      });
      record.sizes.observe(host);
      host.dataset.state = "drawn";
      performance.mark(`dcp drawn: ${label}`);
    } catch (error) {
      if (isAbort(error)) return;
      host.dataset.state = "failed";
      host.textContent = `Cannot draw this: ${messageOf(error)}`;
      host.setAttribute("role", "alert");
    }
  }

  function unmount(host: Element): void {
    const record = mounted.get(host);
    mounted.delete(host);
    record?.abort.abort();
    record?.sizes?.disconnect();
    record?.view?.dispose?.();
  }

  function sweep(): void {
    for (const host of mounted.keys()) if (!host.isConnected) unmount(host);
    for (const host of document.querySelectorAll<HTMLElement>("[data-html]:empty")) fill(host);
    for (const [name, make] of Object.entries(makers)) {
      for (const host of document.querySelectorAll<HTMLElement>(`.${name}`)) if (!mounted.has(host)) void mount(host, make);
    }
    markCurrent();
    const titled = document.querySelector<HTMLElement>("[data-title]");
    const title = titled ? `${titled.dataset.title} · dcp-dsl` : "dcp-dsl";
    if (document.title !== title) document.title = title; // setting it is a change that we would observe
  }

  function follow({ target, attributeName }: MutationRecord): void {
    if (attributeName === "data-html" && target instanceof HTMLElement) fill(target); // another page in the same place
    if (attributeName === "data-mode" && target instanceof HTMLElement) mounted.get(target)?.view?.setMode?.(target.dataset.mode);
    if (attributeName === "data-mantine-color-scheme") for (const { view } of mounted.values()) view?.recolour?.();
  }

  new MutationObserver((changes) => {
    if (changes.some(bringsElements)) sweep();
    changes.forEach(follow);
  }).observe(document.documentElement, {
    subtree: true, childList: true, attributes: true, attributeFilter: ["data-html", "data-mode", "data-mantine-color-scheme"],
  });
  sweep(); // a page that is there already, as a file without Dash is, changes no more
}

/** True if elements came or went; words that change, as in tooltips, bring no view. */
function bringsElements({ addedNodes, removedNodes }: MutationRecord): boolean {
  for (const nodes of [addedNodes, removedNodes]) for (const node of nodes) if (node.nodeType === Node.ELEMENT_NODE) return true;
  return false;
}
