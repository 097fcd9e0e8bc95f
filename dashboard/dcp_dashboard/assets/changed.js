// The bar `.dcp-changed`: every few seconds the versions of the shown files are asked for; when one is another the
// bar says so and offers to reload. What is shown stays until then.
"use strict";

window.dcp = window.dcp || {};

(() => {
  const EVERY_MS = 3000;

  function tell(bar, text) {
    bar.replaceChildren(document.createTextNode(text));
    const button = document.createElement("button");
    button.type = "button";
    button.className = "dcp-button";
    button.textContent = "Reload";
    button.addEventListener("click", () => { window.dcp.state.flush(); location.reload(); });
    bar.append(button);
    bar.hidden = false;
  }

  async function look() {
    const bar = document.querySelector(".dcp-changed");
    if (!bar || document.hidden || !bar.dataset.keys) return;
    const { keys, versions: shown, names } = bar.dataset;
    const response = await fetch(`/api/changes?keys=${keys}`, { credentials: "same-origin" }).catch(() => null);
    if (!response?.ok || !bar.isConnected || bar.dataset.keys !== keys || bar.dataset.versions !== shown) return;
    const { versions } = await response.json();
    const before = shown.split(",");
    const said = [];
    keys.split(",").forEach((key, i) => {
      const name = names.split("/")[i];
      if (versions[key] === null) said.push(`${name} was deleted or moved.`);
      else if (versions[key] !== undefined && versions[key] !== before[i]) said.push(`${name} has changed on disk.`);
    });
    const text = said.join(" ");
    if (text === (bar.dataset.said || "")) return;
    bar.dataset.said = text;
    if (text) tell(bar, `${text} This page shows it as it was. `);
    else bar.hidden = true;
  }

  setInterval(look, EVERY_MS);
  document.addEventListener("visibilitychange", look);
})();
