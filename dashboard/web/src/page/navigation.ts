// Links that stay inside the application. `a[data-keep="query"]` takes the state of this page along, `a[data-plain]` does
// not; the header's links say which of them is the page that is shown.
import { closest, isPlainClick } from "../kit/dom.ts";
import { state } from "../state.ts";

const NAMED = ["compare", "edit", "help"]; // first parts of the paths that are not below "Plans"

/** Shows another page of the application, as Dash's own links do. */
export function openPage(url: string): void {
  state.flush();
  history.pushState({}, "", url);
  window.dispatchEvent(new Event("_dashprivate_pushstate"));
  window.scrollTo(0, 0);
}

/** Puts the state into a link before it is followed, so that opening it in a new tab works too. */
function complete(link: HTMLAnchorElement): void {
  link.search = state.query();
}

export function markCurrent(): void {
  const first = location.pathname.split("/")[1] ?? "";
  const shown = NAMED.includes(first) ? first : "plans";
  for (const link of document.querySelectorAll<HTMLAnchorElement>(".dcp-nav a")) {
    if (link.dataset.page === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

export function followLinks(): void {
  for (const name of ["pointerover", "focusin"]) {
    document.addEventListener(name, (event) => {
      const link = closest<HTMLAnchorElement>(event, "a[data-keep]");
      if (link) complete(link);
    });
  }
  document.addEventListener("click", (event) => {
    const link = closest<HTMLAnchorElement>(event, "a[data-keep], a[data-plain]");
    if (!link || !isPlainClick(event)) return;
    if (link.dataset.keep) complete(link);
    event.preventDefault();
    openPage(link.href);
  });
}
