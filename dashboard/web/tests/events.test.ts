// Events of a trace: what a search, a selection or an area means, how much of a pixel they cover, what devices hold meanwhile.
import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { seeded } from "./browser.ts";
import { addTrack, paintLine, shadeTables } from "../src/timeline/cover.ts";
import { orderOf } from "../src/timeline/event_table.ts";
import { aggregate, eventAt, type EventColumns, firstEndingAfter, firstStartingAt, hasText, parseSearch, partnerOf, phases, searchTest, subset, wholeTable } from "../src/timeline/events.ts";
import { parseDuration } from "../src/timeline/filters.ts";
import { heldBetween, type MemoryPayload, peakOf, shownDevices } from "../src/timeline/memory.ts";
import { brushTest } from "../src/timeline/selection.ts";

interface Spec {
  start: number; end: number; device?: number; lane?: number; kind?: number; backward?: number; division?: number;
  peer?: number; bytes?: number; name?: number; transfer?: number; block?: number;
}

const NONE = { device: 0, lane: 0, kind: 0, backward: 0, division: -1, peer: -1, bytes: 0, name: 0, transfer: -1, block: -1 };

/** Columns of events, sorted by (device, lane, start) as the server does. */
function traceOf(events: readonly Spec[]): EventColumns {
  const rows = events.map((event) => ({ ...NONE, ...event }))
    .sort((a, b) => a.device - b.device || a.lane - b.lane || a.start - b.start);
  const names = ["start", "end", ...Object.keys(NONE)] as (keyof EventColumns)[];
  return Object.fromEntries(names.map((name) => [name, Float64Array.from(rows, (row) => row[name])])) as EventColumns;
}

function randomTrace(seed: number): ReturnType<typeof traceOf> {
  const random = seeded(seed);
  const whole = (below: number) => Math.floor(random() * below);
  return traceOf(Array.from({ length: 200 }, () => {
    const start = whole(1000);
    return { start, end: start + whole(120), device: whole(3), lane: whole(4), kind: whole(6), bytes: whole(50), division: whole(4), backward: whole(2) };
  }));
}

/** Rows of a track, by a plain walk over all events. */
const rowsOf = (columns: ReturnType<typeof traceOf>, track: number): number[] => (
  [...columns.start.keys()].filter((e) => columns.device[e] * 4 + columns.lane[e] === track));

suite("events of a trace", () => {
  const columns = randomTrace(5);
  const table = wholeTable(columns, 3);

  test("two searches bound the events of a track in view", () => {
    for (const time of [0, 137, 500.5, 2000, ...columns.end.slice(0, 20), ...columns.start.slice(0, 20)]) {
      for (let track = 0; track < 12; track++) {
        const rows = rowsOf(columns, track);
        const left = rows.filter((e) => rows.filter((before) => before <= e).every((before) => columns.end[before] < time));
        assert.equal(firstEndingAfter(table, track, time) - table.from[track], left.length);
        assert.equal(firstStartingAt(table, track, time) - table.from[track], rows.filter((e) => columns.start[e] < time).length);
      }
    }
  });

  test("a part of a part holds the rows of both tests, in their order", () => {
    const long = subset(table, (e) => columns.end[e] - columns.start[e] > 40);
    const both = subset(long, (e) => columns.kind[e] === 2);
    const expected = [...columns.start.keys()].filter((e) => columns.end[e] - columns.start[e] > 40 && columns.kind[e] === 2);
    assert.deepEqual([...both.ids ?? []], expected);
    assert.deepEqual([...both.start], expected.map((e) => columns.start[e]));
  });

  test("under a point lies what covers it, or what is near", () => {
    const { start, end } = traceOf([{ start: 10, end: 20 }, { start: 30, end: 40 }]);
    const two = wholeTable(traceOf([{ start: 10, end: 20 }, { start: 30, end: 40 }]), 1);
    assert.deepEqual([15, 35, 22, 25, 29].map((time) => eventAt(two, [0], time, 3)), [0, 1, 0, undefined, 1]);
    assert.deepEqual([start[1], end[1]], [30, 40]);
  });

  test("sums over an area are those of a walk over all events", () => {
    const [t0, t1, first, last] = [200, 700, 1, 2];
    const sums = aggregate(table, 6, t0, t1, first, last);
    for (let kind = 0; kind < 6; kind++) {
      const inside = [...columns.start.keys()].filter((e) => columns.kind[e] === kind && columns.device[e] >= first
        && columns.start[e] < t1 && (columns.end[e] > t0 || columns.start[e] === t0));
      const time = inside.reduce((sum, e) => sum + Math.min(columns.end[e], t1) - Math.max(columns.start[e], t0), 0);
      assert.deepEqual([sums[kind].count, sums[kind].time, sums[kind].bytes],
        [inside.length, time, inside.reduce((sum, e) => sum + columns.bytes[e], 0)]);
      assert.equal(sums[kind].perDevice.reduce((one, other) => one + other), time);
    }
  });

  test("phases last from the first start to the last end of each direction", () => {
    const found = phases(traceOf([{ start: 5, end: 9 }, { start: 7, end: 30, backward: 1 }, { start: 2, end: 3 }]));
    assert.deepEqual(found, [{ name: "forward", start: 2, end: 9 }, { name: "backward", start: 7, end: 30 }]);
  });

  test("the n-th send of a transfer belongs to its n-th receive", () => {
    const sent = (start: number) => ({ start, end: start + 2, device: 0, lane: 1, peer: 1, transfer: 4 });
    const received = (start: number) => ({ start, end: start + 2, device: 1, lane: 2, peer: 0, transfer: 4 });
    const trace = traceOf([sent(0), sent(10), received(3), received(13), { start: 4, end: 5, device: 1, lane: 2, peer: 0, transfer: 9 }]);
    const all = wholeTable(trace, 2);
    assert.deepEqual([0, 1, 2, 4].map((e) => partnerOf(trace, all, e)), [2, 4, 0, 1]);
    assert.equal(partnerOf(trace, all, 3), undefined);
  });

  test("an order is stable, and another word is none", () => {
    const equal = wholeTable(traceOf([{ start: 3, end: 9, bytes: 5 }, { start: 1, end: 2, bytes: 7 }, { start: 4, end: 5, bytes: 5 }]), 1);
    const bytes = [...equal.columns.bytes];
    assert.deepEqual(bytes, [7, 5, 5]);
    assert.deepEqual([...orderOf(equal, "bytes")], [1, 2, 0]);
    assert.deepEqual([...orderOf(equal, "-duration_ns")], [1, 0, 2]);
    assert.deepEqual([...orderOf(equal, "direction")], [0, 1, 2]);
  });
});

suite("what a text asks for", () => {
  test("names of devices, divisions and peers, and the rest as text", () => {
    assert.deepEqual(parseSearch("gpu 17 KV  12"), { device: 17, text: "kv 12" });
    assert.deepEqual(parseSearch("division 3 backward"), { division: 3, backward: 1, text: "" });
    assert.deepEqual(parseSearch("rank 2 to 5 forward"), { device: 2, peer: 5, backward: 0, text: "" });
  });

  test("a number matches where no digit goes on", () => {
    assert.deepEqual(["kv 1", "kv 12", "dkv 1 x"].map((name) => hasText(name, "kv 1")), [true, false, true]);
    assert.equal(searchTest("  ", traceOf([]), []), null);
  });

  test("durations with and without units", () => {
    assert.deepEqual(["", "1.5 ms", "20us", "300", "2 S", "3 ns", "7µs", "x", "5 min"].map(parseDuration), [0, 1.5e6, 2e4, 3e5, 2e9, 3, 7e3, NaN, NaN]);
  });
});

suite("what a selection means in the timeline", () => {
  const columns = traceOf([
    { start: 0, end: 9, device: 0, lane: 0, division: 1 },
    { start: 2, end: 5, device: 0, lane: 1, peer: 1, division: 1, block: 4 },
    { start: 0, end: 9, device: 1, lane: 0, division: 1, backward: 1 },
    { start: 3, end: 6, device: 1, lane: 2, peer: 0, division: 1, block: 4 },
    { start: 0, end: 9, device: 2, lane: 0, division: 1 },
  ]);
  const header = { source: "simulated", sequence_blocks: [0, 4, 6] } as unknown as Parameters<typeof brushTest>[1]["header"];
  const meant = (sel: Parameters<typeof brushTest>[0]): number[] | null => {
    const test = brushTest(sel, { header, columns });
    return test && [...columns.start.keys()].filter(test);
  };

  test("a division in one direction, of all devices or of those that a wait names", () => {
    assert.deepEqual(meant({ type: "division", division: 1, backward: 0 }), [0, 1, 3, 4]);
    assert.deepEqual(meant({ type: "division", division: 1, device: 0 }), [0, 1]);
    assert.deepEqual(meant({ type: "division", division: 1, device: 0, peer: 1 }), [0, 1, 3]);
  });

  test("messages between two devices, computing of a tile, blocks of a sequence", () => {
    assert.deepEqual(meant({ type: "device", device: 0, peer: 1 }), [1, 3]);
    assert.deepEqual(meant({ type: "tile", device: 2, division: 1 }), [4]);
    assert.deepEqual(meant({ type: "sequence", sequence: 1 }), [1, 3]);
    assert.equal(meant({ type: "device", device: 0 }), null);
    assert.equal(meant(undefined), null);
  });
});

const WIDTH = 20;
const PARTS = 1000; // of a pixel

/** The covered share of every pixel by walking over tiny steps of [from, to). */
function counted(events: readonly Spec[], from: number, to: number): number[] {
  const cover = new Array<number>(WIDTH).fill(0);
  const step = (to - from) / (WIDTH * PARTS);
  for (let i = 0; i < WIDTH * PARTS; i++) {
    const time = from + (i + 0.5) * step;
    cover[Math.floor(i / PARTS)] += events.filter(({ start, end }) => start <= time && time < end).length / PARTS;
  }
  return cover;
}

suite("coverage of pixels", () => {
  test("is the sum of what each event covers, at every zoom", () => {
    const random = seeded(1);
    for (let round = 0; round < 12; round++) {
      const events = Array.from({ length: 8 }, () => {
        const start = Math.floor(random() * 900);
        return { start, end: start + 1 + Math.floor(random() * 90), lane: 1 };
      });
      const [from, to] = round ? [random() * 400, 500 + random() * 500] : [0, 1000];
      const cover = new Float64Array(WIDTH);
      addTrack(wholeTable(traceOf(events), 1), 1, from, to, cover, WIDTH);
      counted(events, from, to).forEach((share, x) => assert.ok(Math.abs(cover[x] - share) < 0.03, `round ${round}, pixel ${x}: ${cover[x]} for ${share}`));
    }
  });

  test("shows an event that lasts no time, and says where nothing is in view", () => {
    const table = wholeTable(traceOf([{ start: 500, end: 500, lane: 2 }]), 1);
    const cover = new Float64Array(WIDTH);
    assert.equal(addTrack(table, 2, 0, 1000, cover, WIDTH), true);
    assert.ok(cover[10] > 0);
    assert.equal(addTrack(table, 2, 600, 1000, cover, WIDTH), false);
    assert.equal(addTrack(table, 1, 0, 1000, cover, WIDTH), false);
  });

  test("a pixel of the compute lane has the colour of the kind that covers most of it", () => {
    const colours = ["#ff0000", "#00ff00", "#0000ff", "#111111", "#222222", "#333333"];
    const shades = shadeTables(colours, 0xff000000).bright;
    const line = new Uint32Array(3).fill(7);
    paintLine(line, Float64Array.from([0.2, 0.7, 0.1, 0, 0, 0, 0.4, 0.1, 0.5]), 3, 0, shades, 1);
    assert.deepEqual([...line], [0xff00ff00, 7, 0xffff0000]); // little-endian: alpha, blue, green, red
    paintLine(line, Float64Array.from([1, 0.01, 0]), 3, 1, shades, 1);
    assert.equal(line[0], 0xff111111);
    assert.ok((line[1] & 255) > 0 && (line[1] & 255) < 0x11);
    assert.equal(line[2], 0xffff0000);
  });
});

const PAYLOAD: MemoryPayload = {
  header: { source: "simulated", num_devices: 2, unit_ns: 1, longest_ns: 200, limit_bytes: 1000 },
  columns: {
    saved: Float64Array.of(10, 5), forward: Float64Array.of(100, 90), backward: Float64Array.of(200, 90),
    buffers: Float64Array.of(40, 40, 80, 40), began: Uint32Array.of(0, 0, 100, 0), ended: Uint32Array.of(90, 0, 200, 0),
    ptr: Uint32Array.of(0, 3, 3), time: Uint32Array.of(20, 30, 50), filled: Float64Array.of(7, 30, 0),
  },
};

suite("what a device holds", () => {
  test("has the levels of its directions, and between them its own tensors", () => {
    const total = (from: number, to: number) => heldBetween(PAYLOAD, 0, from, to).total;
    assert.deepEqual([total(0, 1), total(89, 90), total(90, 99), total(100, 101), total(80, 120)], [100, 100, 10, 200, 200]);
    assert.deepEqual(heldBetween(PAYLOAD, 1, 0, 200), { total: 5, saved: 5, buffers: 0, filled: 0 });
    assert.deepEqual([peakOf(PAYLOAD, 0), peakOf(PAYLOAD, 1)], [200, 5]);
  });

  test("fills with every step, of which the most within a pixel is shown", () => {
    const filled = (from: number, to: number) => heldBetween(PAYLOAD, 0, from, to).filled;
    assert.deepEqual([filled(0, 19), filled(20, 21), filled(25, 26), filled(29, 60), filled(55, 60)], [0, 7, 7, 30, 0]);
  });

  test("is shown of all devices, or of those that are pinned, selected or hold most", () => {
    assert.deepEqual(shownDevices(PAYLOAD, 1, {}), [0, 1]);
    assert.deepEqual(shownDevices(PAYLOAD, 1, { pins: "1,x,9" }), [1, 0]);
    const devices = 12;
    const many: MemoryPayload = {
      header: { ...PAYLOAD.header, num_devices: devices },
      columns: { ...PAYLOAD.columns, saved: Float64Array.from({ length: devices }, (_, i) => i), ended: new Uint32Array(2 * devices), began: new Uint32Array(2 * devices) },
    };
    assert.deepEqual(shownDevices(many, 1, { pins: "2", sel: { type: "device", device: 5 } }), [2, 5, 11, 10, 9, 8]);
  });
});
