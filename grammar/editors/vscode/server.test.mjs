// Speaks to the real server as the extension has it started: DCPM='["dcpm", "lsp"]' node --test
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const require = createRequire(import.meta.url);
const rpc = require("vscode-jsonrpc/node");
const { OPTIONS, server } = require("./server.js");
const { configuration } = require("./package.json").contributes;
const URI = "file:///shown.dcpm";

test("the server finds errors, draws pictures and formats", async () => {
  const given = process.env.DCPM ?? JSON.stringify(configuration.properties["dcpm.command"].default);
  const { command, args } = server(JSON.parse(given));
  const child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
  const connection = rpc.createMessageConnection(child.stdout, child.stdin);
  const found = new Map();
  let tell;
  connection.onNotification("textDocument/publishDiagnostics", ({ version, diagnostics }) => {
    found.set(version, diagnostics);
    tell?.();
  });
  connection.onRequest("window/workDoneProgress/create", () => null);
  connection.listen();
  const diagnostics = async (version) => {
    while (!found.has(version)) await new Promise((resolve) => { tell = resolve; });
    return found.get(version);
  };

  await connection.sendRequest("initialize", {
    processId: process.pid, rootUri: null, capabilities: {},
    initializationOptions: OPTIONS.initializationOptions,
  });
  await connection.sendNotification("initialized", {});
  const open = { uri: URI, languageId: "dcpm", version: 1, text: "mask near = casual and q - k < 4\n" };
  await connection.sendNotification("textDocument/didOpen", { textDocument: open });
  const [first] = await diagnostics(1);
  assert.match(first.message, /unknown name `casual`/);

  const text = "mask   near = causal and q - k < 4\n";
  await connection.sendNotification("textDocument/didChange", {
    textDocument: { uri: URI, version: 2 }, contentChanges: [{ text }],
  });
  assert.deepEqual(await diagnostics(2), []);
  const at = { textDocument: { uri: URI }, position: { line: 0, character: 8 } };
  const hover = await connection.sendRequest("textDocument/hover", at);
  assert.match(hover.contents.value, /!\[[^\]]*\]\(data:image\/svg\+xml/);
  const [edit] = await connection.sendRequest("textDocument/formatting", {
    textDocument: { uri: URI }, options: { tabSize: 2, insertSpaces: true },
  });
  assert.match(edit.newText, /^mask near = /);
  await connection.sendRequest("shutdown");
  await connection.sendNotification("exit");
  const code = await new Promise((resolve) => child.on("exit", resolve));
  assert.equal(code, 0);
});

test("the bundle asks for the editor and for nothing else that node lacks", () => {
  const bundle = readFileSync(new URL("dist/extension.js", import.meta.url), "utf-8");
  const asked = new Set([...bundle.matchAll(/require\("([^"]+)"\)/g)].map((found) => found[1]));
  const { builtinModules } = require("node:module");
  const known = new Set(["vscode", ...builtinModules]);
  assert.deepEqual([...asked].filter((name) => !known.has(name.replace("node:", ""))), []);
  assert.ok(asked.has("vscode"));
});
