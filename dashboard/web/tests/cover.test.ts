// How much of every pixel the events of a trace cover. The oracle counts thousandths of a pixel, one by one.
import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { seeded } from "./browser.ts";
import { addTrack, paintLine, shadeTables } from "../src/timeline/cover.ts";
import { wholeTable } from "../src/timeline/events.ts";
import { traceOf, type Spec } from "./traces.ts";

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
