import assert from "node:assert/strict";
import { suite, test } from "node:test";
import "./browser.ts";
import { readQuery, writeQuery } from "../src/state.ts";
import { MOST_LETTERS, MOST_NOTES, type Note, readNotes, writeNotes } from "../src/timeline/notes.ts";

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
