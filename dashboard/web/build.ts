// Bundles the scripts of the pages and, apart from them, the text editor with CodeMirror, byte for byte the same from
// the same sources. `node build.ts` writes them into the package; with --check it says which differ instead.
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, type Format } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const assets = join(here, "..", "dcp_dashboard", "assets");
const BUNDLES: readonly { entry: string; format: Format; out: string; banner: string }[] = [
  { entry: "src/main.ts", format: "iife", out: "dashboard.bundle.js", banner: "/* The dashboard's scripts, made from dashboard/web */" },
  { entry: "editor/editor.ts", format: "esm", out: "codemirror.bundle.js", banner: "/* The editor of /edit; licences: codemirror.licences.txt */" },
];

/** The files of the package, by name. */
const made = new Map<string, string>();
for (const { entry, format, out, banner } of BUNDLES) {
  const { outputFiles, metafile } = await build({
    absWorkingDir: here, bundle: true, entryPoints: [entry], banner: { js: banner }, format, legalComments: "none",
    metafile: true, minify: true, target: "es2023", write: false,
  });
  made.set(out, outputFiles[0].text);
  const packages = new Set(Object.keys(metafile.inputs).flatMap((name) => name.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1] ?? []));
  if (packages.size) made.set(out.replace("bundle.js", "licences.txt"), licences([...packages].sort()));
}

function licences(packages: readonly string[]): string {
  return packages.map((name) => {
    const { version, license } = JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8")) as { version: string; license: string };
    const text = readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8").trim();
    return `${name} ${version} (${license})\n\n${text}\n`;
  }).join(`\n${"-".repeat(80)}\n\n`);
}

const isCheck = process.argv.includes("--check");
for (const [name, text] of made) {
  if (!isCheck) writeFileSync(join(assets, name), text);
  else if (readFileSync(join(assets, name), "utf8") !== text) {
    console.error(`dashboard/dcp_dashboard/assets/${name} is not what dashboard/web makes: run \`make web\` and commit it`);
    process.exitCode = 1;
  }
}
