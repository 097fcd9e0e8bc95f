// How the server is started and what it is told; without the editor, so that node can test it.
"use strict";

const OPTIONS = {
  documentSelector: [{ language: "dcpm" }],
  initializationOptions: { pictures: "svg" },
};

function server([command, ...args]) {
  return { command, args };
}

module.exports = { OPTIONS, server };
