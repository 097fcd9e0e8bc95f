import assert from "node:assert/strict";
import { suite, test } from "node:test";
import "./browser.ts";
import { heldBetween, type MemoryPayload, peakOf, shownDevices } from "../src/timeline/memory.ts";

// Device 0 computes in both directions, device 1 in none.
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
