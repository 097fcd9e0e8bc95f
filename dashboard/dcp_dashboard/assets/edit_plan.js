// What the mask costs on a cluster: figures at once while one types, and the full plan on request, made by a process
// of the server that can be cancelled. A finished plan can be pinned as B and compared with the next one.
"use strict";

window.dcp = window.dcp || {};
window.dcp.edit = window.dcp.edit || {};

(() => {
  const { el, post } = window.dcp.edit;
  const POLL_MS = 250;
  const UNITS = { B: [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9]], s: [["ns", 1e-9], ["µs", 1e-6], ["ms", 1e-3], ["s", 1]] };

  function quantity(value, unit) {
    if (!value) return `0 ${unit}`;
    const [name, size] = [...UNITS[unit]].reverse().find(([, least]) => value >= least) || UNITS[unit][0];
    return `${Number((value / size).toPrecision(3))} ${name}`;
  }

  const CARDS = [
    ["Predicted", (f) => f.predicted_s, (v) => quantity(v, "s"), "forward and backward, by the simulator"],
    ["Compute max/mean", (f) => f.compute_imbalance, (v) => v.toFixed(2), "busiest device / mean"],
    ["Token max/mean", (f) => f.token_imbalance, (v) => v.toFixed(2), "largest owner / mean"],
    ["Bytes moved", (f) => f.total_bytes, (v) => quantity(v, "B"), "forward and backward"],
    ["Between nodes", (f) => f.inter_node_bytes, (v) => quantity(v, "B"), "the part that crosses the network"],
  ];

  class Cards {
    constructor(host) {
      this.host = host;
    }

    // Shows figures, and beside them by how much they differ from those of a pinned plan.
    show(figures, pinned) {
      this.host.replaceChildren(...CARDS.map(([name, read, write, note]) => {
        const value = read(figures);
        const other = pinned ? read(pinned) : 0;
        const parts = [el("dt", {}, name), el("dd", { class: "dcp-value" }, write(value))];
        if (other) {
          const change = (100 * (value - other)) / other;
          const kind = Math.abs(change) < 0.05 ? "" : change < 0 ? "dcp-good" : "dcp-bad";
          parts.push(el("dd", { class: kind }, `${change > 0 ? "+" : ""}${change.toFixed(1)} % against B`));
        } else parts.push(el("dd", {}, note));
        return el("div", {}, ...parts);
      }));
    }
  }

  // Three rows of bars, a bar for each device: computed pairs, owned tokens, received bytes; a line at the mean.
  class Bars {
    constructor(host) {
      this.host = host;
      this.canvas = el("canvas", { role: "img", "aria-label": "no figures yet", class: "dcp-edit-bars" });
      this.table = el("details", { ontoggle: () => this.write() }, el("summary", {}, "Every device in numbers"));
      const hint = el("p", { class: "dcp-hint" }, "A bar per device, the nodes in turn dark and light; the line is the mean.");
      host.append(this.canvas, hint, this.table);
      this.sizes = new ResizeObserver(() => this.draw());
      this.sizes.observe(host);
    }

    dispose() {
      this.sizes.disconnect();
    }

    rows() {
      const { device_pairs, device_tokens, device_bytes } = this.figures;
      return [["Pairs", device_pairs], ["Tokens", device_tokens], ["Received bytes", device_bytes]];
    }

    show(figures) {
      this.figures = figures;
      const told = this.rows().map(([name, values]) => {
        const most = Math.max(...values);
        return `${name}: most on device ${values.indexOf(most)}, ${most.toLocaleString("en-US")}`;
      });
      this.canvas.setAttribute("aria-label", told.join("; "));
      this.draw();
      this.write();
    }

    draw() {
      const width = this.host.clientWidth;
      if (!this.figures || !width) return;
      const { devices, devices_per_node: perNode } = this.figures;
      const [label, height, gap] = [96, 40, 8];
      window.dcp.edit.resize(this.canvas, width, 3 * (height + gap), window.devicePixelRatio || 1);
      const pen = this.canvas.getContext("2d");
      pen.scale(this.canvas.width / width, this.canvas.height / (3 * (height + gap)));
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(name).trim();
      pen.font = "11px system-ui, sans-serif";
      this.rows().forEach(([name, values], at) => {
        const bottom = (at + 1) * (height + gap) - gap;
        const mean = values.reduce((sum, value) => sum + value, 0) / devices;
        const most = Math.max(...values, mean * 1.25, 1);
        const slot = (width - label) / devices;
        const space = slot > 3 ? 1 : 0;
        pen.fillStyle = colour("--canvas");
        pen.fillRect(label, bottom - height, width - label, height);
        pen.fillStyle = colour("--accent");
        values.forEach((value, device) => {
          pen.globalAlpha = Math.floor(device / perNode) % 2 ? 0.7 : 1; // nodes can be told apart
          pen.fillRect(label + device * slot, bottom - (value / most) * height, Math.max(0.5, slot - space), (value / most) * height);
        });
        pen.globalAlpha = 1;
        pen.fillStyle = colour("--ink");
        pen.fillRect(label, bottom - (mean / most) * height, width - label, 1);
        pen.fillStyle = colour("--muted");
        pen.fillText(name, 0, bottom - height / 2 + 4);
      });
    }

    write() {
      if (!this.table.open || !this.figures) return;
      const rows = this.rows();
      const cells = (tag, values) => values.map((value) => el(tag, { class: "dcp-number" }, value.toLocaleString("en-US")));
      const body = rows[0][1].map((_, device) => el("tr", {}, el("th", { scope: "row", class: "dcp-number" }, String(device)),
        ...cells("td", rows.map(([, values]) => values[device]))));
      const head = el("tr", {}, ...cells("th", ["Device", ...rows.map(([name]) => name)]));
      const made = el("table", { class: "dcp-table" }, el("thead", {}, head), el("tbody", {}, ...body));
      this.table.replaceChildren(this.table.querySelector("summary"), el("div", { class: "dcp-scroll dcp-tall", tabindex: "0" }, made));
    }
  }

  // The full plan: started, watched, cancelled; what came out, and what is pinned.
  class Planner {
    // given: {a, b}: keys from the address; changed() after a plan was made or pinned
    constructor(host, given, changed) {
      this.changed = changed;
      this.keys = { a: key(given.a), b: key(given.b) };
      this.figures = {};
      this.start = el("button", { type: "button", id: "edit-plan", class: "dcp-button dcp-primary" }, "Plan");
      this.stop = el("button", { type: "button", id: "edit-cancel", class: "dcp-button", disabled: true, onclick: () => this.cancel() }, "Cancel");
      this.progress = el("progress", { "aria-label": "Planning", hidden: true });
      this.told = el("span", { role: "status", id: "edit-job" }, "The full plan is made by a process of its own; it can be opened, compared and downloaded.");
      this.results = el("div", { class: "dcp-edit-results" });
      host.append(el("div", { class: "dcp-edit-row" }, this.start, this.stop, this.progress, this.told), this.results);
      this.list();
      for (const plan of Object.values(this.keys)) this.learn(plan);
    }

    // The figures of a plan that another page or a shared address names.
    async learn(plan) {
      if (!plan || this.figures[plan]) return;
      const answer = await fetch(`/api/edit/figures/${plan}`).then((reply) => reply.json()).catch(() => ({}));
      if (answer.error) this.missing = { ...this.missing, [plan]: answer.error };
      else this.figures[plan] = answer;
      this.list();
      this.changed();
    }

    dispose() {
      this.isGone = true;
    }

    async run(body) {
      if (this.job) return;
      this.busy(true, "starting");
      try {
        const started = await post("plan", body);
        this.job = started.job;
        let state = started;
        while (!this.isGone && ["waiting", "running"].includes(state.state)) {
          this.told.textContent = `${state.stage} · ${state.seconds.toFixed(1)} s`;
          await new Promise((done) => setTimeout(done, POLL_MS));
          state = await (await fetch(`/api/edit/plan/${this.job}`)).json();
          if (state.error) throw new Error(state.error);
        }
        this.finish(state);
      } catch (error) {
        this.busy(false, `No plan: ${error.message}`, true);
      }
    }

    finish(state) {
      if (state.state === "done") {
        this.keys.a = state.key;
        this.figures[state.key] = { ...state.figures, seconds: state.seconds };
        this.busy(false, `Planned in ${state.seconds.toFixed(1)} s`);
        this.list();
        this.changed();
      } else if (state.state === "cancelled") this.busy(false, "Cancelled.");
      else this.busy(false, `No plan: ${state.message}`, true);
    }

    async cancel() {
      if (!this.job) return;
      this.stop.disabled = true;
      await post(`plan/${this.job}/cancel`, {}).catch(() => null); // the next look at the job says what became of it
    }

    busy(isBusy, text, isBad = false) {
      if (!isBusy) this.job = null;
      this.start.disabled = isBusy;
      this.stop.disabled = !isBusy;
      this.progress.hidden = !isBusy;
      this.told.textContent = text;
      this.told.className = isBad ? "dcp-bad" : "";
    }

    pinned() {
      return this.figures[this.keys.b] || null;
    }

    list() {
      const { a, b } = this.keys;
      const rows = [];
      if (a) rows.push(this.row("A", a, el("button", { type: "button", class: "dcp-button", id: "edit-pin", onclick: () => this.pin(a) }, "Pin as B")));
      if (b) rows.push(this.row("B", b, el("button", { type: "button", class: "dcp-button", onclick: () => this.pin("") }, "Unpin")));
      if (a && b && a !== b) rows.push(el("p", {}, link(`/compare?a=${a}&b=${b}`, "Compare A with B")));
      this.results.replaceChildren(...rows);
    }

    row(name, plan, button) {
      const figures = this.figures[plan];
      const facts = figures ? `${figures.mask} on ${figures.devices} devices by ${figures.placed_by}: ${quantity(figures.predicted_s, "s")}` : this.missing?.[plan] ? "is gone: plans made here are kept until the server ends" : plan;
      return el("p", {}, el("strong", {}, name), ` ${facts} `, link(`/plan/${plan}`, "Open"), link(`/plan/${plan}/timeline`, "Timeline"),
        link(`/plan/${plan}/mask`, "Mask"), link(`/api/plan/${plan}/file`, "Download .dcpplan", true), button);
    }

    pin(plan) {
      this.keys.b = plan;
      this.list();
      this.changed();
    }
  }

  function key(text) {
    return /^[0-9a-f]{16}$/.test(text || "") ? text : "";
  }

  function link(href, text, isFile = false) {
    return el("a", { href, class: "dcp-edit-link", download: isFile ? "" : null, "data-plain": isFile ? null : "link" }, text);
  }

  Object.assign(window.dcp.edit, { Cards, Bars, Planner, quantity });
})();
