// Bundles src/ with CodeMirror into one script of the package, byte for byte the same from the same
// sources: `make editor`. The first line of the result records the hash of all sources, which a test checks.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const assets = join(here, "..", "dcp_dashboard", "assets");
const sources = ["build.mjs", "package-lock.json", "package.json"]
  .concat(readdirSync(join(here, "src")).map((name) => `src/${name}`))
  .sort();

const hash = createHash("sha256");
for (const name of sources) hash.update(`${name}\n`).update(readFileSync(join(here, name)));

const result = await build({
  absWorkingDir: here,
  bundle: true,
  entryPoints: ["src/editor.js"],
  banner: { js: `/* dcpm-editor, sources sha256:${hash.digest("hex")}; licences: codemirror.licences.txt */` },
  format: "esm",
  legalComments: "none",
  metafile: true,
  minify: true,
  outfile: join(assets, "codemirror.bundle.js"),
  target: "es2022",
});

const packages = new Set();
for (const name of Object.keys(result.metafile.inputs)) {
  const found = name.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) packages.add(found[1]);
}
const licences = [...packages].sort().map((name) => {
  const { version, license } = JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8"));
  const text = readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8").trim();
  return `${name} ${version} (${license})\n\n${text}\n`;
});
writeFileSync(join(assets, "codemirror.licences.txt"), licences.join(`\n${"-".repeat(80)}\n\n`));
