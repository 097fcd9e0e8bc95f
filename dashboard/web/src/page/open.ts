// Opening a plan file of one's own: the button "Open a file", or a file dropped on the page of plans.
// The file travels in small pieces (see dcp_dashboard/api/routes.py) and is shown from this session only.
import { loadJson } from "../api.ts";
import { closest, make, messageOf } from "../kit/dom.ts";
import { openPage } from "./navigation.ts";

const PIECE = 500_000;

const opener = (): HTMLButtonElement | null => document.querySelector<HTMLButtonElement>("#open-file");

function tell(text: string, className = "dcp-muted"): void {
  const status = document.getElementById("open-status");
  if (status) Object.assign(status, { textContent: text, className });
}

/** Sends a file and gives the key of its plan. */
async function send(file: File): Promise<string> {
  const query = new URLSearchParams({ name: file.name, size: String(file.size) });
  const { id } = await loadJson<{ id: string }>(`/api/uploads?${query}`, { method: "POST" });
  let key = "";
  for (let at = 0; at < file.size; at += PIECE) {
    tell(`Opening ${file.name} · ${Math.round((100 * at) / file.size)} %`);
    const body = await file.slice(at, at + PIECE).arrayBuffer();
    const headers = { "Content-Type": "application/octet-stream" };
    ({ key } = await loadJson<{ key: string }>(`/api/uploads/${id}?at=${at}`, { method: "POST", headers, body }));
  }
  return key;
}

async function open(file: File | undefined): Promise<void> {
  const button = opener();
  if (!file || !button || button.disabled) return;
  button.disabled = true;
  try {
    openPage(`/plan/${await send(file)}`);
  } catch (error) {
    tell(messageOf(error), "dcp-bad");
  } finally {
    const now = opener();
    if (now) now.disabled = false;
  }
}

const holdsFile = (event: DragEvent): boolean => opener() !== null && (event.dataTransfer?.types ?? []).includes("Files");

export function followFiles(): void {
  document.addEventListener("click", (event) => {
    if (!closest(event, "#open-file")) return;
    const input = make("input", { type: "file", accept: ".dcpplan" });
    input.addEventListener("change", () => void open(input.files?.[0]));
    input.click();
  });
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
    void open(event.dataTransfer?.files[0]);
  });
}
