// Stepping through the schedule: `.` and `,` select the next division and the one before, the play button goes on by
// itself; forward first, then backward. A selected device stays selected.
import { closest, hasDialog, hasModifier, isTyping, part } from "../kit/dom.ts";
import { state } from "../state.ts";

type Action = "next" | "before" | "play";

const KEYS: Readonly<Record<string, Action>> = { ".": "next", ",": "before", p: "play" };

export class Steps {
  private readonly host: HTMLElement;
  private readonly steps: readonly { division: number; backward: number }[];
  private readonly label: HTMLElement;
  private readonly play: HTMLElement;
  private readonly unfollow: () => void;
  private readonly onKey = (event: KeyboardEvent): void => this.key(event);
  private timer = 0;

  constructor(host: HTMLElement) {
    this.host = host;
    this.steps = ["forward", "backward"].flatMap((way, backward) => (
      Array.from({ length: Number(host.dataset[way]) }, (_, division) => ({ division, backward }))));
    this.label = part(host, "output");
    this.play = part(host, "[data-step=play]");
    host.addEventListener("click", (event) => {
      const button = closest(event, "button[data-step]");
      if (button) this.act(button.dataset.step as Action);
    });
    document.addEventListener("keydown", this.onKey);
    this.mark();
    this.unfollow = state.follow((_, changed) => { if (changed.has("sel")) this.mark(); });
  }

  dispose(): void {
    this.stop();
    document.removeEventListener("keydown", this.onKey);
    this.unfollow();
  }

  private key(event: KeyboardEvent): void {
    const action = KEYS[event.key];
    if (!action || hasModifier(event) || isTyping(event) || event.defaultPrevented || hasDialog()) return;
    event.preventDefault();
    this.act(action);
  }

  private act(action: Action): void {
    if (action === "play" && !this.timer) { this.start(); return; }
    this.stop();
    if (action !== "play") this.go(action === "next" ? 1 : -1);
  }

  /** Where the selection is among the steps, -1 if it is none of them. */
  private get at(): number {
    const { sel } = state.get();
    if (sel?.type !== "division") return -1;
    return this.steps.findIndex((step) => step.division === sel.division && step.backward === (sel.backward ?? 0));
  }

  private go(by: number): boolean {
    const { at } = this;
    const next = this.steps[at < 0 ? (by > 0 ? 0 : this.steps.length - 1) : at + by];
    if (!next) return false;
    const { sel } = state.get();
    const device = sel?.device === undefined || sel.peer !== undefined ? {} : { device: sel.device };
    state.set({ sel: { type: "division", ...next, ...device } });
    return true;
  }

  private start(): void {
    if (this.at === this.steps.length - 1) state.set({ sel: null });
    this.timer = window.setInterval(() => { if (!this.go(1)) this.stop(); }, Number(this.host.dataset.pause));
    this.go(1);
    this.say("⏸", "Pause");
  }

  private stop(): void {
    clearInterval(this.timer);
    this.timer = 0;
    this.say("▶", "Play all divisions");
  }

  private say(sign: string, label: string): void {
    this.play.textContent = sign;
    this.play.setAttribute("aria-label", label);
  }

  private mark(): void {
    const step = this.steps[this.at];
    if (!step && this.timer) this.stop();
    this.label.textContent = step ? `${step.backward ? "backward" : "forward"} ${step.division}` : `${this.steps.length} divisions`;
  }
}
