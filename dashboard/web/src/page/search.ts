// Search fields: what is typed goes into the URL as `q` once the typing rests, and the page follows the URL.
import { isTyping, part } from "../kit/dom.ts";

const REST_MS = 250;
const PATIENCE_MS = 5000;

const searchField = (): HTMLInputElement | null => document.querySelector<HTMLInputElement>("input#search");

/** The query of a list that shows what a text finds, from its first page on. */
export function withSearch(search: string, text: string): string {
  const query = new URLSearchParams(search);
  query.delete("page");
  if (text.trim()) query.set("q", text);
  else query.delete("q");
  return query.size ? `?${query}` : "";
}

/** The page is made anew: the field that was typed into gets the focus back, and what was typed meanwhile. */
function refocus(old: HTMLInputElement): void {
  const { length } = old.value;
  const watch = new MutationObserver(() => {
    const field = searchField();
    if (!field || field === old) return;
    watch.disconnect();
    field.focus();
    field.setSelectionRange(length, length);
  });
  watch.observe(part(document, "#page"), { childList: true, subtree: true });
  setTimeout(() => watch.disconnect(), PATIENCE_MS);
}

export function followSearch(): void {
  let timer = 0;
  document.addEventListener("input", (event) => {
    const field = event.target;
    if (!(field instanceof HTMLInputElement) || field.id !== "search") return;
    clearTimeout(timer);
    const { pathname } = location;
    timer = window.setTimeout(() => {
      if (location.pathname !== pathname) return;
      history.replaceState({}, "", pathname + withSearch(location.search, field.value));
      window.dispatchEvent(new Event("_dashprivate_pushstate"));
      refocus(searchField() ?? field);
    }, REST_MS);
  });
  document.addEventListener("keydown", (event) => {
    const field = searchField();
    if (event.key !== "/" || !field || isTyping(event)) return;
    event.preventDefault();
    field.focus();
  });
}
