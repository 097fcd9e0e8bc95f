// Stepping through the schedule: `.` and `,` select the next division and the one before, the play button goes on by
// itself; forward first, then backward. A selected device stays selected.
"use strict";

window.dcp = window.dcp || {};

window.dcp.Steps = (() => {
  class Steps {
    static load() { return null; }

    constructor(host) {
      this.host = host;
      this.steps = ["forward", "backward"].flatMap((way, backward) => (
        Array.from({ length: Number(host.dataset[way]) }, (_, division) => ({ division, backward }))));
      this.label = host.querySelector("output");
      this.play = host.querySelector("[data-step=play]");
      host.addEventListener("click", (event) => {
        const button = event.target.closest("button[data-step]");
        if (button) this.act(button.dataset.step);
      });
      this.onKey = (event) => this.key(event);
      document.addEventListener("keydown", this.onKey);
      this.mark();
      this.unfollow = window.dcp.state.follow((_, changed) => { if (changed.has("sel")) this.mark(); });
    }

    dispose() {
      this.stop();
      document.removeEventListener("keydown", this.onKey);
      this.unfollow();
    }

    resize() {}

    recolour() {}

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || window.dcp.selection.isTyping(event.target)) return;
      if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
      const action = { ".": "next", ",": "before", p: "play" }[event.key];
      if (!action) return;
      event.preventDefault();
      this.act(action);
    }

    act(action) {
      if (action === "play") {
        if (this.timer) this.stop();
        else this.start();
        return;
      }
      this.stop();
      this.go(action === "next" ? 1 : -1);
    }

    // Where the selection is among the steps, -1 if it is none of them.
    get at() {
      const sel = window.dcp.state.get().sel;
      if (sel?.type !== "division") return -1;
      return this.steps.findIndex((step) => step.division === sel.division && step.backward === (sel.backward || 0));
    }

    go(by) {
      const { at } = this;
      const next = at < 0 ? (by > 0 ? 0 : this.steps.length - 1) : at + by;
      if (next < 0 || next >= this.steps.length) return false;
      const sel = window.dcp.state.get().sel;
      const device = sel?.device === undefined || sel.peer !== undefined ? {} : { device: sel.device };
      window.dcp.state.set({ sel: { type: "division", ...this.steps[next], ...device } });
      return true;
    }

    start() {
      if (this.at === this.steps.length - 1) window.dcp.state.set({ sel: null });
      this.timer = setInterval(() => { if (!this.go(1)) this.stop(); }, Number(this.host.dataset.pause));
      this.go(1);
      this.play.textContent = "⏸";
      this.play.setAttribute("aria-label", "Pause");
    }

    stop() {
      clearInterval(this.timer);
      this.timer = 0;
      this.play.textContent = "▶";
      this.play.setAttribute("aria-label", "Play all divisions");
    }

    mark() {
      const { at } = this;
      if (at < 0 && this.timer) this.stop();
      const step = this.steps[at];
      this.label.textContent = step
        ? `${step.backward ? "backward" : "forward"} ${step.division}`
        : `${this.steps.length} divisions`;
    }
  }

  return Steps;
})();
window.dcp.views = { ...window.dcp.views, "dcp-steps": "Steps" };
