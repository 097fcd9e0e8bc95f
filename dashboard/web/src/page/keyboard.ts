// `?` opens the keyboard map, from everywhere but a field one types into.
import { closest, hasModifier, isTyping } from "../kit/dom.ts";

const mapOfKeys = (): HTMLDialogElement | null => document.querySelector<HTMLDialogElement>("dialog#keyboard");

export function followKeyboardMap(): void {
  document.addEventListener("keydown", (event) => {
    const dialog = mapOfKeys();
    if (event.key !== "?" || hasModifier(event) || isTyping(event) || !dialog || dialog.open) return;
    event.preventDefault();
    dialog.showModal();
  });
  document.addEventListener("click", (event) => {
    const dialog = closest<HTMLDialogElement>(event, "#keyboard");
    if (dialog && (event.target === dialog || closest(event, "button, a"))) dialog.close();
  });
}
