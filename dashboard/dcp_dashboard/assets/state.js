// One state for all views of a page: what is selected, which range is shown, what is filtered, and the URL that
// says so. Views never talk to each other: they set the state and follow it.
//
//   dcp.state.get()                  -> the state now, frozen
//   dcp.state.set({key: value})      -> changes keys (null removes one); tells followers and the URL
//   dcp.state.follow((state, changed: Set<key>) => ...) -> a function that ends it
//   dcp.state.query()                -> "?..." for a link to a page that shows the same
//
// Keys, each in the URL under its own name so that a reload or a shared link shows the same:
//   sel     facts of the one selected thing, {type, ...}; type is "device", "division", "tile", "transfer",
//           "event" or "sequence"; the other keys are the ids that are known of it, all integers but `source`:
//           device, division, backward (0 or 1), peer, block, tile, event (row of the payload `source`).
//           A view marks what carries the ids that it knows of: a selected tile has a device and a division too.
//   time    [start, end] of the shown timeline, ns after the first event
//   tokens  [first query, past the last, first key, past the last] of the shown mask
//   area    [start, end, first device, last device] that is marked in the timeline, ns
//   group   the group of heads whose tiles the mask shows, counted from 0 (the first one has no key)
//   colour, source, kinds (shown kinds, comma between), longer (ns), find, traffic ("node"): plain texts of the controls
//   open (nodes whose devices have rows, comma between, or "all", "none"), view ("table"), order (column, "-" in
//   front: falling): of the page of the timeline
"use strict";

window.dcp = window.dcp || {};

window.dcp.state = (() => {
  const TEXTS = ["colour", "group", "source", "kinds", "longer", "find", "open", "view", "order", "traffic"];
  const RANGES = { time: 2, tokens: 4, area: 4 };
  const TYPES = ["device", "division", "tile", "transfer", "event", "sequence"];
  const followers = new Set();
  let state = Object.freeze(read());
  let path = location.pathname;
  let timer = 0;

  // "tile.12~device.3" <-> {type: "tile", tile: 12, device: 3}; anything else is no selection.
  function decodeSelection(text) {
    const facts = {};
    for (const part of text.split("~")) {
      const [name, value] = part.split(".");
      if (!/^[a-z]{1,12}$/.test(name) || !/^(\d{1,9}|simulated|measured)$/.test(value || "")) return null;
      facts[name] = /^\d/.test(value) ? Number(value) : value;
    }
    const type = text.split(".")[0];
    return TYPES.includes(type) ? Object.freeze({ type, ...facts }) : null;
  }

  function encodeSelection({ type, ...facts }) {
    const rest = Object.entries(facts).filter(([name]) => name !== type);
    return [[type, facts[type]], ...rest].map(([name, value]) => `${name}.${value}`).join("~");
  }

  function read() {
    const query = new URLSearchParams(location.search);
    const found = {};
    const chosen = query.get("sel") && decodeSelection(query.get("sel"));
    if (chosen) found.sel = chosen;
    for (const [name, length] of Object.entries(RANGES)) {
      const numbers = (query.get(name) || "").split("-").map(Number);
      if (numbers.length === length && numbers.every(Number.isFinite)) found[name] = Object.freeze(numbers);
    }
    for (const name of TEXTS) if (query.get(name)) found[name] = query.get(name).slice(0, 200);
    return found;
  }

  // The URL follows when things come to rest: browsers refuse more than some hundred changes in half a minute.
  function write() {
    timer = 0;
    if (location.pathname !== path || location.protocol === "file:") return; // a file keeps its address
    const kept = new URLSearchParams(location.search);
    for (const name of ["sel", ...Object.keys(RANGES), ...TEXTS]) kept.delete(name);
    for (const [name, value] of new URLSearchParams(query())) kept.set(name, value);
    const text = kept.toString().replaceAll("%7E", "~");
    const url = location.pathname + (text ? `?${text}` : "") + location.hash;
    if (url !== location.pathname + location.search + location.hash) history.replaceState(history.state, "", url);
  }

  // The query of a link to another page that shows the same: state, without what only this page understands.
  function query() {
    const kept = new URLSearchParams();
    if (state.sel) kept.set("sel", encodeSelection(state.sel));
    for (const name of Object.keys(RANGES)) if (state[name]) kept.set(name, state[name].map(Math.round).join("-"));
    for (const name of TEXTS) if (state[name]) kept.set(name, state[name]);
    return kept.size ? `?${kept}`.replaceAll("%7E", "~") : "";
  }

  // Writes the URL now, for whoever is about to leave the page.
  function flush() {
    if (!timer) return;
    clearTimeout(timer);
    write();
  }

  function tell(changed) {
    if (changed.size) for (const follower of followers) follower(state, changed);
  }

  function set(patch) {
    const changed = new Set(Object.keys(patch).filter((name) => !same(state[name], patch[name])));
    if (!changed.size) return;
    const next = { ...state, ...patch };
    for (const name of Object.keys(next)) if (next[name] === null || next[name] === undefined) delete next[name];
    state = Object.freeze(next);
    clearTimeout(timer);
    timer = setTimeout(write, 150);
    tell(changed);
  }

  function same(one, other) {
    return (one ?? null) === (other ?? null) || JSON.stringify(one) === JSON.stringify(other);
  }

  function follow(follower) {
    followers.add(follower);
    return () => followers.delete(follower);
  }

  // Another page, or back and forward: the URL says what is to be shown.
  function reread() {
    const before = state;
    path = location.pathname;
    clearTimeout(timer);
    timer = 0;
    state = Object.freeze(read());
    const names = new Set([...Object.keys(before), ...Object.keys(state)]);
    tell(new Set([...names].filter((name) => !same(before[name], state[name]))));
  }
  window.addEventListener("popstate", reread);
  window.addEventListener("_dashprivate_pushstate", reread); // Dash's links announce themselves so

  return { get: () => state, set, follow, query, flush, decode: decodeSelection, encode: encodeSelection };
})();
