// Search fields: what is typed goes into the URL as `q` once the typing rests, and the page follows the URL.
"use strict";

(() => {
  let timer = 0;

  document.addEventListener("input", (event) => {
    const field = event.target;
    if (!(field instanceof HTMLInputElement) || field.id !== "search") return;
    clearTimeout(timer);
    const { pathname } = location;
    timer = setTimeout(() => {
      if (location.pathname !== pathname) return;
      const query = new URLSearchParams(location.search);
      query.delete("page");
      if (field.value.trim()) query.set("q", field.value);
      else query.delete("q");
      const text = query.toString();
      history.replaceState({}, "", pathname + (text ? `?${text}` : ""));
      window.dispatchEvent(new Event("_dashprivate_pushstate"));
      refocus(field.value);
    }, 250);
  });

  // The page is made anew: the field that was typed into gets the focus back, and what was typed meanwhile.
  function refocus(value) {
    const old = document.getElementById("search");
    const watch = new MutationObserver(() => {
      const field = document.getElementById("search");
      if (!field || field === old) return;
      watch.disconnect();
      field.focus();
      field.setSelectionRange(value.length, value.length);
    });
    watch.observe(document.getElementById("page"), { childList: true, subtree: true });
    setTimeout(() => watch.disconnect(), 5000);
  }

  document.addEventListener("keydown", (event) => {
    const field = document.getElementById("search");
    if (event.key !== "/" || !field || event.target.closest("input, textarea, select, [contenteditable]")) return;
    event.preventDefault();
    field.focus();
  });
})();
