// What a plan gains over other layouts: attention as it was predicted, and the whole step, for a share that attention
// takes of a step. The page of a plan asks the server for its static layouts, that of a data set holds those of all batches.
import { loadJson } from "../api.ts";
import { make } from "../kit/dom.ts";
import * as format from "../kit/format.ts";

export interface Gain { readonly label: string; readonly note: string; readonly speedups: readonly number[] }

const USUAL = 30; // per cent of a step that attention takes, until somebody says otherwise

export const loadGains = (host: HTMLElement, signal: AbortSignal): Promise<readonly Gain[]> =>
  (host.dataset.gains ? Promise.resolve(JSON.parse(host.dataset.gains) as Gain[]) : loadJson<Gain[]>(host.dataset.url ?? "", { signal }));

/** How many times faster a step is in which attention took a share of the time, with the other layout. */
export const gainOfStep = (speedup: number, share: number): number => 1 / (1 - share + share / speedup);

/** "1.28×", and of several batches the median with the least and the most. */
export function spread(values: readonly number[]): string {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length / 2;
  const median = (sorted[Math.ceil(half) - 1] + sorted[Math.floor(half)]) / 2;
  const [least, most] = [sorted[0], sorted[sorted.length - 1]].map(format.ratio);
  return sorted.length === 1 ? `${least}×` : `${format.ratio(median)}× (${least} to ${most})`;
}

export class GainTable {
  dispose?(): void;
  private readonly gains: readonly Gain[];
  private readonly body = make("tbody");
  private readonly told = make("p", { className: "dcp-verdict", role: "status" });
  private readonly value = make("output", { htmlFor: "dcp-share" });
  private readonly slider = make("input", { type: "range", id: "dcp-share", min: "1", max: "100", value: String(USUAL) });

  constructor(host: HTMLElement, gains: readonly Gain[]) {
    this.gains = gains;
    if (!gains.length) { host.replaceChildren(make("p", { className: "dcp-hint" }, host.dataset.none ?? "No other layout can place this batch.")); return; }
    const heads = ["Speed against", "attention", "step", ""];
    const head = make("tr", {}, ...heads.map((text, at) => make("th", { scope: "col", className: at === 1 || at === 2 ? "dcp-number" : "" }, text)));
    const label = make("label", { htmlFor: "dcp-share" }, "Attention's share of a step with the other layout");
    host.replaceChildren(this.told, make("div", { className: "dcp-tools" }, label, this.slider, this.value),
      make("div", { className: "dcp-scroll", tabIndex: 0 }, make("table", { className: "dcp-table" }, make("thead", {}, head), this.body)));
    this.slider.addEventListener("input", () => this.show());
    this.show();
  }

  private show(): void {
    const share = Number(this.slider.value) / 100;
    this.value.textContent = `${this.slider.value} %`;
    const cell = (text: string) => make("td", { className: "dcp-number" }, text);
    const ofStep = ({ speedups }: Gain) => spread(speedups.map((speedup) => gainOfStep(speedup, share)));
    this.body.replaceChildren(...this.gains.map((gain) => make("tr", {},
      make("th", { scope: "row" }, gain.label), cell(spread(gain.speedups)), cell(ofStep(gain)), make("td", { className: "dcp-muted" }, gain.note))));
    const told = this.gains.filter(({ label }) => label.startsWith("fastest")).map((gain) => `${ofStep(gain)} as fast as with the ${gain.label}`);
    this.told.textContent = told.length ? `If attention takes ${this.slider.value} % of a step, a step is ${told.join(", and ")}.` : "";
  }
}
