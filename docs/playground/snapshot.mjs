// Writes what Python's memory holds once it has loaded the language: a page that starts from that
// shows its first picture after a fifth of the work. node snapshot.mjs PYODIDE ARCHIVE OUT
import { readFileSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const [pyodide, archive, out] = process.argv.slice(2);
const { loadPyodide } = await import(`${pyodide}/pyodide.mjs`);
const python = await loadPyodide({ _makeSnapshot: true });
python.unpackArchive(new Uint8Array(readFileSync(archive)), "zip");
python.runPython('import answer; answer.answer("mask first = causal")');
writeFileSync(out, gzipSync(python.makeMemorySnapshot()));
