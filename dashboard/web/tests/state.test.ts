import assert from "node:assert/strict";
import { beforeEach, mock, suite, test } from "node:test";
import { address, window } from "./browser.ts";
import { decodeSelection, encodeSelection, readQuery, type Selection, State, type Values, writeQuery } from "../src/state.ts";
import { pinned } from "../src/page/selection.ts";
import { pinnedFirst } from "../src/timeline/event_table.ts";

const SELECTIONS: readonly [text: string, sel: Selection][] = [
  ["tile.12~device.3", { type: "tile", tile: 12, device: 3 }],
  ["event.7~source.measured~device.0~backward.1", { type: "event", event: 7, source: "measured", device: 0, backward: 1 }],
  ["division.2~backward.0", { type: "division", division: 2, backward: 0 }],
  ["sequence.17", { type: "sequence", sequence: 17 }],
];

suite("the address says the state", () => {
  for (const [text, sel] of SELECTIONS) {
    test(`${text} is a selection, and is written for it`, () => {
      assert.deepEqual({ ...decodeSelection(text) }, sel);
      assert.equal(encodeSelection(sel), text);
    });
  }

  test("what is no selection selects nothing", () => {
    for (const text of ["", "tile", "tile.", "tile.x", "wall.3", "tile.-1", "tile.1234567890", "device.3~<b>.4", "source.measured"]) {
      assert.equal(decodeSelection(text), null, text);
    }
  });

  test("every key comes back from the query that it was written to", () => {
    const values: Values = {
      sel: { type: "device", device: 3 }, time: [10, 20], tokens: [1, 2, 3, 4], area: [5, 6, 0, 1], colour: "device", group: "1",
      source: "both", kinds: "send,wait", longer: "1500", find: "gpu 3 & kv", open: "0,2", view: "table", order: "-bytes", traffic: "node",
    };
    assert.deepEqual(readQuery(writeQuery(values)), values);
  });

  test("what else the address says stays, and damaged values are left out", () => {
    assert.equal(writeQuery({ colour: "device" }, "?a=1&colour=density&sel=tile.1"), "?a=1&colour=device");
    assert.equal(writeQuery({ sel: { type: "tile", tile: 1, device: 3 } }), "?sel=tile.1~device.3");
    assert.equal(readQuery(`?find=${"x".repeat(5000)}`).find?.length, 200);
    assert.deepEqual(readQuery("?time=1-x&tokens=1-2&sel=nothing&colour="), {});
  });
});

suite("one state", () => {
  let state: State;
  let heard: string[];

  beforeEach(() => {
    address.search = "";
    state = new State();
    const told: string[] = [];
    heard = told;
    state.follow((_, changed) => told.push([...changed].sort().join(" ")));
  });

  test("tells followers what changed, and nothing where nothing did", () => {
    state.set({ time: [1, 2], colour: "device" });
    state.set({ time: [1, 2] });
    state.set({ colour: null, find: null });
    assert.deepEqual(heard, ["colour time", "colour"]);
    assert.deepEqual(state.get(), { time: [1, 2] });
  });

  test("a follower that ended hears nothing", () => {
    const late: string[] = [];
    const end = state.follow((_, changed) => late.push([...changed].join()));
    end();
    state.set({ view: "table" });
    assert.deepEqual([late, heard], [[], ["view"]]);
  });

  test("writes the address once things come to rest, or at once when asked", () => {
    mock.timers.enable({ apis: ["setTimeout"] });
    state.set({ view: "table" });
    assert.equal(address.search, "");
    mock.timers.tick(1000);
    assert.equal(address.search, "?view=table");
    state.set({ view: null });
    state.flush();
    assert.equal(address.search, "");
    mock.timers.reset();
  });

  test("follows the address of another page", () => {
    state.set({ view: "table", colour: "device" });
    address.search = "?colour=device&sel=tile.3";
    window.dispatchEvent(new Event("popstate"));
    assert.deepEqual(heard.slice(1), ["sel view"]);
    assert.equal(state.get().sel?.tile, 3);
  });
});

suite("pinned devices", () => {
  test("are known devices, in the order of pinning, each once", () => {
    assert.deepEqual([...pinned("17,3,17,99,-1,1.5,x,", 32)], [17, 3]);
    assert.deepEqual([...pinned(undefined, 32)], []);
  });

  test("bring their events to the top of a table, in the order of the others", () => {
    const device = Uint8Array.of(0, 1, 2, 1, 0);
    assert.deepEqual([...pinnedFirst(Uint32Array.of(4, 3, 2, 1, 0), device, new Set([1]))], [3, 1, 4, 2, 0]);
  });
});
