// Starts `dcpm lsp` and lets VS Code talk to it; everything else is done by the server.
"use strict";

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");
const { OPTIONS, server } = require("./server");

let client;

async function activate() {
  const command = vscode.workspace.getConfiguration("dcpm").get("command");
  client = new LanguageClient("dcpm", "dcpm masks", server(command), OPTIONS);
  try {
    await client.start();
  } catch (error) {
    vscode.window.showErrorMessage(
      `dcpm: cannot start \`${command.join(" ")}\`: ${error.message}. ` +
        "Install it with `pip install dcp-dsl` or set dcpm.command.",
    );
  }
}

function deactivate() {
  return client ? client.stop() : undefined;
}

module.exports = { activate, deactivate };
