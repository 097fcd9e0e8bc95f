// The settings of a plan on /edit: cluster, devices, blocks, tolerance, method, and how much of the sample is planned.
"use strict";

window.dcp = window.dcp || {};
window.dcp.edit = window.dcp.edit || {};

(() => {
  const { el, field, select } = window.dcp.edit;
  const BLOCKS = ["auto", "64", "128", "256", "512", "1024", "2048", "4096", "8192"];
  const DEFAULTS = {
    cluster: "", nodes: "2", per: "4", block: "auto", tol: "10", method: "portfolio", effort: "balanced",
    scale: "1024", copies: "1", heads: "8/2/128", dtype: "2", limit: "60",
  };
  const POWERS = [1, 2, 4, 8, 16, 32, 64];

  // choices: {clusters: [name], methods: [[name, label, reason]], efforts: [name]}; start: settings that the text brings
  // along; given: those of the address; changed() after any change
  class Settings {
    constructor(host, choices, start, given, changed) {
      this.changed = changed;
      this.defaults = { ...DEFAULTS, cluster: choices.clusters[0] };
      for (const name of Object.keys(this.defaults)) this.defaults[name] = start[name] ?? this.defaults[name];
      const at = (name) => given[name] ?? this.defaults[name];
      const names = (list) => list.map((name) => [name, name]);
      this.controls = {
        cluster: select(names(choices.clusters), at("cluster")),
        nodes: this.power(at("nodes")),
        per: this.power(at("per")),
        block: select(BLOCKS.map((size) => [size, size === "auto" ? "auto" : `${size} tokens`]), at("block")),
        tol: this.slider(at("tol"), 0, 50),
        method: select(choices.methods, at("method")),
        effort: select(names(choices.efforts), at("effort")),
        scale: select(["1", "16", "64", "256", "1024", "4096", "16384"].map((size) => [size, `× ${Number(size).toLocaleString("en-US")}`]), at("scale")),
        copies: el("input", { type: "number", min: 1, max: 256, step: 1, value: at("copies") }),
        heads: el("input", { value: at("heads"), title: "Query heads / key and value heads / size of a head", spellcheck: "false", size: 10 }),
        dtype: select([["1", "1 byte"], ["2", "2 bytes"], ["4", "4 bytes"], ["8", "8 bytes"]], at("dtype")),
        limit: select(["10", "60", "300", "600"].map((size) => [size, `${size} s`]), at("limit")),
      };
      const labels = {
        cluster: "Cluster", nodes: "Nodes", per: "Devices per node", block: "Block", tol: "Tolerance",
        method: "Method", effort: "Effort of the plan", scale: "Lengths of the sample", copies: "Copies in the batch",
        heads: "Heads q/kv/size", dtype: "Element size", limit: "Time limit of the plan",
      };
      for (const [name, control] of Object.entries(this.controls)) {
        control.id = `edit-${name}`;
        const isSlider = control.type === "range";
        const note = isSlider ? el("output", { for: control.id }) : null;
        if (isSlider) control.note = note;
        host.append(field(labels[name], control, note));
        control.addEventListener("input", () => this.told());
      }
      this.notes();
    }

    // A slider over powers of two, and over a number between them if a plan or an address brings one.
    power(value) {
      const given = Math.min(64, Math.max(1, Math.round(Number(value)) || 1));
      const steps = [...new Set([...POWERS, given])].sort((one, other) => one - other);
      const made = this.slider(steps.indexOf(given), 0, steps.length - 1);
      made.read = () => String(steps[made.value]);
      made.tell = () => made.read();
      return made;
    }

    slider(value, low, high) {
      const made = el("input", { type: "range", min: low, max: high, step: 1, value });
      made.read = () => made.value;
      made.tell = () => `${made.value} %`;
      return made;
    }

    notes() {
      for (const control of Object.values(this.controls)) {
        if (!control.note) continue;
        control.note.textContent = control.tell();
        control.setAttribute("aria-valuetext", control.tell());
      }
    }

    told() {
      this.notes();
      this.changed();
    }

    values() {
      return Object.fromEntries(Object.entries(this.controls).map(([name, control]) =>
        [name, control.read ? control.read() : control.value]));
    }

    // What differs from the defaults, for the address.
    address() {
      return Object.fromEntries(Object.entries(this.values()).filter(([name, value]) => value !== this.defaults[name]));
    }

    // As the server's `read_batch` reads it.
    request() {
      const { cluster, nodes, per, block, tol, method, effort, scale, copies, heads, dtype, limit } = this.values();
      return {
        cluster, nodes: Number(nodes), devices_per_node: Number(per), block: block === "auto" ? null : Number(block),
        tolerance: Number(tol) / 100, method, budget: effort, scale: Number(scale), copies: Math.round(Number(copies)),
        heads: heads.trim(), dtype_bytes: Number(dtype), limit_s: Number(limit),
      };
    }
  }

  Object.assign(window.dcp.edit, { Settings });
})();
