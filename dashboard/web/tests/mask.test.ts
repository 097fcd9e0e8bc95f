import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { seeded, window } from "./browser.ts";
import { AxisRange } from "../src/kit/axis.ts";
import type { MaskColumns } from "../src/mask/columns.ts";
import { edgeLabels, sequenceAt } from "../src/mask/labels.ts";
import { MaskPairs } from "../src/mask/pairs.ts";
import { sequenceRows, sorted } from "../src/mask/sequence_table.ts";
import { belongs, byRow, isShown, rasterise, spans } from "../src/mask/raster.ts";
import type { Selection } from "../src/state.ts";

/** Blocks of random lengths, and a tile for every pair of blocks but some. */
function randomMask(seed: number): { columns: MaskColumns; total: number } {
  const random = seeded(seed);
  const start = [0];
  while (start.length < 30) start.push(start[start.length - 1] + 1 + Math.floor(random() * 40));
  const end = [...start.slice(1), start[29] + 5];
  const pairs = start.flatMap((_, q) => start.flatMap((__, kv) => (random() < 0.7 ? [[q, kv]] : [])));
  const of = (value: (pair: number[], tile: number) => number) => Int32Array.from(pairs, value);
  return { total: end[29], columns: {
    block_start: Int32Array.from(start), block_end: Int32Array.from(end), block_owner: Int32Array.from(start, (_, block) => block % 4),
    block_sequence: Int32Array.from(start, (_, block) => Math.floor(block / 10)), tile_q: of(([q]) => q), tile_kv: of(([, kv]) => kv),
    tile_kind: of(() => 2), tile_pairs: of(() => 9), tile_device: of((_, tile) => tile % 4), tile_division: of((_, tile) => tile % 3),
    tile_backward_division: of((_, tile) => tile % 5),
  } };
}

const view = (start: number, end: number): { start: number; end: number; span: number } => ({ start, end, span: end - start });

suite("tiles as pixels", () => {
  const { columns: c, total } = randomMask(3);
  const none = c.tile_q.length;
  const size = 64;

  function draw(from: number, to: number): Uint32Array {
    const tiles = new Uint32Array(size * size);
    const axis = spans(c.block_start, c.block_end, view(from, to), size);
    rasterise(tiles, none, { cols: c.tile_kv, index: byRow(c.tile_q, 30), across: axis, down: axis, width: size });
    return tiles;
  }

  test("every tile in view has a pixel, unless smaller ones share it", () => {
    for (const [from, to] of [[0, total], [100, 300], [7, 40]]) {
      const drawn = new Set(draw(from, to));
      const blocksOf = (tile: number) => [c.tile_q[tile], c.tile_kv[tile]];
      const pixels = (block: number) => ((Math.min(c.block_end[block], to) - Math.max(c.block_start[block], from)) * size) / (to - from);
      for (let tile = 0; tile < none; tile++) {
        if (!blocksOf(tile).every((block) => pixels(block) > 0)) assert.ok(!drawn.has(tile));
        else if (blocksOf(tile).every((block) => pixels(block) >= 2)) assert.ok(drawn.has(tile), `tile ${tile} in ${from} to ${to}`);
      }
      const [first, past] = spans(c.block_start, c.block_end, view(from, to), size);
      for (let block = 0; block < 30; block++) assert.equal(first[block] < past[block], pixels(block) > 0, `block ${block}`);
    }
  });

  test("a pixel shows the tile of its tokens, where that is wider than two pixels", () => {
    const tiles = draw(0, 120);
    const scale = size / 120;
    for (let tile = 0; tile < none; tile++) {
      const middle = [c.tile_q[tile], c.tile_kv[tile]].map((block) => ((c.block_start[block] + c.block_end[block]) / 2) * scale);
      const wide = [c.tile_q[tile], c.tile_kv[tile]].every((block) => (c.block_end[block] - c.block_start[block]) * scale > 2);
      if (wide && middle.every((place) => place < size)) assert.equal(tiles[Math.floor(middle[0]) * size + Math.floor(middle[1])], tile);
    }
  });

  test("only the tiles of the shown group of heads are there", () => {
    const groups = Int32Array.from(c.tile_q, (_, tile) => tile % 2);
    const { first, order } = byRow(c.tile_q, 30, groups, 1);
    assert.deepEqual([...order].sort((a, b) => a - b), [...groups.keys()].filter((tile) => tile % 2));
    for (let row = 0; row < 30; row++) assert.ok([...order.subarray(first[row], first[row + 1])].every((tile) => c.tile_q[tile] === row));
  });
});

suite("what a selection means in the mask", () => {
  const { columns: c } = randomMask(4);
  const tiles = [...c.tile_q.keys()];
  const meant = (sel: Selection): number[] => tiles.filter(belongs(sel, c) ?? (() => true));

  test("everything without one", () => assert.equal(belongs(undefined, c), null));

  test("a kind alone, and of what is selected; of empty tiles there is nothing to colour", () => {
    const mixed = { ...c, tile_kind: Int32Array.from(tiles, (tile) => 1 + (tile % 2)) };
    const shown = (kind: string | undefined, sel?: Selection): number[] => tiles.filter(isShown(sel, kind, mixed) ?? (() => true));
    assert.deepEqual(shown(undefined), tiles);
    assert.deepEqual(shown("full"), tiles.filter((tile) => tile % 2));
    assert.deepEqual(shown("partial", { type: "device", device: 2 }), tiles.filter((tile) => tile % 4 === 2));
    assert.deepEqual(shown("full", { type: "device", device: 2 }), []);
    assert.deepEqual(shown("empty"), []);
  });

  test("tiles of a device, of a division in its direction, of a sequence", () => {
    assert.deepEqual(meant({ type: "tile", tile: 5 }), [5]);
    assert.deepEqual(meant({ type: "device", device: 2 }), tiles.filter((tile) => tile % 4 === 2));
    assert.deepEqual(meant({ type: "division", division: 1, backward: 0 }), tiles.filter((tile) => tile % 3 === 1));
    assert.deepEqual(meant({ type: "division", division: 1, backward: 1, device: 0 }), tiles.filter((tile) => tile % 5 === 1 && tile % 4 === 0));
    assert.deepEqual(meant({ type: "sequence", sequence: 2 }), tiles.filter((tile) => c.tile_q[tile] >= 20));
  });

  test("what one device sends another: tiles of the other that need a block of the first", () => {
    const needs = (tile: number) => [c.tile_q[tile], c.tile_kv[tile]].some((block) => block % 4 === 1);
    assert.deepEqual(meant({ type: "device", device: 1, peer: 3 }), tiles.filter((tile) => tile % 4 === 3 && needs(tile)));
  });

  test("a message of keys serves the tiles of its target in that column", () => {
    assert.deepEqual(meant({ type: "transfer", kind: 0, device: 1, peer: 2, block: 7 }),
      tiles.filter((tile) => tile % 4 === 2 && c.tile_kv[tile] === 7));
  });
});

suite("sequences as a table", () => {
  const { columns: c } = randomMask(4);
  const borders = [0, c.block_end[9], c.block_end[19], c.block_end[29]];
  const names = ["row 12", "row 7: <script>", "row 9"];
  const rows = sequenceRows({ num_tokens: borders[3], num_devices: 4, cu_seqlens: borders, sequence_names: names, device_colours: [], modes: [] }, c);

  test("each has its tokens, pairs and devices", () => {
    assert.deepEqual(rows.map(({ tokens }) => tokens), [0, 1, 2].map((n) => borders[n + 1] - borders[n]));
    for (const { sequence, pairs, devices } of rows) {
      const own = Array.from(c.tile_q, (q, tile) => ({ q, tile })).filter(({ q }) => Math.floor(q / 10) === sequence);
      assert.deepEqual([pairs, devices], [9 * own.length, new Set(own.map(({ tile }) => tile % 4)).size]);
    }
  });

  test("any column sorts, names as people count", () => {
    assert.deepEqual(sorted(rows, "name").map(({ name }) => name), ["row 7: <script>", "row 9", "row 12"]);
    assert.deepEqual(sorted(rows, "-sequence").map(({ sequence }) => sequence), [2, 1, 0]);
    const pairs = sorted(rows, "-pairs").map((row) => row.pairs);
    assert.deepEqual(pairs, rows.map((row) => row.pairs).toSorted((a, b) => b - a));
  });
});

suite("names of the sequences at the edge", () => {
  const measure = (text: string) => 6 * text.length;
  const width = (text: string) => measure(text) / 2;

  test("words where there is room, a number where there is less", () => {
    assert.deepEqual(edgeLabels([0, 60, 80, 100], [], { ...view(0, 100), size: 100 }, measure).map(({ text, at }) => [text, at]),
      [["seq 0", 30], ["1", 70], ["2", 90]]);
  });

  test("the name of the row where there is room, its number where there is less", () => {
    const names = ["row 4: chat-9f3a", "row 7: <script>", "row 9"];
    const texts = (size: number) => edgeLabels([0, 60, 80, 100], names, { ...view(0, 100), size }, measure).map(({ text }) => text);
    assert.deepEqual(texts(1000), ["0 · row 4: chat-9f3a", "1 · row 7: <script>", "2 · row 9"]);
    assert.deepEqual(texts(290), ["0 · row 4: chat-9f3a", "seq 1", "seq 2"]);
  });

  test("none touches another or leaves the edge, and room for one is used", () => {
    const random = seeded(5);
    for (let round = 0; round < 50; round++) {
      const borders = [0];
      while (borders.length < 200) borders.push(borders[borders.length - 1] + 1 + Math.floor(random() ** 8 * 500));
      const from = Math.floor(random() * borders[100]);
      const labels = edgeLabels(borders, [], { ...view(from, borders[199]), size: 400 }, measure);
      assert.ok(labels.length >= 3, String(labels.length));
      labels.forEach(({ sequence, text, at }, n) => {
        const [middle] = [from + (at / 400) * (borders[199] - from)];
        assert.equal(sequenceAt(borders, middle), sequence);
        assert.ok(at + width(text) <= 400 && at - width(text) >= 0);
        if (n) assert.ok(at - width(text) > labels[n - 1].at + width(labels[n - 1].text));
      });
    }
  });

  test("a token lies in one sequence, past the last in none", () => {
    assert.deepEqual([0, 59, 60, 99, 100].map((token) => sequenceAt([0, 60, 100], token)), [0, 0, 1, 1, -2]);
  });
});

suite("single pairs", () => {
  test("that come after the window has grown too large for them are not shown", async (context) => {
    const host = { dataset: {} as DOMStringMap };
    const answers: (() => void)[] = [];
    Object.assign(window, { setTimeout: (action: () => void) => { action(); return 1; } });
    context.mock.method(globalThis, "fetch", (_url: string, { signal }: { signal: AbortSignal }) => new Promise((done, refuse) => {
      signal.addEventListener("abort", () => refuse(signal.reason as Error));
      answers.push(() => done(new Response("no payload", { status: 500 })));
    }));
    const pairs = new MaskPairs(host as HTMLElement, "/pairs", () => {});
    const [wide, near] = [new AxisRange(1e6, 16), new AxisRange(1e6, 16)];
    near.show([0, 100]);
    pairs.want(near, near, 1e6, 400);
    assert.equal(host.dataset.detail, "loading");
    pairs.want(wide, wide, 1e6, 400);
    answers.forEach((answer) => answer());
    await new Promise((done) => { setTimeout(done); });
    assert.equal(host.dataset.detail, "none");
  });
});
