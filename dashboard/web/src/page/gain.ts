// What a plan gains over other layouts: attention as it was predicted, and the whole step, for a share that attention takes
// of it or for a model. The page of a plan asks the server for its static layouts, that of a data set holds those of all
// batches.
import { loadJson } from "../api.ts";
import { make } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { state } from "../state.ts";

export interface Gain {
  readonly label: string; readonly note: string; readonly told: string; readonly speedups: readonly number[];
  readonly steps: Readonly<Record<string, readonly number[]>>; // by the name of a model
}

const USUAL = 30; // per cent of a step that attention takes, until somebody says otherwise
const OF_MODEL = "Predicted for devices with the model's share of these heads, and for linear layers at 55 % of a device's peak.";

export const loadGains = (host: HTMLElement, signal: AbortSignal): Promise<readonly Gain[]> =>
  (host.dataset.gains ? Promise.resolve(JSON.parse(host.dataset.gains) as Gain[]) : loadJson<Gain[]>(host.dataset.url ?? "", { signal }));

/** How many times faster a step is in which attention took a share of the time, with the other layout. */
export const gainOfStep = (speedup: number, share: number): number => 1 / (1 - share + share / speedup);

/** The share of an address in per cent, 1 to 100. */
export function shareOf(text: string | undefined): number {
  const share = Math.round(Number(text || USUAL));
  return share >= 1 && share <= 100 ? share : USUAL;
}

/** "1.28×", and of several batches the median with the least and the most, which stay on one line. */
export function spread(values: readonly number[]): string {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length / 2;
  const median = (sorted[Math.ceil(half) - 1] + sorted[Math.floor(half)]) / 2;
  const [least, most] = [sorted[0], sorted[sorted.length - 1]].map(format.ratio);
  return sorted.length === 1 ? `${least}×` : `${format.ratio(median)}× (${least}\u00a0to\u00a0${most})`;
}

export class GainTable {
  private readonly gains: readonly Gain[];
  private readonly body = make("tbody");
  private readonly told = make("p", { className: "dcp-verdict", role: "status" });
  private readonly basis = make("p", { className: "dcp-hint" }, OF_MODEL);
  private readonly value = make("output", { htmlFor: "dcp-share" });
  private readonly slider = make("input", { type: "range", id: "dcp-share", min: "1", max: "100" });
  private readonly share = make("label", { className: "dcp-tools" }, "Attention's share of a step with the other layout", this.slider, this.value);
  private readonly model = make("select", { className: "dcp-input" });
  readonly dispose: () => void;

  constructor(host: HTMLElement, gains: readonly Gain[]) {
    this.gains = gains;
    this.dispose = state.follow((_, changed) => { if (changed.has("share") || changed.has("model")) this.show(); });
    if (!gains.length) { host.replaceChildren(make("p", { className: "dcp-hint" }, host.dataset.none ?? "No other layout can place this batch.")); return; }
    const heads = ["Speed against", "attention", "step"];
    const head = make("tr", {}, ...heads.map((text, at) => make("th", { scope: "col", className: at ? "dcp-number" : "" }, text)));
    const models = Object.keys(gains[0].steps);
    this.model.append(...["", ...models].map((name) => make("option", { value: name }, name || "any")));
    const choice = models.length ? [make("label", {}, "Model ", this.model)] : [];
    host.replaceChildren(this.told, make("div", { className: "dcp-tools" }, ...choice, this.share),
      make("div", { className: "dcp-scroll", tabIndex: 0 }, make("table", { className: "dcp-table" }, make("thead", {}, head), this.body)), this.basis);
    this.slider.addEventListener("input", () => state.set({ share: this.slider.value === String(USUAL) ? null : this.slider.value }));
    this.model.addEventListener("change", () => state.set({ model: this.model.value || null }));
    this.show();
  }

  private show(): void {
    const [percent, wanted] = [shareOf(state.get().share), state.get().model ?? ""];
    const model = this.gains.some(({ steps }) => wanted in steps) ? wanted : "";
    this.slider.value = String(percent);
    this.value.textContent = `${percent} %`;
    this.model.value = model;
    [this.basis.hidden, this.share.hidden] = [!model, model !== ""];
    const ofStep = ({ speedups, steps }: Gain) => {
      const found = model ? steps[model] ?? [] : speedups.map((speedup) => gainOfStep(speedup, percent / 100));
      return found.length ? spread(found) : "-";
    };
    const cell = (text: string) => make("td", { className: "dcp-number" }, text);
    this.body.replaceChildren(...this.gains.map((gain) => make("tr", { className: gain.told ? "dcp-leading" : "" },
      make("th", { scope: "row" }, gain.label, " ", make("span", { className: "dcp-muted" }, gain.note)), cell(spread(gain.speedups)), cell(ofStep(gain)))));
    const told = this.gains.filter((gain) => gain.told).map((gain) => `${ofStep(gain)} as fast as with ${gain.told}`);
    const condition = model ? `A step of ${model}` : `If attention takes ${percent} % of a step, a step`;
    this.told.textContent = told.length ? `${condition} is ${told.join("; ")}.` : "";
  }
}
