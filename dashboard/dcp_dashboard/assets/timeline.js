// The timeline: per device a band of compute, with waits as a thin line in its gaps, one of sends, one of receives.
//
// Data: "dcp.timeline/1" (see dcp_dashboard/payloads.py), events sorted by (device, lane, start).
// Every pixel column of a band sums how much of its time each kind covers; the kind that covers most
// gives the hue, the covered share the lightness. Sampling one event per pixel would hide short sends.
"use strict";

window.dcp = window.dcp || {};

window.dcp.Timeline = (() => {
  const view = window.dcp.canvas;
  const LANES = { compute: 0, send: 1, receive: 2, wait: 3 };
  // Top and bottom of each lane as shares of a device's row; what is left between rows is a gap.
  const BANDS = [];
  BANDS[LANES.compute] = [0.04, 0.56];
  BANDS[LANES.wait] = [0.2, 0.4];
  BANDS[LANES.send] = [0.58, 0.76];
  BANDS[LANES.receive] = [0.78, 0.96];
  const DRAWN = [LANES.compute, LANES.wait, LANES.send, LANES.receive];
  const GUTTER = 44;
  const AXIS = 34;
  const STEPS = 64; // lightness steps between background and full colour
  const PALEST = 0.22; // what is there at all must be visible

  class Timeline {
    constructor(host, payload, label) {
      this.host = host;
      this.header = payload.header;
      this.events = payload.columns;
      this.kinds = this.header.kinds.length;
      this.shadeOf = Uint8Array.from({ length: STEPS + 1 }, (_, i) => (
        Math.round((PALEST + (1 - PALEST) * (i / STEPS)) * (STEPS - 1))));
      this.tracks = index(this.events, this.header.num_devices);
      this.time = new view.Range(Math.max(1, last(this.events.end)), 20);
      this.phases = phases(this.events);
      this.layers = new view.Layers(host, `${label}: ${view.count(this.events.start.length)} events of `
        + `${this.header.num_devices} devices. The table of devices holds the sums.`);
      this.tooltip = new view.Tooltip(host);
      view.control(this.layers.marks, this);
      this.resize();
    }

    // Device rows share the height that is left, between 14 and 56 CSS pixels each.
    resize() {
      const width = Math.max(200, this.host.clientWidth);
      const devices = this.header.num_devices;
      this.row = Math.max(14, Math.min(56, Math.floor(576 / devices)));
      const area = { left: GUTTER, top: AXIS, width: width - GUTTER, height: this.row * devices };
      this.layers.resize(width, area.height + AXIS + 1, area);
      this.recolour();
    }

    // Theme colours may have changed: make the tables from coverage to pixel anew.
    recolour() {
      const background = view.pixel(view.themeColour("--canvas"));
      this.background = background;
      this.shades = this.header.colours.map((colour) => view.blend(background, view.pixel(colour), STEPS));
      this.redraw();
    }

    ranges() { return [this.time, null]; }

    fractions(event) {
      const box = this.layers.marks.getBoundingClientRect();
      const { left, width, top, height } = this.layers.area;
      const inside = (value) => Math.max(0, Math.min(1, value));
      return [inside((event.clientX - box.left - left) / width), inside((event.clientY - box.top - top) / height)];
    }

    redraw() {
      const begun = performance.now();
      const { pixels, buffer } = this.layers;
      buffer.fill(this.background);
      this.drawGrid();
      const cover = new Float32Array(pixels.width * this.kinds);
      for (let device = 0; device < this.header.num_devices; device++) {
        for (const lane of DRAWN) this.drawLane(device, lane, cover);
      }
      this.layers.put();
      this.drawMarks();
      this.host.dataset.frameMs = (performance.now() - begun).toFixed(2);
    }

    // Lines at the ticks lie under the events, so that they never cut one in two.
    drawGrid() {
      const { pixels, buffer } = this.layers;
      const line = view.pixel(view.themeColour("--line"));
      const unit = this.header.unit_ns;
      this.ticks = view.ticks(this.time.start * unit, this.time.end * unit, this.layers.area.width / 110);
      for (const ns of this.ticks.values) {
        const x = Math.round(((ns / unit - this.time.start) / this.time.span) * pixels.width);
        for (let y = 0; x < pixels.width && y < pixels.height; y++) buffer[y * pixels.width + x] = line;
      }
    }

    // All rows of a lane are alike: the first is coloured over what is there, the others copy it.
    drawLane(device, lane, cover) {
      const { pixels: { width }, buffer } = this.layers;
      const [top, bottom] = this.laneRows(device, lane);
      cover.fill(0);
      if (!this.sumCover(this.tracks[device * 4 + lane], cover)) return;
      const line = buffer.subarray(top * width, (top + 1) * width);
      const { kinds } = this;
      for (let x = 0, at = 0; x < width; x++, at += kinds) {
        let total = 0;
        let most = 0;
        for (let kind = 0; kind < kinds; kind++) {
          const covered = cover[at + kind];
          total += covered;
          if (covered > cover[at + most]) most = kind;
        }
        if (total > 0) line[x] = this.shades[most][this.shadeOf[Math.min(STEPS, Math.round(total * STEPS))]];
      }
      for (let y = top + 1; y < bottom; y++) buffer.copyWithin(y * width, top * width, (top + 1) * width);
    }

    // First and one-past-last pixel row of a lane, in device pixels.
    laneRows(device, lane) {
      const [top, bottom] = BANDS[lane].map((share) => Math.round((device + share) * this.row * this.layers.ratio));
      return [top, Math.max(top + 1, bottom)];
    }

    // Adds the share of every pixel column that the visible events of a track cover; false if none is visible.
    sumCover(track, cover) {
      if (!track) return false;
      const { start, end, kind } = this.events;
      const { start: from, end: to } = this.time;
      const width = this.layers.pixels.width;
      const perPixel = width / (to - from);
      let any = false;
      for (let e = firstEndingAfter(track, from); e < track.to && start[e] < to; e++) {
        const x0 = Math.max(0, (start[e] - from) * perPixel);
        const x1 = Math.min(width, (end[e] - from) * perPixel);
        if (x1 < 0 || end[e] < from) continue;
        any = true;
        const k = kind[e];
        const p0 = Math.min(width - 1, Math.floor(x0));
        const p1 = Math.min(width - 1, Math.floor(x1));
        if (p0 === p1) { cover[p0 * this.kinds + k] += Math.max(x1 - x0, 0.02); continue; }
        cover[p0 * this.kinds + k] += p0 + 1 - x0;
        for (let p = p0 + 1; p < p1; p++) cover[p * this.kinds + k] += 1;
        cover[p1 * this.kinds + k] += x1 - p1;
      }
      return any;
    }

    drawMarks() {
      const pen = this.layers.pen();
      const { left, top, width } = this.layers.area;
      const ink = view.themeColour("--muted");
      const line = view.themeColour("--line");
      this.drawAxis(pen, left, top, width, ink, line);
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      const every = Math.max(1, Math.ceil(13 / this.row));
      for (let device = 0; device < this.header.num_devices; device++) {
        const y = top + device * this.row;
        const isNode = device % this.header.devices_per_node === 0;
        pen.fillStyle = isNode && device ? ink : line;
        pen.fillRect(isNode ? 0 : left, y, isNode ? left + width : width, 1);
        pen.fillStyle = ink;
        if (device % every === 0) pen.fillText(String(device), left - 8, y + this.row / 2);
      }
      pen.textAlign = "left";
      pen.textBaseline = "alphabetic";
      pen.fillText("device", 0, top - 6);
    }

    drawAxis(pen, left, top, width, ink, line) {
      const { start, end } = this.time;
      const unit = this.header.unit_ns;
      const { values, step } = this.ticks;
      const shown = axisUnit(end * unit, step);
      const toX = (ns) => left + ((ns / unit - start) / (end - start)) * width;
      pen.textAlign = "center";
      pen.textBaseline = "alphabetic";
      for (const ns of values) {
        const x = Math.round(toX(ns));
        pen.fillStyle = line;
        pen.fillRect(x, top - 4, 1, 4);
        pen.fillStyle = ink;
        const half = 22;
        if (x - half > left - 20 && x + half < left + width + 6) pen.fillText(axisLabel(ns, step, shown), x, top - 7);
      }
      for (const phase of this.phases) {
        const x0 = Math.max(left, toX(phase.start * unit));
        const x1 = Math.min(left + width, toX(phase.end * unit));
        if (x1 - x0 < 2) continue;
        pen.fillStyle = ink;
        pen.fillRect(x0, 13, x1 - x0 - 1, 1);
        pen.textAlign = "left";
        if (x1 - x0 > 60) pen.fillText(phase.name, x0, 9);
      }
    }

    boxOf(e) {
      const { left, top, width } = this.layers.area;
      const lane = this.events.lane[e];
      const [y0, y1] = this.laneRows(this.events.device[e], lane).map((y) => y / this.layers.ratio);
      const toX = (t) => left + Math.max(0, Math.min(1, (t - this.time.start) / this.time.span)) * width;
      const x = toX(this.events.start[e]);
      return { x, y: top + y0, width: toX(this.events.end[e]) - x, height: y1 - y0 };
    }

    hover(event) {
      const box = this.layers.marks.getBoundingClientRect();
      const x = event.clientX - box.left;
      const y = event.clientY - box.top;
      const e = this.eventAt(x, y);
      if (e === undefined) { this.leave(); return; }
      if (e !== this.marked) this.layers.outline(this.boxOf(e));
      this.marked = e;
      this.tooltip.show(x, y, this.describe(e));
    }

    leave() {
      if (this.marked === undefined) return;
      this.marked = undefined;
      this.tooltip.hide();
      this.layers.outline(null);
    }

    // The event under a point: one that covers it, started last; else the nearest within two pixels.
    eventAt(x, y) {
      const { left, top, width, height } = this.layers.area;
      if (x < left || x >= left + width || y < top || y >= top + height) return undefined;
      const device = Math.floor((y - top) / this.row);
      const share = (y - top) / this.row - device;
      const lanes = share < 0.57 ? [LANES.compute, LANES.wait] : [share < 0.77 ? LANES.send : LANES.receive];
      const time = this.time.start + ((x - left) / width) * this.time.span;
      const slack = (2 / width) * this.time.span;
      let best;
      let nearest = slack;
      for (const lane of lanes) {
        const track = this.tracks[device * 4 + lane];
        if (!track) continue;
        const { start, end } = this.events;
        for (let e = firstEndingAfter(track, time - slack); e < track.to && start[e] <= time + slack; e++) {
          const distance = Math.max(start[e] - time, time - end[e], 0);
          if (end[e] >= time - slack && distance <= nearest) { nearest = distance; best = e; }
        }
      }
      return best;
    }

    describe(e) {
      const { start, end, division, peer, bytes, name, backward, device, lane } = this.events;
      const unit = this.header.unit_ns;
      const text = this.header.names[name[e]];
      const kind = this.header.kinds[this.events.kind[e]];
      const lines = [text.startsWith(kind) ? text : `${kind}: ${text}`];
      const other = { [LANES.send]: " to device ", [LANES.receive]: " from device " }[lane[e]];
      lines.push(`device ${device[e]}${peer[e] >= 0 && other ? other + peer[e] : ""}`);
      lines.push(`${backward[e] ? "backward" : "forward"}${division[e] >= 0 ? `, division ${division[e]}` : ""}`);
      lines.push(`${view.duration((end[e] - start[e]) * unit)}, from ${view.duration(start[e] * unit)}`);
      if (bytes[e] > 0) lines.push(view.size(bytes[e]));
      return lines;
    }
  }

  // Per device and lane the rows of its events and the largest end so far (rising, so it can be searched).
  function index(events, devices) {
    const tracks = new Array(devices * 4);
    const { device, lane, end } = events;
    const reach = new Float64Array(end.length);
    for (let e = 0; e < end.length; e++) {
      const key = device[e] * 4 + lane[e];
      if (!tracks[key]) tracks[key] = { from: e, to: e, reach };
      reach[e] = e > tracks[key].from ? Math.max(reach[e - 1], end[e]) : end[e];
      tracks[key].to = e + 1;
    }
    return tracks;
  }

  function firstEndingAfter(track, time) {
    let low = track.from;
    let high = track.to;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (track.reach[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function last(ends) {
    let latest = 0;
    for (const end of ends) if (end > latest) latest = end;
    return latest;
  }

  function phases(events) {
    const found = ["forward", "backward"].map((name) => ({ name, start: Infinity, end: 0 }));
    for (let e = 0; e < events.start.length; e++) {
      const phase = found[events.backward[e]];
      if (events.start[e] < phase.start) phase.start = events.start[e];
      if (events.end[e] > phase.end) phase.end = events.end[e];
    }
    return found.filter((phase) => phase.end > phase.start);
  }

  // The unit of an axis: one for all its labels, so that they can be compared at a glance.
  function axisUnit(end, step) {
    return [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, f]) => end >= f && step >= f / 1000) || ["ns", 1];
  }

  function axisLabel(ns, step, [unit, factor]) {
    const decimals = Math.max(0, -Math.floor(Math.log10(step / factor) + 1e-9));
    return `${(ns / factor).toFixed(decimals)} ${unit}`;
  }

  return Timeline;
})();
