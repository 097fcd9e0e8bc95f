// A row of choices that is one key of the state: `.dcp-choice[data-key][data-default]` with `button[data-value]`.
// Choosing sets the state; whatever else sets it (the URL, another view) marks the choice.
"use strict";

window.dcp = window.dcp || {};

window.dcp.Choice = class {
  static load() { return null; }

  constructor(host) {
    this.host = host;
    this.key = host.dataset.key;
    host.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-value]");
      if (button) this.choose(button);
    });
    host.addEventListener("keydown", (event) => this.move(event));
    this.mark();
    this.unfollow = window.dcp.state.follow((_, changed) => { if (changed.has(this.key)) this.mark(); });
  }

  dispose() { this.unfollow(); }

  resize() {}

  recolour() {}

  choose(button) {
    const { value } = button.dataset;
    window.dcp.state.set({ [this.key]: value === this.host.dataset.default ? null : value });
  }

  buttons() { return [...this.host.querySelectorAll("button[data-value]")]; }

  mark() {
    const values = this.buttons().map((button) => button.dataset.value);
    const asked = window.dcp.state.get()[this.key];
    const chosen = values.includes(asked) ? asked : this.host.dataset.default;
    for (const button of this.buttons()) {
      const isChosen = button.dataset.value === chosen;
      button.setAttribute("aria-checked", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    }
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = this.buttons();
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    this.choose(next);
  }
};
window.dcp.views = { ...window.dcp.views, "dcp-choice": "Choice" };

// `.dcp-shown[data-key][data-default]` says in `data-show` what the state has chosen; style.css shows the rest of it.
window.dcp.Shown = class {
  static load() { return null; }

  constructor(host) {
    this.host = host;
    this.mark();
    this.unfollow = window.dcp.state.follow((_, changed) => { if (changed.has(host.dataset.key)) this.mark(); });
  }

  dispose() { this.unfollow(); }

  resize() {}

  recolour() {}

  mark() {
    const { key, default: usual } = this.host.dataset;
    const asked = window.dcp.state.get()[key];
    const isKnown = document.querySelector(`.dcp-choice[data-key="${key}"] [data-value="${CSS.escape(asked || "")}"]`);
    this.host.dataset.show = isKnown ? asked : usual;
  }
};
window.dcp.views = { ...window.dcp.views, "dcp-shown": "Shown" };
