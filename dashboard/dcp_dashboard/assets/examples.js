// The button of an empty list: plans a few standard masks in the worker process and shows them.
"use strict";

(() => {
  const POLL_MS = 200;

  async function answer(response) {
    const found = await response.json().catch(() => ({}));
    if (!response.ok || found.error) throw new Error(found.error || `the server answered ${response.status}`);
    return found;
  }

  // Plans one example; tells each stage.
  async function plan(example, tell) {
    let job = await answer(await fetch("/api/edit/plan", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(example),
    }));
    while (["waiting", "running"].includes(job.state)) {
      tell(`${job.stage} · ${job.seconds.toFixed(1)} s`);
      await new Promise((done) => setTimeout(done, POLL_MS));
      job = await answer(await fetch(`/api/edit/plan/${job.job}`));
    }
    if (job.state !== "done") throw new Error(job.message || job.state);
  }

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element ? event.target.closest("#make-examples") : null;
    if (!button) return;
    const status = document.getElementById("examples-status");
    const examples = JSON.parse(button.dataset.examples);
    button.disabled = true;
    try {
      for (const [at, example] of examples.entries()) {
        await plan(example, (stage) => { status.textContent = `${at + 1} of ${examples.length}: ${stage}`; });
      }
      if (button.isConnected) window.dcp.navigation.open("/?made=examples");
    } catch (error) {
      status.textContent = `No examples: ${error.message}`;
      status.className = "dcp-bad";
      button.disabled = false;
    }
  });
})();
