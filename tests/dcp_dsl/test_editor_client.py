"""The language server under pygls's client, over standard input and output."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("pygls", exc_type=ImportError)

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

URI = "file:///nowhere/typed.dcpm"
TEXT = """segment part = question[question_len] answer[answer_lens]*
mask near(w: tokens = 4) = causal and q - k < w
mask shared = near(8) and (k in question or same(answer))
sample tiny(question_len = 3, answer_lens = [4, 2])
check shared total on tiny
"""
START = """
import sys
import dcp_dsl.language_server.server as server
server.PROGRESS_AFTER_S = server.SLICE_S = 0
from dcp_dsl.cli import main
main()
"""


class Typist:
    """A client with one document."""

    def __init__(self):
        self.client = LanguageClient("typist", "1")
        self.published, self.progress, self.version = asyncio.Queue(), [], 1

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params):
            self.published.put_nowait(params)

        @self.client.feature(lsp.WINDOW_WORK_DONE_PROGRESS_CREATE)
        def created(params):
            return None

        @self.client.feature(lsp.PROGRESS)
        def progressed(params):
            self.progress.append(params.value)

    async def start(self):
        await self.client.start_io(
            sys.executable, "-c", START, "lsp",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        window = lsp.WindowClientCapabilities(work_done_progress=True)
        said = await self.client.initialize_async(
            lsp.InitializeParams(lsp.ClientCapabilities(window=window))
        )
        self.client.initialized(lsp.InitializedParams())
        self.client.text_document_did_open(
            lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(URI, "dcpm", 1, TEXT))
        )
        return said.capabilities

    def put(self, text):
        """Replace the whole text."""
        self.version += 1
        self.client.text_document_did_change(
            lsp.DidChangeTextDocumentParams(
                lsp.VersionedTextDocumentIdentifier(version=self.version, uri=URI),
                [lsp.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def codes(self, wanted):
        """Wait until the present version has these findings."""
        while True:
            params = await asyncio.wait_for(self.published.get(), 100)
            found = [d.code for d in params.diagnostics]
            if params.version == self.version and found == wanted:
                return

    async def at(self, ask, kind, word, **more):
        before = TEXT[: TEXT.index(word)]
        place = lsp.Position(before.count("\n"), len(before.split("\n")[-1]) + 1)
        document = lsp.TextDocumentIdentifier(URI)
        return await ask(kind(text_document=document, position=place, **more))

    async def stop(self):
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()


async def session():
    typist = Typist()
    abilities = await typist.start()
    client = typist.client
    for ability in ("references", "rename", "signature_help", "semantic_tokens"):
        assert getattr(abilities, f"{ability}_provider"), ability
    await typist.codes([])

    # ---- names ----
    found = await typist.at(
        client.text_document_references_async, lsp.ReferenceParams, "near(8",
        context=lsp.ReferenceContext(include_declaration=False),
    )  # fmt: skip
    assert [(f.range.start.line, f.range.start.character) for f in found] == [(2, 14)]
    edit = await typist.at(
        client.text_document_rename_async, lsp.RenameParams, "near(w", new_name="close"
    )
    assert [(e.range.start.line, e.new_text) for e in edit.changes[URI]] == [
        (1, "close"), (2, "close"),
    ]  # fmt: skip
    with pytest.raises(JsonRpcException, match="already means something"):
        await typist.at(
            client.text_document_rename_async, lsp.RenameParams, "near(w", new_name="shared"
        )
    place = await typist.at(
        client.text_document_prepare_rename_async, lsp.PrepareRenameParams, "near(w"
    )
    assert (place.start.character, place.end.character) == (5, 9)
    said = await typist.at(
        client.text_document_signature_help_async, lsp.SignatureHelpParams, "8) and"
    )
    assert said.signatures[0].label == "near(w: tokens = 4)"

    # ---- colours ----
    asked = lsp.SemanticTokensParams(lsp.TextDocumentIdentifier(URI))
    data = (await client.text_document_semantic_tokens_full_async(asked)).data
    legend = abilities.semantic_tokens_provider.legend
    lines, line, column, shown = TEXT.split("\n"), 0, 0, []
    for row, at, width, kind, bits in zip(*[iter(data)] * 5, strict=True):
        line, column = line + row, at if row else column + at
        shown.append((lines[line][column : column + width], legend.token_types[kind], bits))
    assert shown[:4] == [
        ("part", "class", 1), ("question", "class", 1), ("question_len", "property", 0),
        ("answer", "class", 1),
    ]  # fmt: skip
    assert ("causal", "function", 2) in shown
    assert ("w", "parameter", 1) in shown
    assert ("tiny", "enumMember", 0) in shown

    # ---- typing ----
    typist.put(TEXT.replace("mask shared = near(8) and", "mask shared = near(8) and ("))
    await typist.codes(["E006"])
    hover = await typist.at(client.text_document_hover_async, lsp.HoverParams, "shared")
    assert "│" in hover.contents.value, "drawn as before the error"
    typist.put(TEXT.replace("causal and q - k < w", "q - k < w"))
    await typist.codes(["E120", "E120"])
    typist.put(TEXT)
    await typist.codes([])
    kinds = {value["kind"] for value in typist.progress}
    assert kinds == {"begin", "report", "end"}
    shares = [value["percentage"] for value in typist.progress if value["kind"] != "end"]
    assert all(0 < share <= 100 for share in shares)
    await typist.stop()


def test_an_editor_renames_finds_colours_and_types_on():
    with ThreadPoolExecutor(1) as thread:  # this one may run the loop of a browser's tests
        thread.submit(asyncio.run, session()).result()
