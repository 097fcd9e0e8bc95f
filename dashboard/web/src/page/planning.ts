// Buttons that plan in the worker process: the examples of an empty list, and on the overview of a plan "what to try":
// changes with their predicted gain, each with a link to a comparison, or the front of the batch.
import { closest, make, messageOf, part } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { finishJob } from "./jobs.ts";
import { openPage } from "./navigation.ts";

interface Change { change: string; option: string; saves_s: number; share: number; key: string }

function line(key: string, { change, option, saves_s: saves, share, key: made }: Change): HTMLElement {
  const href = `/compare?a=${key}&as=simulated&b=${made}&bs=simulated`;
  const gain = `${format.duration(saves * 1e9)} less (${format.digits(100 * share)} %)`;
  return make("li", {}, `${change}: ${gain}${option ? `, ${option}` : ""} `, make("a", { href, "data-plain": "link" }, "compare"));
}

/** Actions of the buttons below `data-task` on the plans that were made; each returns its outcome. */
const TASKS: Readonly<Record<string, (key: string, plans: readonly Change[]) => string>> = {
  suggest(key, plans) {
    part(document, "#tried").replaceChildren(...plans.map((plan) => line(key, plan)));
    return plans.length ? "Predicted savings, planned with the smallest search budget:" : "No tried change saves 1 % or more.";
  },
  front(key, plans) {
    const keys = [key, ...plans.map((plan) => plan.key)];
    openPage(`/front?${keys.map((one) => `plan=${one}`).join("&")}`);
    return "Opening the Pareto front.";
  },
};

async function planChanges(button: HTMLElement, tell: (text: string) => void): Promise<void> {
  const { key = "", task = "" } = button.dataset;
  const { figures: { plans } } = await finishJob<{ plans: Change[] }>(task, { plan: key }, tell);
  if (button.isConnected) tell(TASKS[task](key, plans)); // nobody waits on another page
}

async function makeExamples(button: HTMLElement, tell: (text: string) => void): Promise<void> {
  const examples = JSON.parse(button.dataset.examples ?? "[]") as object[];
  for (const [at, example] of examples.entries()) {
    await finishJob("plan", example, (stage) => tell(`${at + 1} of ${examples.length}: ${stage}`));
  }
  if (button.isConnected) openPage("/?made=examples");
}

/** Runs the work of a button, which is disabled meanwhile and says in a status what becomes of it. */
async function run(button: HTMLButtonElement, status: HTMLElement, failed: string, work: (tell: (text: string) => void) => Promise<void>): Promise<void> {
  button.disabled = true;
  status.className = "dcp-muted";
  try {
    await work((text) => { status.textContent = text; });
  } catch (error) {
    status.textContent = `${failed}: ${messageOf(error)}`;
    status.className = "dcp-bad";
  }
  button.disabled = false;
}

export function followPlanning(): void {
  document.addEventListener("click", (event) => {
    const examples = closest<HTMLButtonElement>(event, "#make-examples");
    if (examples) void run(examples, part(document, "#examples-status"), "The examples failed", (tell) => makeExamples(examples, tell));
    const changes = closest<HTMLButtonElement>(event, "[data-task]");
    if (changes) void run(changes, part(document, "#tried-status"), "Planning failed", (tell) => planChanges(changes, tell));
  });
}
