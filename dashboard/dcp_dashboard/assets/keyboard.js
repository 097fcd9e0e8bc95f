// `?` opens the keyboard map, from everywhere but a field one types into.
"use strict";

(() => {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "?" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (window.dcp.selection.isTyping(event.target)) return;
    const dialog = document.getElementById("keyboard");
    if (!dialog || dialog.open) return;
    event.preventDefault();
    dialog.showModal();
  });
  document.addEventListener("click", (event) => {
    const dialog = event.target instanceof Element && event.target.closest("#keyboard");
    if (!dialog) return;
    if (event.target === dialog || event.target.closest("button, a")) dialog.close();
  });
})();
