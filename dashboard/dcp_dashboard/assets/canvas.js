// What the canvases share: pixels, a range that zooms and pans, a tooltip, units, wheel and keys.
// Dash loads these files in alphabetical order, so this one comes before those that use it.
"use strict";

window.dcp = window.dcp || {};

window.dcp.canvas = (() => {
  // "#rrggbb" -> the number that a little-endian Uint32 pixel buffer wants, opaque.
  function pixel(hex) {
    const rgb = parseInt(hex.slice(1), 16);
    return (0xff000000 | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
  }

  // `steps` pixels from the background to a colour: entry i is i/(steps-1) of the way.
  function blend(background, colour, steps) {
    const table = new Uint32Array(steps);
    for (let i = 0; i < steps; i++) {
      const t = i / (steps - 1);
      let mixed = 0xff000000;
      for (const shift of [0, 8, 16]) {
        const from = (background >>> shift) & 255;
        const to = (colour >>> shift) & 255;
        mixed |= Math.round(from + (to - from) * t) << shift;
      }
      table[i] = mixed >>> 0;
    }
    return table;
  }

  // A custom property of style.css as "#rrggbb".
  function themeColour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // A half-open range inside [0, full) that zooms around a point and never leaves it.
  class Range {
    constructor(full, smallest) {
      this.full = Math.max(full, 1e-9);
      this.smallest = Math.min(smallest, this.full);
      this.reset();
    }

    get span() { return this.end - this.start; }

    get isWhole() { return this.span >= this.full * (1 - 1e-9); }

    reset() { this.start = 0; this.end = this.full; }

    zoom(factor, fraction) {
      const fixed = this.start + this.span * fraction;
      const span = Math.min(this.full, Math.max(this.smallest, this.span * factor));
      this.place(fixed - span * fraction, span);
    }

    pan(fraction) { this.place(this.start + this.span * fraction, this.span); }

    // Shows [start, end) or as much of it as there is; nothing at all shows the whole.
    show(range) {
      if (!range) { this.reset(); return; }
      const span = Math.min(this.full, Math.max(this.smallest, range[1] - range[0]));
      this.place((range[0] + range[1]) / 2 - span / 2, span);
    }

    place(start, span) {
      this.start = Math.max(0, Math.min(this.full - span, start));
      this.end = this.start + span;
    }
  }

  // Steps of 1, 2 or 5 times a power of ten that put about `count` ticks on a range.
  function ticks(start, end, count) {
    const raw = (end - start) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const found = [];
    for (let i = Math.ceil(start / step); i * step <= end; i++) found.push(i * step);
    return { step, values: found };
  }

  function digits(value) {
    if (value === 0) return "0";
    const decimals = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return String(Number(value.toFixed(Math.min(decimals, 12))));
  }

  function scaled(value, units) {
    const [unit, factor] = units.find(([, f]) => Math.abs(value) >= f) || units[units.length - 1];
    return `${digits(value / factor)}\u00a0${unit}`; // no line ends inside a quantity
  }

  const duration = (ns) => scaled(ns, [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]]);
  const size = (bytes) => scaled(bytes, [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
  const NUMBER = new Intl.NumberFormat("en-US"); // made once: toLocaleString looks it up at every call
  const count = (n) => NUMBER.format(n);

  // Elements without markup: make("button", {className, "aria-label": ...}, ...children).
  function make(tag, properties, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  // One tooltip per canvas; text only, never markup, one node for all its lines (the first is bold by style). It reads
  // no sizes: where it opens is said in shares of itself.
  class Tooltip {
    constructor(parent) {
      this.box = document.createElement("div");
      this.box.className = "dcp-tooltip";
      this.box.hidden = true;
      this.text = document.createTextNode("");
      this.box.append(this.text);
      parent.append(this.box);
    }

    // `room` is the size of the parent: the tooltip opens towards where more of it is.
    show(x, y, lines, room) {
      const text = lines.join("\n");
      if (this.text.data !== text) this.text.data = text;
      if (this.box.hidden) this.box.hidden = false;
      const across = x > room.width / 2 ? `calc(${Math.round(x - 14)}px - 100%)` : `${Math.round(x + 14)}px`;
      const down = y > room.height / 2 ? `calc(${Math.round(y - 14)}px - 100%)` : `${Math.round(y + 14)}px`;
      this.box.style.transform = `translate(${across}, ${down})`;
    }

    hide() { this.box.hidden = true; }
  }

  // A pixel canvas and, above it, a canvas for text and lines; both sharp on dense screens.
  class Layers {
    constructor(host, label) {
      host.classList.add("dcp-canvas-host");
      this.host = host;
      this.pixels = document.createElement("canvas");
      this.marks = document.createElement("canvas");
      this.pixels.className = "dcp-pixels";
      this.marks.className = "dcp-marks";
      this.marks.tabIndex = 0;
      this.marks.setAttribute("role", "img");
      this.marks.setAttribute("aria-label", label);
      this.frame = document.createElement("div");
      this.frame.className = "dcp-outline";
      this.frame.hidden = true;
      host.append(this.pixels, this.marks, this.frame);
    }

    // Sizes both layers; `area` is the rectangle of the pixel canvas in CSS pixels.
    resize(width, height, area) {
      const ratio = window.devicePixelRatio || 1;
      this.ratio = ratio;
      this.area = area;
      this.width = width;
      this.height = height;
      this.font = `11px ${getComputedStyle(this.host).fontFamily}`;
      this.host.style.height = `${height}px`;
      this.marks.width = Math.round(width * ratio);
      this.marks.height = Math.round(height * ratio);
      this.marks.style.width = `${width}px`;
      this.marks.style.height = `${height}px`;
      this.pixels.width = Math.max(1, Math.round(area.width * ratio));
      this.pixels.height = Math.max(1, Math.round(area.height * ratio));
      Object.assign(this.pixels.style, {
        left: `${area.left}px`, top: `${area.top}px`, width: `${area.width}px`, height: `${area.height}px`,
      });
      this.image = new ImageData(this.pixels.width, this.pixels.height);
      this.buffer = new Uint32Array(this.image.data.buffer);
    }

    // A frame around what is hovered, an element so that hovering draws nothing; null takes it away.
    outline(box) {
      this.frame.hidden = !box;
      if (!box) return;
      this.frame.style.transform = `translate(${box.x - 1}px, ${box.y - 1}px)`;
      this.frame.style.width = `${Math.max(2, box.width) + 2}px`;
      this.frame.style.height = `${Math.max(2, box.height) + 2}px`;
    }

    put() { this.pixels.getContext("2d").putImageData(this.image, 0, 0); }

    // The 2D context of the marks, cleared, in CSS pixels.
    pen() {
      const context = this.marks.getContext("2d");
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.clearRect(0, 0, this.marks.width, this.marks.height);
      context.font = this.font;
      return context;
    }
  }

  // Wheel, drag, keys, hover and clicks for an object with `ranges()`, `fractions(event)`, `redraw()`, `hover(event)`
  // and `leave()`. `ranges()` gives [horizontal, vertical]; null where an axis does not move. What it may have too:
  // `click(event)`, `key(event)` and `wheel(event)` (true: handled), `mark(from, to, isDone)` for shift-drag, in fractions, and
  // `moved()` after a range has changed.
  function control(target, view) {
    let frame = 0;
    const redraw = () => {
      if (!frame) frame = requestAnimationFrame(() => { frame = 0; view.redraw(); });
    };
    const apply = (change) => {
      view.ranges().forEach((range, axis) => { if (range) change(range, axis); });
      redraw();
      if (view.moved) view.moved();
    };
    target.addEventListener("wheel", (event) => {
      if (view.wheel && view.wheel(event)) { event.preventDefault(); return; }
      // Zooming out of the whole picture scrolls the page on.
      if (event.deltaY >= 0 && view.ranges().every((range) => !range || range.isWhole)) return;
      event.preventDefault();
      const at = view.fractions(event);
      const factor = Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004);
      apply((range, axis) => range.zoom(factor, at[axis]));
      view.leave();
    }, { passive: false });
    followPointer(target, view, apply);
    target.addEventListener("dblclick", () => apply((range) => range.reset()));
    target.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (view.key && view.key(event)) { event.preventDefault(); return; }
      const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action) return;
      event.preventDefault();
      view.leave();
      apply(action);
    });
  }

  // A press that stays within a few pixels is a click; one that goes on pans, or marks an area with shift held.
  function followPointer(target, view, apply) {
    let press = null;
    let last = null; // browsers repeat the last movement after a change of the page
    target.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const at = view.fractions(event);
      press = { at, from: at, x: event.clientX, y: event.clientY, isMark: event.shiftKey && !!view.mark, isFar: false };
      target.setPointerCapture(event.pointerId);
    });
    target.addEventListener("pointermove", (event) => {
      const place = event.clientX * 65536 + event.clientY;
      if (!press && place === last) return;
      last = place;
      if (!press) { view.hover(event); return; }
      if (Math.hypot(event.clientX - press.x, event.clientY - press.y) > STILL) press.isFar = true;
      if (!press.isFar) return;
      const at = view.fractions(event);
      const before = press.at;
      press.at = at;
      view.leave();
      if (press.isMark) view.mark(press.from, at, false);
      else apply((range, axis) => range.pan(before[axis] - at[axis]));
    });
    target.addEventListener("pointerup", (event) => {
      const done = press;
      press = null;
      if (done && !done.isFar && view.click) view.click(event);
      if (done && done.isFar && done.isMark) view.mark(done.from, done.at, true);
    });
    target.addEventListener("pointercancel", () => { press = null; });
    target.addEventListener("pointerleave", () => { last = null; view.leave(); });
  }

  const STILL = 4; // CSS pixels that a hand moves during a click
  const zoomBy = (factor) => (range) => range.zoom(factor, 0.5);
  const panAlong = (axis, by) => (range, along) => { if (along === axis) range.pan(by); };
  const KEYS = {
    "0": (range) => range.reset(),
    Escape: (range) => range.reset(),
    "+": zoomBy(0.7), "=": zoomBy(0.7), w: zoomBy(0.7),
    "-": zoomBy(1 / 0.7), s: zoomBy(1 / 0.7),
    a: panAlong(0, -0.15), ArrowLeft: panAlong(0, -0.15),
    d: panAlong(0, 0.15), ArrowRight: panAlong(0, 0.15),
    ArrowUp: panAlong(1, -0.15),
    ArrowDown: panAlong(1, 0.15),
  };

  return { pixel, blend, themeColour, Range, ticks, digits, duration, size, count, make, Tooltip, Layers, control };
})();
