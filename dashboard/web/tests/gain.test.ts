// What a step gains from faster attention.
import "./browser.ts";
import assert from "node:assert/strict";
import { test } from "node:test";
import { gainOfStep, shareOf, spread } from "../src/page/gain.ts";

test("a step gains as much as its attention saves", () => {
  // Of 100 ms of a step, 30 are attention; at twice the speed 15 remain: 85 ms in all.
  assert.ok(Math.abs(gainOfStep(2, 0.3) - 100 / 85) < 1e-12);
  assert.equal(gainOfStep(2, 1), 2);
  assert.equal(gainOfStep(1, 0.5), 1);
  assert.ok(gainOfStep(0.5, 0.5) < 1);
});

test("one batch is a figure, several are a median between the least and the most", () => {
  assert.equal(spread([1.284]), "1.28×");
  assert.equal(spread([3, 1, 2]), "2.00× (1.00\u00a0to\u00a03.00)");
  assert.equal(spread([4, 1, 2, 3]), "2.50× (1.00\u00a0to\u00a04.00)");
});

test("an address without a share of 1 to 100 per cent means the usual one", () => {
  assert.deepEqual([shareOf("45"), shareOf("100"), shareOf("1")], [45, 100, 1]);
  assert.deepEqual([undefined, "", "0", "101", "-3", "half", "1e9"].map(shareOf), Array(7).fill(30));
});
