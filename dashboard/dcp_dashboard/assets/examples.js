// The button of an empty list: plans a few standard masks in the worker process and shows them.
"use strict";

(() => {
  const POLL_MS = 200;

  async function answer(response) {
    const found = await response.json().catch(() => ({}));
    if (!response.ok || found.error) throw new Error(found.error || `the server answered ${response.status}`);
    return found;
  }

  // Runs a job of the planner and returns it when it is done; tells each stage.
  async function runJob(url, request, tell) {
    let job = await answer(await fetch(url, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request),
    }));
    while (["waiting", "running"].includes(job.state)) {
      tell(`${job.stage} · ${job.seconds.toFixed(1)} s`);
      await new Promise((done) => setTimeout(done, POLL_MS));
      job = await answer(await fetch(`/api/edit/plan/${job.job}`));
    }
    if (job.state !== "done") throw new Error(job.message || job.state);
    return job;
  }
  window.dcp = window.dcp || {};
  window.dcp.runJob = runJob;

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element ? event.target.closest("#make-examples") : null;
    if (!button) return;
    const status = document.getElementById("examples-status");
    const examples = JSON.parse(button.dataset.examples);
    button.disabled = true;
    try {
      for (const [at, example] of examples.entries()) {
        await runJob("/api/edit/plan", example, (stage) => { status.textContent = `${at + 1} of ${examples.length}: ${stage}`; });
      }
      if (button.isConnected) window.dcp.navigation.open("/?made=examples");
    } catch (error) {
      status.textContent = `No examples: ${error.message}`;
      status.className = "dcp-bad";
      button.disabled = false;
    }
  });
})();
