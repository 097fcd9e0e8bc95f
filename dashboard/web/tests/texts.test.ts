// Texts that people read and write: numbers, names, addresses, notes, gains, places in a text; answers of a server.
import assert from "node:assert/strict";
import { suite, test } from "node:test";
import "./browser.ts";
import * as format from "../src/kit/format.ts";
import { decode, type Payload, loadJson } from "../src/api.ts";
import { pack, unpack } from "../src/edit/address.ts";
import { latest } from "../src/edit/dom.ts";
import { charactersOf, compatibleEdits, type Finding, quoted, unitsOf } from "../src/edit/findings.ts";
import { rangesOf } from "../src/edit/picture.ts";
import { isAbort } from "../src/kit/dom.ts";
import { escape, SvgPen } from "../src/kit/svg_pen.ts";
import { selectionOf } from "../src/page/finder.ts";
import { gainOfStep, shareOf, spread } from "../src/page/gain.ts";
import { addressOf } from "../src/page/inspector.ts";
import { comparisonOf } from "../src/page/pickers.ts";
import { withSearch } from "../src/page/search.ts";
import { readQuery, writeQuery } from "../src/state.ts";
import { MOST_LETTERS, MOST_NOTES, type Note, readNotes, writeNotes } from "../src/timeline/notes.ts";

suite("numbers", () => {
  test("have three digits and a unit, and no line ends inside", () => {
    assert.deepEqual([1.9e6, 12.34e9, 42, 0, 999.6].map(format.duration), ["1.9\u00a0ms", "12.3\u00a0s", "42\u00a0ns", "0\u00a0ns", "1000\u00a0ns"]);
    assert.deepEqual([0, 1000, 1536, 2.5e9].map(format.size), ["0\u00a0B", "1\u00a0kB", "1.54\u00a0kB", "2.5\u00a0GB"]);
    assert.deepEqual([131072, 4_294_967_296].map(format.amount), ["131,072", "4.29\u00a0G"]);
    assert.deepEqual([1.0849, 30.549, 119_506.79].map(format.ratio), ["1.08", "30.5", "119,507"]);
  });
});

suite("names and addresses", () => {
  test("a name selects", () => {
    assert.deepEqual(selectionOf("seq 17"), { type: "sequence", sequence: 17 });
    assert.deepEqual(selectionOf(" GPU 3 "), { type: "device", device: 3 });
    assert.deepEqual(selectionOf("division 2 backward"), { type: "division", division: 2, backward: 1 });
    for (const text of ["", "seq", "wall 3", "device 3 backward", "tile -1"]) assert.equal(selectionOf(text), null, text);
  });

  test("facts about every type of thing have an address", () => {
    const of = (sel: Parameters<typeof addressOf>[1]) => addressOf("k", sel)?.replace("/api/plan/k/", "");
    assert.deepEqual([
      of({ type: "tile", tile: 3 }), of({ type: "device", device: 0 }), of({ type: "device", device: 0, peer: 2 }),
      of({ type: "division", division: 1, backward: 1, device: 4 }), of({ type: "transfer", device: 1, peer: 2 }), of({ type: "transfer", transfer: 9 }),
      of({ type: "event", event: 5, source: "measured" }), of({ type: "sequence", sequence: 6 }), of(undefined),
    ], ["tile/3", "device/0", "device/0/2", "division/backward/1?device=4", "device/1/2", "transfer/9", "event/measured/5", "sequence/6", undefined]);
  });

  test("a comparison names both sides, a search starts at the first page", () => {
    assert.equal(comparisonOf("a1~simulated", null), "/compare?a=a1&as=simulated");
    assert.equal(comparisonOf("a1~simulated", "b2~measured"), "/compare?a=a1&as=simulated&b=b2&bs=measured");
    assert.equal(withSearch("?sort=name&page=3&q=old", "new one"), "?sort=name&q=new+one");
    assert.equal(withSearch("?q=old", "  "), "");
  });
});

suite("a text and its address", () => {
  test("comes back as it was, and a damaged one is none", async () => {
    for (const text of ["mask a = causal\n", "", "π 🙂 \"x\"", "y".repeat(100_000)]) assert.equal(await unpack(await pack(text)), text);
    for (const damaged of ["%%%", "AAAA", (await pack("mask a = causal")).slice(0, -4)]) assert.equal(await unpack(damaged), null);
  });

  test("characters and UTF-16 units are told apart", () => {
    const text = "a🙂b";
    assert.deepEqual([0, 1, 2, 3, 9].map(unitsOf(text)), [0, 1, 3, 4, 4]);
    assert.deepEqual([0, 1, 3, 4].map((unit) => charactersOf(text, unit)), [0, 1, 2, 3]);
    assert.deepEqual([0, 2].map(unitsOf("abc")), [0, 2]);
  });

  test("of changes that touch, the earlier one wins", () => {
    const finding = (from: number, to: number) => ({ edits: [{ from, to, insert: "x" }] }) as unknown as Finding;
    const none = { edits: [] } as unknown as Finding;
    assert.deepEqual(compatibleEdits([finding(8, 9), finding(3, 5), none, finding(5, 6), finding(0, 3)]).map(({ from }) => from), [0, 5, 8]);
  });

  test("code is quoted, places are ranges", () => {
    assert.equal(quoted("write `k <= q` instead"), "write \u2018k <= q\u2019 instead");
    assert.equal(rangesOf([1, 1, 0, 1, 0, 0, 1, 1]), "0-1, 3, 6-7");
    assert.equal(rangesOf([0, 0]), "");
  });

  test("of many calls only the latest is worked on", async () => {
    let done = 0;
    let release: () => void = () => {};
    const work = latest(() => { done += 1; return new Promise<void>((resolve) => { release = resolve; }); });
    void work();
    void work();
    void work();
    assert.equal(done, 1);
    release();
    await new Promise((later) => { setImmediate(later); });
    assert.equal(done, 2);
    release();
    await new Promise((later) => { setImmediate(later); });
    assert.equal(done, 2);
  });
});

suite("columns", () => {
  test("are views into the answer, and another answer is refused", () => {
    const head = new TextEncoder().encode(JSON.stringify({ tokens: 5, columns: [{ name: "a", dtype: "u2", length: 3, offset: 0 }] }).padEnd(80));
    const buffer = new ArrayBuffer(8 + head.length + 6);
    new Uint8Array(buffer).set(new TextEncoder().encode("DCPC"));
    new DataView(buffer).setUint32(4, head.length, true);
    new Uint8Array(buffer).set(head, 8);
    new Uint16Array(buffer, 8 + head.length).set([1, 2, 65535]);
    const { header, columns } = decode<Payload<{ tokens: number }, "a">>(buffer);
    assert.deepEqual([header.tokens, [...columns.a], columns.a.buffer === buffer], [5, [1, 2, 65535], true]);
    assert.throws(() => decode(new ArrayBuffer(16)), /expected a DCPC payload/);
  });
});

suite("questions to a server", () => {
  const failing = (error: Error) => () => Promise.reject(error);

  test("that has ended say so, and what to do", async (context) => {
    context.mock.method(globalThis, "fetch", failing(new TypeError("Failed to fetch")));
    await assert.rejects(loadJson("/api/changes"), /the server does not answer; start `dcpm dashboard` again and reload/);
  });

  test("that nobody waits for any more stay aborts", async (context) => {
    context.mock.method(globalThis, "fetch", failing(new DOMException("", "AbortError")));
    await assert.rejects(loadJson("/api/changes"), isAbort);
  });
});

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

const NOTES: readonly Note[] = [
  { time: 1200, device: 3, text: "late, 2 % & more; <b>=?#\u00e9" }, { device: 5, text: "busy" }, { time: 0, text: "~begins~" },
];

suite("notes", () => {
  test("come back from the address as they were", () => {
    const query = writeQuery({ notes: writeNotes(NOTES) ?? "" });
    assert.ok(!/[<\n ]/.test(query));
    assert.deepEqual(readNotes(readQuery(query).notes), NOTES);
  });

  test("are few and short, however long the address", () => {
    const long = { device: 1, text: "x".repeat(1000) };
    const read = readNotes(writeNotes(Array.from({ length: 50 }, () => long)) ?? "");
    assert.equal(read.length, MOST_NOTES);
    assert.ok(read.every(({ text }) => text.length === MOST_LETTERS));
    const notes = readQuery(`?notes=${encodeURIComponent("1,1,xyz\n".repeat(10_000))}`).notes ?? "";
    assert.ok(notes.length <= 1500);
  });

  test("without text or place are left out; a line break is a space", () => {
    assert.deepEqual(readNotes("1,2,\n,,nowhere\n-1,x,neither\nabc\n1e9,,no number"), []);
    assert.equal(writeNotes([{ device: 1, text: " two\nlines " }]), ",1,two lines");
    assert.equal(writeNotes([]), null);
  });
});

const RULER = { font: "11px sans-serif", measureText: (text: string) => ({ width: text.length }) } as unknown as CanvasRenderingContext2D;

suite("a pen of SVG", () => {
  test("draws what a canvas would: boxes of any sign, paths, clips that end with what they hold", () => {
    const pen = new SvgPen(RULER);
    pen.fillStyle = "#123456";
    pen.fillRect(10, 20, -4, 5);
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, 8, 9);
    pen.clip();
    pen.globalAlpha = 0.5;
    pen.beginPath();
    pen.moveTo(1, 2);
    pen.lineTo(3, 4.123);
    pen.stroke();
    pen.restore();
    pen.fillText("a < b & \"c\"", 1, 2);
    assert.deepEqual(pen.parts, [
      '<rect x="6" y="20" width="4" height="5" fill="#123456"/>',
      '<clipPath id="clip0"><path d="M0 0h8v9h-8Z"/></clipPath><g clip-path="url(#clip0)">',
      '<path d="M1 2L3 4.12" fill="none" stroke="#000000" stroke-width="1" stroke-linejoin="miter" opacity="0.5"/>',
      "</g>",
      '<text x="1" y="2" text-anchor="start" dominant-baseline="auto" style="font: 11px sans-serif" fill="#123456">a &lt; b &amp; &quot;c&quot;</text>',
    ]);
    assert.equal(pen.measureText("four").width, 4);
  });

  test("writes no character that XML forbids", () => assert.equal(escape("a\u0000\u000b<\u00e9"), "a&lt;\u00e9"));
});
