// "What to try" on the overview of a plan: plans changes, or the front of the batch, in the worker process, and leads
// to a comparison.
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

  function showChanges(key, plans) {
    document.getElementById("tried").replaceChildren(...plans.map((plan) => line(key, plan)));
    return plans.length ? "Predicted, with the smallest budget of a search:" : "Nothing that was tried saves 1 %.";
  }

  function openFront(key, plans) {
    const keys = [key, ...plans.map((plan) => plan.key)];
    window.location.assign(`/front?${keys.map((one) => `plan=${one}`).join("&")}`);
    return "Opening the front.";
  }

  const TASKS = { suggest: showChanges, front: openFront };

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element ? event.target.closest("[data-task]") : null;
    if (!button) return;
    const { key, task } = button.dataset;
    const status = document.getElementById("tried-status");
    button.disabled = true;
    status.className = "dcp-muted";
    try {
      const tell = (stage) => { status.textContent = stage; };
      const { figures } = await window.dcp.runJob(`/api/edit/${task}`, { plan: key }, tell);
      status.textContent = TASKS[task](key, figures.plans);
    } catch (error) {
      status.textContent = `Nothing could be tried: ${error.message}`;
      status.className = "dcp-bad";
    }
    button.disabled = false;
  });
})();
