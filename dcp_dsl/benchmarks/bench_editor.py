"""Measure how long the language server takes to answer edits of a text of 500 lines.

Two servers of the language protocol are driven over standard input and output: the one of this
checkout and, as the baseline, that of another one. Each key changes a mask in the middle of
the text; the client asks for hover and completion at once and waits for both and for the
diagnostics. Then keys come faster than checks end, and a hover waits behind them.

```
cd dcp_dsl/benchmarks
python bench_editor.py --baseline ../../../older_checkout --json results/editor.json
python bench_editor.py --table results/editor.json
```
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient
from recording import commit, machine, write

from dcp_dsl.syntax.tokens import scan

ROOT = Path(__file__).resolve().parents[2]
FIFTY = Path(__file__).parent / "data" / "fifty.dcpm"
ROOMS = ("grammar", "dcp_dsl", "planner", "runtime", "dashboard")
COPIES = 10
URI = "file:///nowhere/five_hundred.dcpm"
TYPED = " and q - k < 512"
PAUSE_S = 0.12  # between the keys of a person who types fast
WHAT = {
    "diagnostics": "a key until the diagnostics of syntax, names and kinds",
    "hover": "a key until the hover asked for with it",
    "completion": "a key until the completion asked for with it",
    "proofs": "a key until everything is proved and tested again",
    "burst": "keys every 120 ms: the last one until a hover",
    "cpu": "CPU of the server for a key, everything together",
}


def long_text(copies: int = COPIES) -> str:
    """Return so many copies of the text of fifty lines, each with names of its own."""
    text = (
        FIFTY.read_text(encoding="utf-8")
        .replace("dcpm 1\n", "")
        .replace('for "*" use gemma3\n', "")
    )
    tokens = [token for token in scan(text) if token.kind == "name"]
    heads = ("segment", "mask", "stack", "sample", "token")
    names = {b.text for a, b in pairwise(tokens) if a.text in heads}
    names |= {name for line in text.split("\n") if line.startswith("segment")
              for name in re.findall(r"(\w+)[\[(]", line)}  # fmt: skip
    parts = []
    for copy in range(copies):
        pieces, at = [], 0
        for token in tokens:
            if token.text in names:
                pieces += [text[at : token.span.end], f"_{copy}"]
                at = token.span.end
        parts.append(
            f"\n# Part {copy} of {copies}.\n"
            + "".join([*pieces, text[at:]]).replace('for "', f'for "part_{copy}/')
        )
    return "dcpm 1\n" + "".join(parts)


class Session:
    """An editor with one document."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self.client = LanguageClient("bench", "1")
        self.published: asyncio.Queue[tuple[float, int | None]] = asyncio.Queue()
        self.version = 1
        self.unanswered = 0
        self.text = long_text()
        middle = self.text.index("mask kept_5")
        self.line = self.text.count("\n", 0, middle)
        self.column = len(self.text[middle:].split("\n", 1)[0])

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: lsp.PublishDiagnosticsParams) -> None:
            self.published.put_nowait((time.perf_counter(), params.version))

    async def start(self) -> None:
        """Start the server, open the document, and wait until all is checked."""
        path = os.pathsep.join(str(self.checkout / room) for room in ROOMS)
        await self.client.start_io(
            sys.executable, "-c", "from dcp_dsl.cli import main; main()", "lsp",
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        await self.client.initialize_async(lsp.InitializeParams(lsp.ClientCapabilities()))
        self.client.initialized(lsp.InitializedParams())
        document = lsp.TextDocumentItem(URI, "dcpm", 1, self.text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))
        await self.quiet()
        for ask in (self.hover, self.completion):
            await ask()

    async def quiet(self) -> float:
        """Wait until no diagnostics come for two seconds; return when the last came."""
        last, _ = await asyncio.wait_for(self.published.get(), 120)
        while True:
            try:
                last, _ = await asyncio.wait_for(self.published.get(), 2)
            except TimeoutError:
                return last

    def type(self, letter: str) -> None:
        """Insert a letter, or remove the last one."""
        start = lsp.Position(self.line, self.column)
        if letter:
            place, self.column = lsp.Range(start, start), self.column + 1
        else:
            self.column -= 1
            place = lsp.Range(lsp.Position(self.line, self.column), start)
        self.version += 1
        change = lsp.TextDocumentContentChangePartial(text=letter, range=place)
        document = lsp.VersionedTextDocumentIdentifier(version=self.version, uri=URI)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [change]))

    async def hover(self) -> float:
        """Ask about the mask that is being written; return when the answer came."""
        place = lsp.Position(self.line, len("mask k"))
        asked = lsp.HoverParams(lsp.TextDocumentIdentifier(URI), place)
        try:
            said = await self.client.text_document_hover_async(asked)
        except JsonRpcException:  # an older server fails on masks that are not finished
            said = None
        self.unanswered += said is None
        return time.perf_counter()

    async def completion(self) -> float:
        """Ask what may follow; return when the answer came."""
        place = lsp.Position(self.line, self.column)
        asked = lsp.CompletionParams(lsp.TextDocumentIdentifier(URI), place)
        assert await self.client.text_document_completion_async(asked)
        return time.perf_counter()

    def cpu(self) -> float:
        """Return the CPU seconds of the server so far."""
        server: Any = self.client  # Any: pygls keeps the process to itself
        fields = Path(f"/proc/{server._server.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def measure(self) -> dict[str, list[float]]:
        """Type, and return all waits in milliseconds."""
        found: dict[str, list[float]] = {name: [] for name in WHAT}
        for letter in [*TYPED, *[""] * len(TYPED)]:
            cpu, started = self.cpu(), time.perf_counter()
            self.type(letter)
            hover, completion, (first, _) = await asyncio.gather(
                self.hover(), self.completion(), self.published.get()
            )
            last = first
            try:
                while True:
                    last, _ = await asyncio.wait_for(self.published.get(), 1.0)
            except TimeoutError:
                found["cpu"].append((self.cpu() - cpu) * 1e3)
            ends = {"diagnostics": first, "hover": hover, "completion": completion, "proofs": last}
            for name, end in ends.items():
                found[name].append((end - started) * 1e3)
        for _ in range(3):
            for letter in [*TYPED, *[""] * (len(TYPED) - 1)]:
                self.type(letter)
                await asyncio.sleep(PAUSE_S)
            started = time.perf_counter()
            self.type("")
            found["burst"].append((await self.hover() - started) * 1e3)
            await self.quiet()
        return found

    async def stop(self) -> None:
        """End the server."""
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()


async def run(checkouts: dict[str, Path]) -> list[dict[str, Any]]:
    """Measure each server; Any: texts and numbers."""
    measured, unanswered = {}, {}
    for name, checkout in checkouts.items():
        session = Session(checkout)
        await session.start()
        measured[name] = await session.measure()
        await session.stop()
        unanswered[name] = session.unanswered
    return [
        {"what": what, "key": key, "server": name, "keys": len(times[key]),
         "hovers_unanswered": unanswered[name],
         **dict(zip(("median_ms", "p90_ms", "max_ms"),
                    (float(x) for x in np.percentile(times[key], [50, 90, 100])), strict=True))}
        for key, what in WHAT.items() for name, times in measured.items()
    ]  # fmt: skip


def table(document: dict[str, Any]) -> str:
    """Return the Markdown table of a document; Any: JSON."""
    rows = {(row["key"], row["server"]): row for row in document["rows"]}
    names = list(document["commits"])
    lines = [
        "| " + " | ".join(["wait", *(f"{name}: median, slowest" for name in names)]) + " |",
        "|---|" + "--:|" * len(names),
    ]
    for key, what in WHAT.items():
        cells = [rows[key, name] for name in names]
        shown = [f"{row['median_ms']:.0f}, {row['max_ms']:.0f} ms" for row in cells]
        lines.append("| " + " | ".join([what, *shown]) + " |")
    where = document["machine"]
    commits = ", ".join(f"{name} {at}" for name, at in document["commits"].items())
    lines += ["", f"{document['lines']} lines; {where['processor']}, Python {where['python']}; "
              f"commits: {commits}."]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measure, or print the table of earlier results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="OUT", help="write the document there")
    parser.add_argument("--table", metavar="JSON", help="print the table of a document")
    parser.add_argument("--baseline", metavar="CHECKOUT", help="another checkout to compare with")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(Path(options.table).read_text(encoding="utf-8"))))
        return
    checkouts = {"before": Path(options.baseline)} if options.baseline else {}
    checkouts["now"] = ROOT
    document = {
        "schema": "dcp.bench_editor/2", "lines": long_text().count("\n"),
        "machine": machine("pygls"),
        "commits": {name: commit(checkout) for name, checkout in checkouts.items()},
        "rows": asyncio.run(run(checkouts)),
    }  # fmt: skip
    if options.json:
        write(Path(options.json), document)
    print(table(document))


if __name__ == "__main__":
    main()
