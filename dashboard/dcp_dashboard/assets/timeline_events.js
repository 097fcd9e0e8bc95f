// Events of one trace as the timeline wants them: tracks, parts of them, which one lies under a point, what a
// search means, sums over an area. Pure functions over the columns of "dcp.timeline/1"; nothing here draws.
//
// A table is {start, end, kind, ids, from, reach}: events sorted by (track, start), track = 4 * device + lane;
// from[track] to from[track + 1] are its rows, ids their rows in the payload (null: the same), reach the largest end
// of the track so far, which rises and can be searched.
"use strict";

window.dcp = window.dcp || {};

window.dcp.events = (() => {
  const LANES = { compute: 0, send: 1, receive: 2, wait: 3 };

  function wholeTable(columns, devices) {
    const { device, lane, start, end, kind } = columns;
    const from = new Uint32Array(devices * 4 + 1);
    for (let e = 0; e < start.length; e++) from[device[e] * 4 + lane[e] + 1]++;
    for (let track = 0; track < devices * 4; track++) from[track + 1] += from[track];
    return withReach({ columns, start, end, kind, ids: null, from });
  }

  // The events of a table for which keep(row of the payload) holds, as a table of its own.
  function subset(table, keep) {
    const { from } = table;
    const ids = new Uint32Array(table.start.length);
    const starts = new Uint32Array(from.length);
    let size = 0;
    for (let track = 0; track + 1 < from.length; track++) {
      for (let e = from[track]; e < from[track + 1]; e++) {
        const id = table.ids ? table.ids[e] : e;
        if (keep(id)) ids[size++] = id;
      }
      starts[track + 1] = size;
    }
    return ofRows(table, ids.slice(0, size), starts);
  }

  function ofRows(table, ids, from) {
    const { columns } = table;
    const pick = (column) => {
      const found = new column.constructor(ids.length);
      for (let i = 0; i < ids.length; i++) found[i] = column[ids[i]];
      return found;
    };
    return withReach({ columns, start: pick(columns.start), end: pick(columns.end), kind: pick(columns.kind), ids, from });
  }

  function withReach(table) {
    const { end, from } = table;
    let reach = end; // shared as long as no event ends before an earlier one
    for (let track = 0; track + 1 < from.length; track++) {
      for (let e = from[track] + 1; e < from[track + 1]; e++) {
        if (end[e] >= reach[e - 1]) { if (reach !== end) reach[e] = end[e]; continue; }
        if (reach === end) reach = end.slice();
        reach[e] = reach[e - 1];
      }
    }
    table.reach = reach;
    return table;
  }

  // First row of a track whose reach is at least `time`; rows before it lie wholly to the left.
  function firstEndingAfter(table, track, time) {
    const { reach } = table;
    let low = table.from[track];
    let high = table.from[track + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (reach[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // First row of a track that starts at `time` or later.
  function firstStartingAt(table, track, time) {
    const { start } = table;
    let low = table.from[track];
    let high = table.from[track + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  const idOf = (table, row) => (table.ids ? table.ids[row] : row);

  // The event of some tracks at a time: one that covers it, started last; else the nearest within `slack`.
  function eventAt(table, tracks, time, slack) {
    let best;
    let nearest = slack;
    for (const track of tracks) {
      const last = firstStartingAt(table, track, time + slack);
      for (let e = firstEndingAfter(table, track, time - slack); e < last; e++) {
        const distance = Math.max(table.start[e] - time, time - table.end[e], 0);
        if (distance <= nearest) { nearest = distance; best = idOf(table, e); }
      }
    }
    return best;
  }

  // First start and last end of each direction that has events.
  function phases({ start, end, backward }) {
    const found = ["forward", "backward"].map((name) => ({ name, start: Infinity, end: 0 }));
    for (let e = 0; e < start.length; e++) {
      const phase = found[backward[e]];
      if (start[e] < phase.start) phase.start = start[e];
      if (end[e] > phase.end) phase.end = end[e];
    }
    return found.filter((phase) => phase.end > phase.start);
  }

  // The other end of a message: the n-th send of a transfer belongs to its n-th receive.
  function partnerOf(columns, table, e) {
    const { device, lane, peer, transfer } = columns;
    if (transfer[e] < 0) return undefined;
    const there = lane[e] === LANES.send ? LANES.receive : LANES.send;
    return ofTransfer(peer[e], there)[ofTransfer(device[e], lane[e]).indexOf(e)];

    function ofTransfer(at, way) {
      const rows = [];
      for (let i = table.from[at * 4 + way]; i < table.from[at * 4 + way + 1]; i++) {
        if (transfer[i] === transfer[e]) rows.push(i);
      }
      return rows;
    }
  }

  // "gpu 17 kv 12", "division 3 backward" -> what an event has to be; texts match where no digit goes on.
  function parseSearch(text) {
    const wanted = { device: null, division: null, peer: null, backward: null, text: "" };
    const words = [[/\b(?:gpu|device|rank)\s*(\d+)\b/i, "device"], [/\bdivision\s*(\d+)\b/i, "division"],
      [/\b(?:peer|from|to)\s*(\d+)\b/i, "peer"]];
    let rest = text;
    for (const [pattern, key] of words) {
      const found = pattern.exec(rest);
      if (!found) continue;
      wanted[key] = Number(found[1]);
      rest = rest.replace(found[0], " ");
    }
    for (const [index, word] of ["forward", "backward"].entries()) {
      if (!new RegExp(`\\b${word}\\b`, "i").test(rest)) continue;
      wanted.backward = index;
      rest = rest.replace(new RegExp(`\\b${word}\\b`, "i"), " ");
    }
    wanted.text = rest.trim().replace(/\s+/g, " ").toLowerCase();
    return wanted;
  }

  // A search as a test of rows, or null when it asks for nothing.
  function searchTest(text, columns, names) {
    const wanted = parseSearch(text);
    const keys = ["device", "division", "peer", "backward"].filter((key) => wanted[key] !== null);
    if (!keys.length && !wanted.text) return null;
    const isNamed = names.map((name) => hasText(name.toLowerCase(), wanted.text));
    return (e) => isNamed[columns.name[e]] && keys.every((key) => columns[key][e] === wanted[key]);
  }

  function hasText(name, text) {
    for (let at = name.indexOf(text); at >= 0; at = name.indexOf(text, at + 1)) {
      const after = name.charCodeAt(at + text.length);
      if (!/\d$/.test(text) || !(after >= 48 && after <= 57)) return true;
    }
    return false;
  }

  // Sums over [t0, t1) and the devices first..last of a table: per kind the covered time per device, how many events
  // touch it and the bytes of their messages.
  function aggregate(table, kinds, t0, t1, first, last) {
    const found = Array.from({ length: kinds }, () => ({ time: 0, count: 0, bytes: 0, perDevice: new Float64Array(last - first + 1) }));
    const { start, end, kind } = table;
    const { bytes } = table.columns;
    for (let device = first; device <= last; device++) {
      for (let track = device * 4; track < device * 4 + 4; track++) {
        const past = firstStartingAt(table, track, t1);
        for (let e = firstEndingAfter(table, track, t0); e < past; e++) {
          if (end[e] < t0 || (end[e] === t0 && start[e] < t0)) continue;
          const of = found[kind[e]];
          const covered = Math.min(end[e], t1) - Math.max(start[e], t0);
          of.time += covered;
          of.perDevice[device - first] += covered;
          of.count += 1;
          of.bytes += bytes[idOf(table, e)];
        }
      }
    }
    return found;
  }

  return {
    LANES, wholeTable, subset, firstEndingAfter, firstStartingAt, idOf, eventAt, phases, partnerOf, parseSearch,
    searchTest, hasText, aggregate,
  };
})();
