// The full plan of /edit: made by a process of the server on request, watched, cancelled. A finished plan can be pinned
// as B and compared with the next one.
import { loadJson, post } from "../api.ts";
import { button, make, messageOf } from "../kit/dom.ts";
import { type Job, runJob, stageOf } from "../page/jobs.ts";
import { type Figures, seconds } from "./figures.ts";

const TOLD = "A separate process makes the full plan. You can then open, compare and download the plan.";
const GONE = "is gone: the server keeps plans made here only until it stops";

/** Keys of the plan that was made and of the one that is pinned, empty for none. */
export interface Keys { a: string; b: string }

export class Planner {
  readonly keys: Keys;
  readonly start = make("button", { type: "button", id: "edit-plan", className: "dcp-button dcp-primary" }, "Plan");
  private readonly stop = button("Cancel", "dcp-button", () => void this.cancel(), { id: "edit-cancel", disabled: true });
  private readonly progress = make("progress", { "aria-label": "Planning", hidden: true });
  private readonly told = make("span", { role: "status", id: "edit-job" }, TOLD);
  private readonly results = make("div", { className: "dcp-edit-results" });
  private readonly changed: () => void;
  private readonly figures = new Map<string, Figures>();
  private readonly missing = new Set<string>();
  private job: string | null = null;
  private isBusy = false;
  private isGone = false;

  /** given: keys from the address; changed() after a plan was made or pinned. */
  constructor(host: HTMLElement, given: Readonly<Record<string, string>>, changed: () => void) {
    this.changed = changed;
    this.keys = { a: planKey(given.a), b: planKey(given.b) };
    host.append(make("div", { className: "dcp-edit-row" }, this.start, this.stop, this.progress, this.told), this.results);
    this.list();
    for (const plan of new Set([this.keys.a, this.keys.b])) if (plan) void this.learn(plan);
  }

  dispose(): void { this.isGone = true; }

  /** The figures of a plan that another page or a shared address names. */
  private async learn(plan: string): Promise<void> {
    try {
      this.figures.set(plan, await loadJson<Figures>(`/api/edit/figures/${plan}`));
    } catch {
      this.missing.add(plan);
    }
    this.list();
    this.changed();
  }

  async run(body: object): Promise<void> {
    if (this.isBusy) return;
    this.busy(true, "starting");
    try {
      this.finish(await runJob<Figures>("plan", body, (job) => {
        this.job = job.job;
        this.told.textContent = stageOf(job);
      }, () => this.isGone));
    } catch (error) {
      this.busy(false, `No plan: ${messageOf(error)}`, true);
    }
  }

  private finish(job: Job<Figures>): void {
    if (job.state === "cancelled") { this.busy(false, "Cancelled."); return; }
    if (job.state !== "done") { this.busy(false, `No plan: ${job.message}`, true); return; }
    this.keys.a = job.key;
    this.figures.set(job.key, { ...job.figures, seconds: job.seconds });
    this.busy(false, `Planned in ${job.seconds.toFixed(1)} s`);
    this.list();
    this.changed();
  }

  private async cancel(): Promise<void> {
    if (!this.job) return;
    this.stop.disabled = true;
    await post(`/api/edit/plan/${this.job}/cancel`, {}).catch(() => null); // the next look at the job says what became of it
  }

  private busy(isBusy: boolean, text: string, isBad = false): void {
    this.isBusy = isBusy;
    if (!isBusy) this.job = null;
    this.start.disabled = isBusy;
    this.stop.disabled = !isBusy;
    this.progress.hidden = !isBusy;
    this.told.textContent = text;
    this.told.className = isBad ? "dcp-bad" : "";
  }

  pinned(): Figures | null { return this.figures.get(this.keys.b) ?? null; }

  private list(): void {
    const { a, b } = this.keys;
    this.results.replaceChildren(...[
      a ? this.row("A", a, button("Pin as B", "dcp-button", () => this.pin(a), { id: "edit-pin" })) : null,
      b ? this.row("B", b, button("Unpin", "dcp-button", () => this.pin(""))) : null,
      a && b && a !== b ? make("p", {}, pageLink(`/compare?a=${a}&b=${b}`, "Compare A with B")) : null,
    ].filter((row) => row !== null));
  }

  private row(name: string, plan: string, action: HTMLElement): HTMLElement {
    const figures = this.figures.get(plan);
    const facts = figures ? `${figures.mask} on ${figures.devices} devices by ${figures.placed_by}: ${seconds(figures.predicted_s)}`
      : this.missing.has(plan) ? GONE : plan;
    const file = make("a", { href: `/api/plan/${plan}/file`, className: "dcp-edit-link", download: "" }, "Download .dcpplan");
    return make("p", {}, make("strong", {}, name), ` ${facts} `, pageLink(`/plan/${plan}`, "Open"),
      pageLink(`/plan/${plan}/timeline`, "Timeline"), pageLink(`/plan/${plan}/mask`, "Mask"), file, action);
  }

  private pin(plan: string): void {
    this.keys.b = plan;
    this.list();
    this.changed();
  }
}

const planKey = (text = ""): string => (/^[0-9a-f]{16}$/.test(text) ? text : "");

const pageLink = (href: string, text: string): HTMLElement => make("a", { href, className: "dcp-edit-link", "data-plain": "link" }, text);
