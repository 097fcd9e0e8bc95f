import assert from "node:assert/strict";
import { suite, test } from "node:test";
import "./browser.ts";
import { BANDS, lanesAt, layoutRows, nodeOf, openNodes, openText, Scroll } from "../src/timeline/layout.ts";
import { AxisRange, ticks } from "../src/kit/axis.ts";

const NODES = [0, 3, 5, 8]; // three nodes of 3, 2 and 3 devices

suite("rows of the timeline", () => {
  test("lie one below the other, a device or a closed node in each", () => {
    const { rows, height, total } = layoutRows({ nodeStarts: NODES, sources: 2, room: 300, least: 6, open: new Set([1]) });
    assert.deepEqual(rows.map(({ devices, source }) => [...devices, source]),
      [[0, 3, 0], [0, 3, 1], [3, 4, 0], [3, 4, 1], [4, 5, 0], [4, 5, 1], [5, 8, 0], [5, 8, 1]]);
    assert.deepEqual(rows.map(({ isNode }) => isNode), [true, true, false, false, false, false, true, true]);
    rows.forEach((row, i) => assert.equal(row.y, i * height));
    assert.equal(total, rows.length * height);
    assert.ok(total <= 300);
  });

  test("of pinned devices come first, in the order of pinning, and again in their node", () => {
    const { rows, height, pinned } = layoutRows({ nodeStarts: NODES, sources: 2, room: 300, least: 6, open: new Set([1]), pins: [7, 3] });
    assert.deepEqual(rows.map(({ devices, source, isPinned }) => [...devices, source, isPinned]).slice(0, 8),
      [[7, 8, 0, true], [7, 8, 1, true], [3, 4, 0, true], [3, 4, 1, true], [0, 3, 0, false], [0, 3, 1, false], [3, 4, 0, false], [3, 4, 1, false]]);
    assert.deepEqual(rows.slice(0, 4).map(({ node, isNode }) => [node, isNode]), [[2, false], [2, false], [1, false], [1, false]]);
    assert.equal(pinned, 4 * height);
    assert.equal(rows[4].y, pinned);
  });

  test("scroll by whole rows below pinned ones", () => {
    const scroll = new Scroll(100, 30);
    scroll.step = 10;
    scroll.place(14, 30);
    assert.deepEqual([scroll.start, scroll.end], [10, 40]);
  });

  test("are never lower than asked, and not higher than is of use", () => {
    const all = new Set([0, 1, 2]);
    assert.equal(layoutRows({ nodeStarts: NODES, sources: 1, room: 10, least: 14, open: all }).height, 14);
    assert.ok(layoutRows({ nodeStarts: NODES, sources: 1, room: 10000, least: 14, open: all }).height < 100);
  });

  test("are devices where there is room for them, else nodes; the address says which are open", () => {
    const of = (text: string | undefined, room: number) => [...openNodes(text, { nodeStarts: NODES, sources: 1, room })];
    assert.deepEqual(of(undefined, 500), [0, 1, 2]);
    assert.deepEqual(of(undefined, 20), []);
    assert.deepEqual(of("all", 20), [0, 1, 2]);
    for (const text of ["none", "all", "1", "0,2"]) assert.equal(openText(new Set(of(text, 20)), 3), text);
    assert.deepEqual(of("2,9,x", 20), [2]);
  });

  test("move within their window, also after a reset, which shows the first ones", () => {
    const scroll = new Scroll(1, 1);
    Object.assign(scroll, { full: 350, smallest: 320 });
    scroll.place(30, 320);
    scroll.reset();
    assert.deepEqual([scroll.start, scroll.end, scroll.isWhole], [0, 320, false]);
    scroll.pan(0.05);
    assert.equal(scroll.start, 16);
  });

  test("belong to the node of their devices", () => {
    assert.deepEqual([0, 2, 3, 4, 5, 7].map((device) => nodeOf(NODES, device)), [0, 0, 1, 1, 2, 2]);
  });

  test("the lane under a point is one that is drawn there", () => {
    for (let share = 0; share < 1; share += 0.01) {
      const here = BANDS.flatMap(([top, bottom], lane) => (share >= top && share < bottom ? [lane] : []));
      assert.ok(here.every((lane) => lanesAt(share).includes(lane)), `at ${share}`);
    }
  });
});

suite("an axis", () => {
  test("keeps the point under the pointer where it is while it zooms", () => {
    const range = new AxisRange(1000, 10);
    range.zoom(0.5, 0.3);
    assert.ok(Math.abs(range.start + 0.3 * range.span - 300) < 1e-9);
    assert.equal(range.span, 500);
  });

  test("never leaves what there is, nor shows less than the smallest part", () => {
    const range = new AxisRange(1000, 10);
    range.zoom(1e-9, 1);
    assert.deepEqual([range.start, range.end], [990, 1000]);
    range.pan(5);
    assert.equal(range.end, 1000);
    range.zoom(1e9, 0.5);
    assert.ok(range.isWhole);
    range.show([400, 402]);
    assert.deepEqual([range.start, range.end], [396, 406]);
    range.show(null);
    assert.ok(range.isWhole);
  });

  test("has ticks at 1, 2 or 5 times a power of ten, about as many as asked", () => {
    for (const [start, end] of [[0, 1], [3.2, 977], [0, 131072], [5e8, 5.1e8]]) {
      const { step, values } = ticks(start, end, 6);
      assert.match(String(step / 10 ** Math.floor(Math.log10(step) + 1e-9)), /^(1|2|5)(\.0+\d)?$/);
      assert.ok(values.length >= 3 && values.length <= 7, `${values.length} ticks`);
      assert.ok(values.every((value) => value >= start && value <= end));
    }
  });
});
