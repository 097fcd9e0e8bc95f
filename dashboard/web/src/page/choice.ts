// Controls that are one key of the state.
import { closest } from "../kit/dom.ts";
import { type TextKey, state } from "../state.ts";

/**
 * A row of choices: `.dcp-choice[data-key][data-default]` with `button[data-value]`. Choosing sets the state; whatever
 * else sets it (the URL, another view) marks the choice.
 */
export class Choice {
  readonly dispose: () => void;
  private readonly host: HTMLElement;
  private readonly key: TextKey;

  constructor(host: HTMLElement) {
    this.host = host;
    this.key = host.dataset.key as TextKey;
    host.addEventListener("click", (event) => {
      const button = closest<HTMLButtonElement>(event, "button[data-value]");
      if (button) this.choose(button);
    });
    host.addEventListener("keydown", (event) => this.move(event));
    this.mark();
    this.dispose = state.follow((_, changed) => { if (changed.has(this.key)) this.mark(); });
  }

  private choose(button: HTMLButtonElement): void {
    const { value } = button.dataset;
    state.set({ [this.key]: value === this.host.dataset.default ? null : value });
  }

  private buttons(): HTMLButtonElement[] { return [...this.host.querySelectorAll<HTMLButtonElement>("button[data-value]")]; }

  private mark(): void {
    const asked = state.get()[this.key];
    const isKnown = this.buttons().some((button) => button.dataset.value === asked);
    const chosen = isKnown ? asked : this.host.dataset.default;
    for (const button of this.buttons()) {
      const isChosen = button.dataset.value === chosen;
      button.setAttribute("aria-checked", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    }
  }

  private move(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const all = this.buttons();
    if (!step || !all.length) return;
    event.preventDefault();
    const at = all.findIndex((button) => button === document.activeElement);
    const next = all[(at + step + all.length) % all.length];
    next.focus();
    this.choose(next);
  }
}

/** `.dcp-shown[data-key][data-default]` says in `data-show` what the state has chosen; the style shows the rest of it. */
export class Shown {
  readonly dispose: () => void;
  private readonly host: HTMLElement;

  constructor(host: HTMLElement) {
    this.host = host;
    this.mark();
    this.dispose = state.follow((_, changed) => { if (changed.has(host.dataset.key as TextKey)) this.mark(); });
  }

  private mark(): void {
    const { key, default: usual } = this.host.dataset;
    const asked = state.get()[key as TextKey] ?? "";
    const isKnown = document.querySelector(`.dcp-choice[data-key="${key}"] [data-value="${CSS.escape(asked)}"]`);
    this.host.dataset.show = isKnown ? asked : usual;
  }
}
