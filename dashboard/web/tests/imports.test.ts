// The files of src form layers: a file imports only from its own layer and from those below, and never in a circle.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { suite, test } from "node:test";
import ts from "typescript";

const SRC = join(dirname(fileURLToPath(import.meta.url)), "..", "src");
/** From the lowest to the highest, each a set of folders, or of files of src itself, that know nothing of each other. */
const LAYERS = [["kit"], ["api.ts", "state.ts"], ["page"], ["mask", "timeline"], ["devices"], ["edit", "mount.ts"], ["main.ts"]];

/** The files of src that each of them imports, types included; the editor's bundle lies outside. */
function importsOf(): Map<string, string[]> {
  const files = readdirSync(SRC, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".ts"));
  return new Map(files.map((file) => {
    const { importedFiles } = ts.preProcessFile(readFileSync(join(SRC, file), "utf8"));
    const targets = importedFiles.map(({ fileName }) => relative(SRC, join(SRC, dirname(file), fileName)));
    return [file, targets.filter((target) => !target.startsWith(".."))];
  }));
}

/** The first circle found from each file, as "a -> b -> a"; every circle contains a file at which it is found. */
function circles(imports: ReadonlyMap<string, readonly string[]>): string[] {
  const found: string[] = [];
  const done = new Set<string>();
  const visit = (file: string, trail: readonly string[]): void => {
    const at = trail.indexOf(file);
    if (at >= 0) found.push([...trail.slice(at), file].join(" -> "));
    if (at >= 0 || done.has(file)) return;
    for (const target of imports.get(file) ?? []) visit(target, [...trail, file]);
    done.add(file);
  };
  for (const file of imports.keys()) visit(file, []);
  return found;
}

suite("imports", () => {
  const imports = importsOf();

  test("form no circle", () => {
    assert.deepEqual(circles(new Map([["a", ["b"]], ["b", ["c", "d"]], ["c", []], ["d", ["b"]]])), ["b -> d -> b"]);
    assert.deepEqual(circles(imports), []);
  });

  test("go to a lower layer or stay in a folder", () => {
    const layerOf = (part: string) => LAYERS.findIndex((names) => names.includes(part));
    const partOf = (file: string) => file.split("/")[0];
    const wrong = [...imports].flatMap(([file, targets]) => targets
      .filter((target) => partOf(target) !== partOf(file) && layerOf(partOf(target)) >= layerOf(partOf(file)))
      .map((target) => `${file} imports ${target}`));
    assert.ok(imports.size > 50);
    assert.deepEqual([...imports.keys()].filter((file) => layerOf(partOf(file)) < 0), []);
    assert.deepEqual(wrong, []);
  });
});
