// Bars per device, one row per quantity (compute, tokens, bytes, buffers, waits), all on one device axis. SVG: the
// theme colours it, it stays sharp in print, and a bar is marked without drawing anything anew.
//
// Data: "dcp.devices/1" (see dcp_dashboard/api/devices.py).
"use strict";

window.dcp = window.dcp || {};

window.dcp.Balance = (() => {
  const view = window.dcp.canvas;
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 100;

  class Balance {
    constructor(host, payload, label) {
      this.host = host;
      this.header = payload.header;
      this.columns = payload.columns;
      this.size = this.header.num_devices;
      host.tabIndex = 0;
      host.setAttribute("role", "group");
      host.setAttribute("aria-label", `${label}: ${this.size} devices, ${this.header.rows.length} quantities. Arrows `
        + "select a device; the table of devices holds the numbers.");
      this.bars = this.header.rows.map((row) => this.addRow(row));
      this.addAxis();
      this.tooltip = new view.Tooltip(host);
      host.classList.add("dcp-canvas-host");
      host.addEventListener("pointermove", (event) => this.hover(event));
      host.addEventListener("pointerleave", () => this.leave());
      host.addEventListener("click", (event) => this.click(event));
      host.addEventListener("keydown", (event) => this.key(event));
      this.mark();
      this.unfollow = window.dcp.state.follow((_, changed) => { if (changed.has("sel")) this.mark(); });
    }

    dispose() { this.unfollow(); }

    resize() { this.addTicks(); }

    recolour() {}

    addRow(row) {
      const values = this.columns[row.id];
      let most = 0;
      for (let device = 1; device < values.length; device++) if (values[device] > values[most]) most = device;
      const head = element("div", "dcp-bars-head");
      const title = element("span", "dcp-bars-title", row.label);
      title.title = row.meaning;
      const claim = element("span", "dcp-bars-claim");
      const link = element("button", "dcp-link", `device ${most}`);
      link.type = "button";
      link.tabIndex = -1;
      link.dataset.sel = `device.${most}`;
      claim.append("max/mean ", element("strong", "", row.ratio.toFixed(2)), " · most on ", link,
        ` (${amount(values[most], row.unit)}) · mean ${amount(row.mean, row.unit)}`);
      head.append(title, claim);
      const svg = drawing(`0 0 ${this.size} ${HEIGHT}`, "dcp-bars");
      const scale = HEIGHT / Math.max(values[most], 1e-12);
      for (const border of this.header.node_starts.slice(1, -1)) {
        svg.append(line(border, border, 0, HEIGHT, "dcp-bars-node"));
      }
      const bars = Array.from(values, (value, device) => {
        const bar = document.createElementNS(SVG, "rect");
        set(bar, { x: device + 0.1, width: 0.8, y: HEIGHT - value * scale, height: value * scale });
        bar.setAttribute("class", `dcp-bar dcp-bar-${row.kind}`);
        return bar;
      });
      svg.append(...bars, line(0, this.size, HEIGHT - row.mean * scale, HEIGHT - row.mean * scale, "dcp-bars-mean"));
      this.host.append(head, svg);
      return bars;
    }

    addAxis() {
      this.axis = element("div", "dcp-bars-axis");
      this.axis.setAttribute("aria-hidden", "true");
      this.host.append(this.axis);
      this.addTicks();
    }

    // As many device numbers as fit, at steps of nodes or powers of two.
    addTicks() {
      const room = Math.max(1, Math.floor(this.host.clientWidth / 34));
      let step = 1;
      while (this.size / step > room) step *= 2;
      const labels = [];
      for (let device = 0; device < this.size; device += step) {
        const label = element("span", "", String(device));
        label.style.left = `${((device + 0.5) / this.size) * 100}%`;
        labels.push(label);
      }
      this.axis.replaceChildren(...labels);
    }

    // Selected devices keep their colour, the others fade.
    mark() {
      const chosen = new Set(window.dcp.selection.devicesOf(window.dcp.state.get().sel));
      this.host.classList.toggle("dcp-has-chosen", chosen.size > 0);
      for (const device of this.chosen || []) for (const bars of this.bars) bars[device]?.classList.remove("dcp-chosen");
      for (const device of chosen) for (const bars of this.bars) bars[device]?.classList.add("dcp-chosen");
      this.chosen = chosen;
    }

    deviceAt(event) {
      const svg = event.target.closest?.("svg.dcp-bars");
      if (!svg) return undefined;
      const box = svg.getBoundingClientRect();
      const device = Math.floor(((event.clientX - box.left) / box.width) * this.size);
      return device >= 0 && device < this.size ? device : undefined;
    }

    hover(event) {
      const device = this.deviceAt(event);
      if (device === undefined) { this.leave(); return; }
      const box = this.host.getBoundingClientRect();
      const lines = this.header.rows.map((row) => `${row.label}: ${amount(this.columns[row.id][device], row.unit)}`);
      this.tooltip.show(event.clientX - box.left, event.clientY - box.top, [`Device ${device}`, ...lines], box);
    }

    leave() { this.tooltip.hide(); }

    click(event) {
      const device = this.deviceAt(event);
      if (device !== undefined) window.dcp.selection.toggle({ type: "device", device });
    }

    key(event) {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!step || event.ctrlKey || event.metaKey || event.altKey || event.target !== this.host) return;
      event.preventDefault();
      const now = window.dcp.state.get().sel?.device;
      const next = now === undefined ? 0 : Math.max(0, Math.min(this.size - 1, now + step));
      window.dcp.state.set({ sel: { type: "device", device: next } });
    }
  }

  function amount(value, unit) {
    if (unit === "bytes") return view.size(value);
    if (unit === "seconds") return view.duration(value * 1e9);
    return value < 1e6 ? view.count(Math.round(value)) : `${view.digits(value / (value < 1e9 ? 1e6 : 1e9))}\u00a0${value < 1e9 ? "M" : "G"}`;
  }

  function element(name, className, text = "") {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  }

  function drawing(box, className) {
    const svg = document.createElementNS(SVG, "svg");
    set(svg, { viewBox: box, preserveAspectRatio: "none", class: className, "aria-hidden": "true" });
    return svg;
  }

  function line(x1, x2, y1, y2, className) {
    const made = document.createElementNS(SVG, "line");
    set(made, { x1, x2, y1, y2, class: className, "vector-effect": "non-scaling-stroke" });
    return made;
  }

  function set(target, values) {
    for (const [name, value] of Object.entries(values)) target.setAttribute(name, String(value));
  }

  return Balance;
})();
window.dcp.views = { ...window.dcp.views, "dcp-balance-bars": "Balance" };
