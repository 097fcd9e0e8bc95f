// The bar `.dcp-changed`: every few seconds the versions of the shown files are asked for; when one is another the
// bar says so and offers to reload. What is shown stays until then.
import { loadJson } from "../api.ts";
import { button } from "../kit/dom.ts";
import { state } from "../state.ts";

const EVERY_MS = 3000;

function tell(bar: HTMLElement, text: string): void {
  bar.replaceChildren(text, button("Reload", "dcp-button", () => { state.flush(); location.reload(); }));
  bar.hidden = false;
}

/** The sentences about files whose version is another than the one that is shown, or null for one that is gone. */
function differences(bar: DOMStringMap, versions: Readonly<Record<string, string | null>>): string {
  const [keys, shown, names] = [(bar.keys ?? "").split(","), (bar.versions ?? "").split(","), (bar.names ?? "").split("/")];
  return keys.flatMap((key, i) => {
    const version = versions[key];
    if (version === null) return [`${names[i]} was deleted or moved.`];
    return version !== undefined && version !== shown[i] ? [`${names[i]} has changed on disk.`] : [];
  }).join(" ");
}

async function look(): Promise<void> {
  const bar = document.querySelector<HTMLElement>(".dcp-changed");
  const keys = bar?.dataset.keys;
  if (!bar || document.hidden || !keys) return;
  const shown = bar.dataset.versions;
  const answer = await loadJson<{ versions: Record<string, string | null> }>(`/api/changes?keys=${keys}`).catch(() => null);
  if (!answer || !bar.isConnected || bar.dataset.keys !== keys || bar.dataset.versions !== shown) return;
  const text = differences(bar.dataset, answer.versions);
  if (text === (bar.dataset.said ?? "")) return;
  bar.dataset.said = text;
  if (text) tell(bar, `${text} This page still shows the old version. `);
  else bar.hidden = true;
}

export function followChanges(): void {
  setInterval(() => void look(), EVERY_MS);
  document.addEventListener("visibilitychange", () => void look());
}
