// Opening a plan file of one's own: the button "Open a file", or a file dropped on the page of plans.
// The file travels in small pieces (see dcp_dashboard/web/uploads.py) and is shown from this session only.
"use strict";

window.dcp = window.dcp || {};

(() => {
  const PIECE = 500_000;

  const button = () => document.getElementById("open-file");

  function tell(text, isBad = false) {
    const status = document.getElementById("open-status");
    if (!status) return;
    status.textContent = text;
    status.className = isBad ? "dcp-bad" : "dcp-muted";
  }

  async function post(url, body) {
    const headers = body ? { "Content-Type": "application/octet-stream" } : {};
    const response = await fetch(url, { method: "POST", headers, body, credentials: "same-origin" });
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
    return answer;
  }

  // Sends a file and gives the key of its plan.
  async function send(file) {
    const query = new URLSearchParams({ name: file.name, size: file.size });
    const { id } = await post(`/api/uploads?${query}`);
    let key = null;
    for (let at = 0; at < file.size; at += PIECE) {
      tell(`Opening ${file.name} · ${Math.round((100 * at) / file.size)} %`);
      ({ key } = await post(`/api/uploads/${id}?at=${at}`, await file.slice(at, at + PIECE).arrayBuffer()));
    }
    return key;
  }

  async function open(file) {
    if (!file || !button() || button().disabled) return;
    button().disabled = true;
    try {
      window.dcp.navigation.open(`/plan/${await send(file)}`);
    } catch (error) {
      tell(error.message, true);
    } finally {
      if (button()) button().disabled = false;
    }
  }

  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element) || !event.target.closest("#open-file")) return;
    const input = document.createElement("input");
    input.type = "file";
    input.accept = ".dcpplan";
    input.addEventListener("change", () => open(input.files[0]));
    input.click();
  });

  const holdsFile = (event) => button() && [...(event.dataTransfer?.types || [])].includes("Files");

  document.addEventListener("dragover", (event) => {
    if (!holdsFile(event)) return;
    event.preventDefault();
    document.body.classList.add("dcp-dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dcp-dropping");
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dcp-dropping");
    if (!holdsFile(event)) return;
    event.preventDefault();
    open(event.dataTransfer.files[0]);
  });
})();
