"""An editor, as the language server sees one: it speaks the protocol, message by message."""

import json
import os
import queue
import subprocess
import sys
import threading


class Editor:
    """A client that speaks the protocol, message by message."""

    def __init__(self, root, code="", capabilities=None, **initialize):
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{code}from dcp_dsl.cli import main; main()", "lsp"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        self.received = queue.Queue()
        self.number = 0
        self.notes, self.progress = [], []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.abilities = self.ask("initialize", {
            "processId": os.getpid(), "rootUri": root.as_uri(),
            "capabilities": capabilities or {}, **initialize,
        })["capabilities"]  # fmt: skip
        self.tell("initialized", {})

    def read(self):
        stream = self.process.stdout
        while True:
            size = None
            while line := stream.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            if size is None:
                return
            message = json.loads(stream.read(size))
            if "method" in message and "id" in message:
                self.send({"id": message["id"], "result": None})
            else:
                self.received.put(message)

    def send(self, message):
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self.process.stdin.flush()

    def tell(self, method, params):
        self.send({"method": method, "params": params})

    def ask(self, method, params, error=None):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while True:
            message = self.received.get(timeout=250)
            if message.get("id") == self.number:
                assert ("error" in message) == (error is not None), message
                assert error is None or error in message["error"]["message"]
                return message.get("result")
            self.notes.append(message)

    def diagnostics(self, uri, version=None):
        """Wait for the next diagnostics of a version of a document; of none once it is closed."""
        while True:
            message = self.notes.pop(0) if self.notes else self.received.get(timeout=250)
            if message.get("method") == "$/progress":
                self.progress.append(message["params"]["value"])
            if (message.get("method") == "textDocument/publishDiagnostics"
                    and message["params"]["uri"] == uri
                    and message["params"].get("version") == version):  # fmt: skip
                return message["params"]["diagnostics"]

    def open(self, uri, text):
        document = {"uri": uri, "languageId": "dcpm", "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": document})
        return self.diagnostics(uri, 1)

    def put(self, uri, version, text):
        """Replace the whole text."""
        document = {"uri": uri, "version": version}
        changes = {"textDocument": document, "contentChanges": [{"text": text}]}
        self.tell("textDocument/didChange", changes)

    def at(self, method, uri, text, word, error=None, **more):
        """Ask about the first place of a word; `|` in it is the place itself."""
        offset = text.index(word.replace("|", "")) + max(0, word.find("|"))
        line = text.count("\n", 0, offset)
        column = len(text[:offset].split("\n")[-1].encode("utf-16-le")) // 2
        place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": column}}
        return self.ask(f"textDocument/{method}", {**place, **more}, error)

    def close(self):
        self.ask("shutdown", None)
        self.tell("exit", None)
        status = self.process.wait(timeout=300)
        self.reader.join(timeout=300)
        self.process.stdin.close()
        self.process.stdout.close()
        assert status == 0
