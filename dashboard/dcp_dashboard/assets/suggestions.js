// "What to try" on the overview of a plan: plans changes in the worker process, and links to a comparison with each.
"use strict";

(() => {
  const view = window.dcp.canvas;

  // One change with its predicted gain; the link opens the comparison.
  function line(key, { change, option, saves_s: saves, share, key: made }) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `/compare?a=${key}&as=simulated&b=${made}&bs=simulated`;
    link.dataset.plain = "link";
    link.textContent = "compare";
    const gain = `${view.duration(saves * 1e9)} less (${view.digits(100 * share)} %)`;
    item.append(`${change}: ${gain}${option ? `, ${option}` : ""} `, link);
    return item;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element ? event.target.closest("#try-changes") : null;
    if (!button) return;
    const [status, list] = ["tried-status", "tried"].map((id) => document.getElementById(id));
    button.disabled = true;
    status.className = "dcp-muted";
    try {
      const tell = (stage) => { status.textContent = stage; };
      const { figures } = await window.dcp.runJob("/api/edit/suggest", { plan: button.dataset.key }, tell);
      list.replaceChildren(...figures.plans.map((plan) => line(button.dataset.key, plan)));
      status.textContent = figures.plans.length ? "Predicted, with the smallest budget of a search:" : "Nothing that was tried saves 1 %.";
    } catch (error) {
      status.textContent = `Nothing could be tried: ${error.message}`;
      status.className = "dcp-bad";
    }
    button.disabled = false;
  });
})();
