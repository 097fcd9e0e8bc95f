// The timeline: per device a band of compute, with waits as a thin line in its gaps, one of sends, one of receives.
//
// Data: one or two "dcp.timeline/1" (see dcp_dashboard/api/devices.py), predicted and measured, on one time axis.
// This file holds what is shown and reacts; timeline_events.js knows the events, timeline_rows.js the rows,
// timeline_cover.js makes pixels, timeline_marks.js draws lines and texts, timeline_selection.js what is selected.
"use strict";

window.dcp = window.dcp || {};

window.dcp.timelineTools = []; // classes of what the page of the timeline has beside it, new Tool(page, timeline)

window.dcp.Timeline = (() => {
  const view = window.dcp.canvas;
  const GUTTER = 44;
  const NODES = 20; // width of the strip of nodes beside the devices
  const AXIS = 34;
  const LEAST_HIGH = 14; // CSS pixels of a row where the page may grow
  const STATE = ["source", "kinds", "longer", "find", "open", "area"];

  class Timeline {
    // `data-url` may hold several addresses: predicted and measured under one axis.
    static load(host, signal) {
      return Promise.all(host.dataset.url.split(" ").map((url) => window.dcp.columns.load(url, signal)));
    }

    constructor(host, payloads, label) {
      const { events } = window.dcp;
      this.host = host;
      this.page = host.closest(".dcp-timeline-page"); // filters, steps and panels are there only
      this.traces = payloads.map(({ header, columns }) => {
        const all = events.wholeTable(columns, header.num_devices);
        return { header, columns, unit: header.unit_ns, all, shown: all, brush: null, hits: null, phases: events.phases(columns) };
      });
      [{ header: this.header }] = this.traces;
      this.devices = this.header.num_devices;
      this.nodeStarts = this.header.node_starts; // the first device of each node, then the number of devices
      this.nodes = this.nodeStarts.length - 1;
      this.gutter = GUTTER + (this.nodes > 1 ? NODES : 0);
      this.time = new view.Range(Math.max(1, Number(host.dataset.until || this.header.longest_ns)), 20);
      this.scroll = new view.Range(1, 1);
      this.scroll.zoom = () => {}; // rows move, they never grow
      this.state = window.dcp.state.get();
      this.time.show(this.state.time);
      const counted = this.traces.reduce((sum, { columns }) => sum + columns.start.length, 0);
      this.layers = new view.Layers(host, `${label}: ${view.count(counted)} events of `
        + `${this.devices} devices. ${this.page ? "The table" : "The table of devices"} holds the same in numbers.`);
      this.tooltip = new view.Tooltip(host);
      this.filter();
      view.control(this.layers.marks, this);
      this.unfollow = window.dcp.state.follow((state, changed) => this.follow(state, changed));
      this.onFacts = ({ detail }) => { this.facts = detail.values; this.schedule(); };
      document.addEventListener("dcp:facts", this.onFacts);
      // Controls follow the state after this: what they count is up to date then. They say how much room is left.
      this.tools = this.page ? window.dcp.timelineTools.map((Tool) => new Tool(this.page, this)) : [];
      this.resize();
      if (this.page) {
        this.onWindow = () => this.resize();
        window.addEventListener("resize", this.onWindow);
      }
    }

    dispose() {
      this.unfollow();
      document.removeEventListener("dcp:facts", this.onFacts);
      for (const tool of this.tools) if (tool.dispose) tool.dispose();
      if (this.onWindow) window.removeEventListener("resize", this.onWindow);
    }

    // Which traces have rows: all, or the one that the state names.
    get sources() {
      const wanted = this.page && this.state.source;
      const named = this.traces.filter(({ header }) => header.source === wanted);
      return named.length ? named : this.traces;
    }

    // On its own page the canvas is as high as the window; elsewhere it takes what its rows need.
    resize() {
      const width = Math.max(200, this.host.clientWidth);
      const above = this.page ? this.host.getBoundingClientRect().top + window.scrollY : 0;
      const room = this.page ? Math.max(320, window.innerHeight - above - AXIS - 28) : 576;
      const sources = this.sources.length;
      const { nodeStarts } = this;
      this.open = window.dcp.rows.openNodes(this.page && this.state.open,
        { nodeStarts, sources, room: this.page ? room : 900 });
      const isMixed = this.open.size < this.nodes;
      this.layout = window.dcp.rows.layout({
        nodeStarts, sources, room, open: this.open,
        least: this.page && !isMixed ? window.dcp.rows.THIN : LEAST_HIGH,
      });
      const height = this.page ? Math.min(room, this.layout.total) : this.layout.total;
      const start = Math.min(this.scroll.start, Math.max(0, this.layout.total - height));
      Object.assign(this.scroll, { full: this.layout.total, smallest: height });
      this.scroll.place(start, height);
      const area = { left: this.gutter, top: AXIS, width: width - this.gutter, height };
      this.layers.resize(width, height + AXIS + 1, area);
      this.recolour();
    }

    // Theme colours may have changed: make the tables from coverage to pixel anew.
    recolour() {
      const colours = ["--canvas", "--panel", "--line", "--muted", "--ink", "--accent"].map(view.themeColour);
      [this.canvas, this.panel, this.line, this.muted, this.ink, this.accent] = colours;
      this.background = view.pixel(this.canvas);
      this.shades = window.dcp.cover.shadeTables(this.header.colours, this.background);
      this.redraw();
    }

    ranges() { return [this.time, this.scroll.isWhole ? null : this.scroll]; }

    fractions(event) {
      const box = this.layers.marks.getBoundingClientRect();
      const { left, width, top, height } = this.layers.area;
      const inside = (value) => Math.max(0, Math.min(1, value));
      return [inside((event.clientX - box.left - left) / width), inside((event.clientY - box.top - top) / height)];
    }

    // A redraw at the next frame, however many things ask for it.
    schedule() {
      if (!this.frame) this.frame = requestAnimationFrame(() => { if (this.frame) this.redraw(); });
    }

    redraw() {
      const begun = performance.now();
      if (this.frame) cancelAnimationFrame(this.frame);
      this.frame = 0;
      const { pixels, buffer } = this.layers;
      buffer.fill(this.background);
      this.drawGrid();
      const cover = new Float32Array(pixels.width * 3);
      const isDim = this.traces.some(({ brush }) => brush);
      for (const row of this.rowsInView()) {
        const { shown, brush } = this.sources[row.source];
        for (const lane of window.dcp.rows.DRAWN) {
          this.drawLane(row, lane, shown, isDim ? this.shades.dim : this.shades.bright, cover);
          if (brush) this.drawLane(row, lane, brush, this.shades.bright, cover);
        }
      }
      this.layers.put();
      window.dcp.timelineMarks.draw(this);
      this.host.dataset.frameMs = (performance.now() - begun).toFixed(2);
    }

    rowsInView() {
      const { rows, height } = this.layout;
      const first = Math.max(0, Math.floor(this.scroll.start / height));
      return rows.slice(first, Math.ceil(this.scroll.end / height));
    }

    // Lines at the ticks lie under the events, so that they never cut one in two.
    drawGrid() {
      const { pixels, buffer } = this.layers;
      const line = view.pixel(this.line);
      this.ticks = view.ticks(this.time.start, this.time.end, this.layers.area.width / 110);
      for (const ns of this.ticks.values) {
        const x = Math.round(((ns - this.time.start) / this.time.span) * pixels.width);
        for (let y = 0; x < pixels.width && y < pixels.height; y++) buffer[y * pixels.width + x] = line;
      }
    }

    // All pixel rows of a lane are alike: the first is coloured over what is there, the others copy it.
    drawLane(row, lane, table, shades, cover) {
      const { pixels: { width, height }, buffer } = this.layers;
      const { unit } = this.sources[row.source];
      const [top, bottom] = this.laneRows(row, lane);
      if (bottom <= 0 || top >= height) return;
      const { addTrack, paintLine, channelsOf } = window.dcp.cover;
      cover.fill(0, 0, width * channelsOf(lane));
      const [first, past] = row.devices;
      let any = false;
      for (let device = first; device < past; device++) {
        any = addTrack(table, device * 4 + lane, this.time.start / unit, this.time.end / unit, cover, width) || any;
      }
      if (!any) return;
      const y0 = Math.max(0, top);
      paintLine(buffer.subarray(y0 * width, (y0 + 1) * width), cover, width, lane, shades, past - first);
      for (let y = y0 + 1; y < Math.min(height, bottom); y++) buffer.copyWithin(y * width, y0 * width, (y0 + 1) * width);
    }

    // First and one-past-last pixel row of a lane, in device pixels of the canvas.
    laneRows(row, lane) {
      const [top, bottom] = window.dcp.rows.BANDS[lane]
        .map((share) => Math.round((row.y - this.scroll.start + share * row.height) * this.layers.ratio));
      return [top, Math.max(top + 1, bottom)];
    }

    rowOf(source, device) {
      return this.layout.rows.find((row) => row.source === source && device >= row.devices[0] && device < row.devices[1]);
    }

    // Where an event is drawn, in CSS pixels of the host; nothing if its device has no row of its own or is scrolled away.
    boxOf(trace, e) {
      const { left, top, width, height } = this.layers.area;
      const { device, lane, start, end } = trace.columns;
      const row = this.rowOf(this.sources.indexOf(trace), device[e]);
      if (!row || row.isNode) return null;
      const [y0, y1] = this.laneRows(row, lane[e]).map((y) => y / this.layers.ratio);
      if (y1 <= 0 || y0 >= height) return null;
      const toX = (t) => left + Math.max(0, Math.min(1, (t * trace.unit - this.time.start) / this.time.span)) * width;
      const x = toX(start[e]);
      return { x, y: top + y0, width: toX(end[e]) - x, height: y1 - y0 };
    }

    // What lies under a point of the host: the row, the time, and the trace and event if there is one.
    at(event) {
      const box = this.layers.marks.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      const { left, top, width, height } = this.layers.area;
      const found = { x, y, isGutter: x < left, isNodes: x < left - GUTTER };
      if (y < top || y >= top + height || x >= left + width) return found;
      const below = y - top + this.scroll.start;
      found.row = this.layout.rows[Math.floor(below / this.layout.height)];
      if (!found.row || found.isGutter) return found;
      found.trace = this.sources[found.row.source];
      found.time = this.time.start + ((x - left) / width) * this.time.span;
      if (found.row.isNode) return found;
      const { unit, shown } = found.trace;
      const lanes = window.dcp.rows.lanesAt((below - found.row.y) / found.row.height);
      const tracks = lanes.map((lane) => found.row.devices[0] * 4 + lane);
      found.event = window.dcp.events.eventAt(shown, tracks, found.time / unit, (2 / width) * (this.time.span / unit));
      return found;
    }

    hover(event) {
      const found = this.at(event);
      if (found.event === undefined && !(found.row && (found.row.isNode || found.isNodes))) { this.leave(); return; }
      const mark = found.event === undefined ? `row ${found.row.y}` : `${found.row.source} ${found.event}`;
      if (mark !== this.marked) {
        this.layers.outline(found.event === undefined ? null : this.boxOf(found.trace, found.event));
        this.lines = window.dcp.timelineMarks.describe(this, found);
      }
      this.marked = mark;
      this.tooltip.show(found.x, found.y, this.lines, this.layers);
    }

    leave() {
      if (this.marked === undefined) return;
      this.marked = undefined;
      this.tooltip.hide();
      this.layers.outline(null);
    }

    click(event) {
      const found = this.at(event);
      if (found.event !== undefined) this.select(found.trace, found.event);
      else if (found.row && (found.row.isNode || found.isNodes)) this.toggle(found.row.node);
      else if (found.row && found.isGutter) window.dcp.state.set({ sel: { type: "device", device: found.row.devices[0] } });
      else if (found.row) window.dcp.state.set({ sel: null });
    }

    select(trace, e) { window.dcp.state.set({ sel: window.dcp.timelineSelection.factsOf(trace, e) }); }

    // Opens or closes the rows of a node's devices.
    toggle(node) {
      if (!this.page) return;
      this.leave();
      const open = new Set(this.open);
      if (!open.delete(node)) open.add(node);
      window.dcp.state.set({ open: window.dcp.rows.textOf(open, this.nodes) });
    }

    wheel(event) {
      if (!event.shiftKey || this.scroll.isWhole) return false;
      this.scroll.pan(Math.sign(event.deltaY || event.deltaX) * 0.15);
      this.schedule();
      return true;
    }

    key(event) { return window.dcp.timelineSelection.key(this, event); }

    mark(from, to, isDone) {
      if (!this.page) return;
      this.pending = this.areaBetween(from, to);
      if (isDone) { window.dcp.state.set({ area: this.pending }); this.pending = null; }
      this.schedule();
    }

    // [t0, t1, first device, last device] of two points in fractions of the picture.
    areaBetween(from, to) {
      const times = [from[0], to[0]].map((share) => Math.round(this.time.start + share * this.time.span));
      const rows = [from[1], to[1]].map((share) => {
        const y = this.scroll.start + share * this.layers.area.height;
        return this.layout.rows[Math.max(0, Math.min(this.layout.rows.length - 1, Math.floor(y / this.layout.height)))];
      });
      const devices = rows.flatMap((row) => [row.devices[0], row.devices[1] - 1]);
      return [Math.min(...times), Math.max(...times), Math.min(...devices), Math.max(...devices)];
    }

    // What other views and the tools of the page have set.
    follow(state, changed) {
      this.state = state;
      if (changed.has("time") && !this.isMoving) {
        this.time.show(state.time);
        this.schedule();
      }
      if (this.page && ["kinds", "longer", "find"].some((key) => changed.has(key))) this.filter();
      if (changed.has("sel")) this.brush();
      if (this.page && (changed.has("open") || changed.has("source"))) this.resize();
      if (changed.has("sel")) window.dcp.timelineSelection.reveal(this);
      // Stepping goes along with the divisions here, where the timeline is all there is to see.
      if (this.page && changed.has("sel") && !changed.has("time") && state.sel?.type === "division") window.dcp.timelineSelection.fit(this);
      if (changed.has("sel") || (this.page && STATE.some((key) => changed.has(key)))) this.schedule();
    }

    moved() {
      this.isMoving = true;
      window.dcp.state.set({ time: this.time.isWhole ? null : [this.time.start, this.time.end] });
      this.isMoving = false;
    }

    // Events that the filters leave, those that a search finds, and what the selection means among them.
    filter() {
      const { events } = window.dcp;
      const { kinds, longer, find } = this.page ? this.state : {};
      for (const trace of this.traces) {
        const { columns, header, all, unit } = trace;
        const isShown = kinds ? header.kinds.map((kind) => kinds.split(",").includes(kind)) : null;
        const least = Number(longer || 0) / unit;
        const keep = (e) => (!isShown || isShown[columns.kind[e]]) && columns.end[e] - columns.start[e] >= least;
        trace.shown = isShown || least ? events.subset(all, keep) : all;
        const test = find ? events.searchTest(find, columns, header.names) : null;
        trace.hits = test ? events.subset(trace.shown, test) : null;
      }
      this.brush();
    }

    brush() {
      for (const trace of this.traces) {
        const test = window.dcp.timelineSelection.brushTest(this.state.sel, trace);
        trace.brush = test ? window.dcp.events.subset(trace.shown, test) : null;
      }
    }
  }

  return Timeline;
})();
