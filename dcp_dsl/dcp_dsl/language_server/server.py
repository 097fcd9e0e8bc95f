"""Speak the language server protocol: take documents, send diagnostics, fixes and answers."""

import asyncio
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from dcp_dsl.language_server.completion import complete, signature_at
from dcp_dsl.language_server.document import Checks, Document, Session, definition_at
from dcp_dsl.language_server.hover import describe
from dcp_dsl.language_server.names import (
    MODIFIERS,
    TYPES,
    RenameError,
    coloured,
    references,
    rename,
    symbol_at,
)
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostic_formats import explanations
from dcp_dsl.syntax.diagnostics import Diagnostic, Edit, Fix, SpecError, choose_fixes
from dcp_dsl.syntax.source import format_source

SLICE_S = 0.02  # proofs run this long before they look whether the text has changed
PROGRESS_AFTER_S = 0.5  # shorter waits need no progress bar
SWITCH_S = 0.001  # how soon an answer interrupts proofs in their thread; Python's default is 5 ms
_SEVERITIES = {"error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning}
_KINDS = {
    "keyword": lsp.CompletionItemKind.Keyword,
    "mask": lsp.CompletionItemKind.Function,
    "segment": lsp.CompletionItemKind.Class,
    "sample": lsp.CompletionItemKind.Constant,
    "column": lsp.CompletionItemKind.Field,
    "parameter": lsp.CompletionItemKind.Variable,
    "function": lsp.CompletionItemKind.Function,
    "attribute": lsp.CompletionItemKind.Property,
    "type": lsp.CompletionItemKind.TypeParameter,
}


class MaskServer(LanguageServer):
    """Serves .dcpm documents; follows those that are open."""

    def __init__(self) -> None:
        super().__init__("dcpm", version("dcp-dsl"))
        self.sessions: dict[str, Session] = {}
        self.has_images = False
        self.has_progress = False
        # One at a time: the checks of a text remember what those of its last version decided, and
        # keys that come meanwhile are read, so that only the last of them is looked at.
        self.prover = ThreadPoolExecutor(1)

    def document(self, uri: str) -> Document:
        """Return the present text of a document; empty if it is closed and its file is gone."""
        if uri in self.sessions:
            return self.sessions[uri].document
        return Document(self._source(uri), path_of(uri), self._encoding())

    def place(self, params: Any) -> tuple[Document, int]:  # Any: all that have a document and place
        """Return the document that a question is about, and the character."""
        document = self.document(params.text_document.uri)
        return document, document.offset(params.position.line, params.position.character)

    def _source(self, uri: str) -> str:
        try:
            source = self.workspace.get_text_document(uri).source
        except (OSError, ValueError):  # the file left, is no text, or its name is no name
            source = ""
        return source.replace("\r\n", "\n").replace("\r", "\n")

    def _encoding(self) -> Any:  # Any: one of three texts
        encoding = self.workspace.position_encoding
        return getattr(encoding, "value", encoding or "utf-16")

    def update(self, uri: str) -> None:
        """Take the present text of a document that is open."""
        if uri in self.sessions:
            self.sessions[uri].update(self._source(uri))
        else:
            self.sessions[uri] = Session(self._source(uri), path_of(uri), self._encoding())
        self.sessions[uri].version = self.workspace.get_text_document(uri).version

    async def check(self, uri: str) -> None:
        """Send the findings of a document: at once the known ones, then those of proofs."""
        session = self.sessions[uri]
        document = session.document
        loop = asyncio.get_running_loop()

        def look() -> None:
            if session.document is document:  # else more keys have come, which come next
                _ = document.problems

        await loop.run_in_executor(self.prover, look)
        # After every wait the text may be another one, or closed: its own call goes on with that.
        if session.document is not document or uri not in self.sessions:
            return
        self._publish(uri)
        checks = Checks(session)
        if checks.is_done:
            return
        progress = _Progress(self, len(checks.steps))
        while not checks.is_done and session.document is document and uri in self.sessions:
            await loop.run_in_executor(self.prover, checks.advance, SLICE_S)
            await progress.report(checks.taken)
        progress.end()
        if checks.is_done and uri in self.sessions and session.document is document:
            checks.finish()
            self._publish(uri)

    def _publish(self, uri: str) -> None:
        session = self.sessions[uri]
        shown = [_diagnostic(session.document, found) for found in session.findings]
        # Not the version of the workspace, which is ahead while a change waits for its turn.
        self.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri, shown, session.version)
        )


class _Progress:
    """Tells the editor how far the proofs are, once they take long enough to be noticed."""

    def __init__(self, server: MaskServer, total: int) -> None:
        self.server, self.total, self.token = server, total, ""
        self.started = time.perf_counter()

    async def report(self, taken: int) -> None:
        is_long = time.perf_counter() - self.started > PROGRESS_AFTER_S
        if not self.server.has_progress or not is_long:
            return
        shares = {"message": f"{taken} of {self.total}", "percentage": 100 * taken // self.total}
        if self.token:
            value = lsp.WorkDoneProgressReport(**shares)  # type: ignore[arg-type]  # both fit
            self.server.work_done_progress.report(self.token, value)
            return
        token = str(uuid4())
        await self.server.work_done_progress.create_async(token)
        self.token = token
        begin = lsp.WorkDoneProgressBegin("Proving masks", **shares)  # type: ignore[arg-type]
        self.server.work_done_progress.begin(token, begin)

    def end(self) -> None:
        if self.token:
            self.server.work_done_progress.end(self.token, lsp.WorkDoneProgressEnd())


def path_of(uri: str) -> str:
    """Return the path of a file URI; other documents are called ``<untitled>``.

    >>> path_of("file:///a%20b/c.dcpm"), path_of("untitled:Untitled-1")
    ('/a b/c.dcpm', '<untitled>')
    """
    return (to_fs_path(uri) if uri.startswith("file:") else None) or "<untitled>"


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Leave out the traceback of a request that is refused: the answer says why.

    A client that does not read the error stream would stop the server once that stream is full.
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], JsonRpcInvalidParams)


def make_server() -> MaskServer:
    """Return a server with all its features."""
    sys.setswitchinterval(SWITCH_S)
    logging.getLogger("pygls.protocol.json_rpc").addFilter(_is_no_refusal)
    server = MaskServer()
    _serve_texts(server)
    _serve_questions(server)
    _serve_names(server)
    _serve_changes(server)
    return server


def _serve_texts(server: MaskServer) -> None:
    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        options = params.initialization_options
        if isinstance(options, dict):
            server.has_images = options.get("pictures") == "svg"
        window = params.capabilities.window
        server.has_progress = window is not None and bool(window.work_done_progress)

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(
        params: lsp.DidOpenTextDocumentParams | lsp.DidChangeTextDocumentParams,
    ) -> None:
        server.update(params.text_document.uri)
        await server.check(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        server.sessions.pop(uri, None)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))


def _serve_questions(server: MaskServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document, at = server.place(params)
        session = server.sessions.get(params.text_document.uri)
        good = None if session is None else session.good
        said = describe(document, at, has_images=server.has_images, good=good)
        if said is None:
            return None
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, said))

    @server.feature(
        lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[".", "@", "[", "("])
    )
    def completion(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        document, at = server.place(params)
        return [
            lsp.CompletionItem(
                p.text, kind=_KINDS[p.kind], detail=p.detail or None, sort_text=f"{index:04}"
            )
            for index, p in enumerate(complete(document, at))
        ]

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        document, at = server.place(params)
        found = definition_at(document, at)
        if found is None:
            return None
        uri = params.text_document.uri if found.path is None else Path(found.path).as_uri()
        target = Document(found.text, "", document.encoding)
        return lsp.Location(uri, _range(target, found.span))

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def symbols(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        document = server.document(params.text_document.uri)
        found = (_symbol(document, s) for s in document.parsed.program.statements)
        return [*filter(None, found)]


def _serve_names(server: MaskServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_REFERENCES)
    def find_references(params: lsp.ReferenceParams) -> list[lsp.Location]:
        document, at = server.place(params)
        return [
            lsp.Location(params.text_document.uri, _range(document, o.span))
            for o in references(document, at)
            if params.context.include_declaration or not o.is_definition
        ]

    @server.feature(
        lsp.TEXT_DOCUMENT_SIGNATURE_HELP, lsp.SignatureHelpOptions(trigger_characters=["(", ","])
    )
    def signature_help(params: lsp.SignatureHelpParams) -> lsp.SignatureHelp | None:
        document, at = server.place(params)
        found = signature_at(document, at)
        if found is None:
            return None
        parameters = [lsp.ParameterInformation(shown) for shown in found.parameters]
        signature = lsp.SignatureInformation(found.label, found.detail or None, parameters)
        return lsp.SignatureHelp([signature], 0, found.active)

    @server.feature(lsp.TEXT_DOCUMENT_PREPARE_RENAME)
    def prepare_rename(params: lsp.PrepareRenameParams) -> lsp.Range | None:
        document, at = server.place(params)
        found = symbol_at(document, at)
        return None if found is None else _range(document, found.span)

    @server.feature(lsp.TEXT_DOCUMENT_RENAME, lsp.RenameOptions(prepare_provider=True))
    def rename_symbol(params: lsp.RenameParams) -> lsp.WorkspaceEdit:
        document, at = server.place(params)
        try:
            places = rename(document, at, params.new_name)
        except RenameError as error:
            raise JsonRpcInvalidParams(str(error)) from None
        edits = [lsp.TextEdit(_range(document, span), params.new_name) for span in places]
        return lsp.WorkspaceEdit({params.text_document.uri: edits})

    legend = lsp.SemanticTokensLegend(list(TYPES), list(MODIFIERS))

    @server.feature(lsp.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, legend)
    def semantic_tokens(params: lsp.SemanticTokensParams) -> lsp.SemanticTokens:
        document = server.document(params.text_document.uri)
        # The protocol counts each token from the start of the one before, over lines first.
        data, line, column = [], 0, 0
        for start, end, kind, bits in coloured(document):
            row, at = document.place(start)
            width = document.place(end)[1] - at
            data += [row - line, at - column if row == line else at, width, kind, bits]
            line, column = row, at
        return lsp.SemanticTokens(data)


def _serve_changes(server: MaskServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        document = server.document(params.text_document.uri)
        try:
            after = format_source(document.text)
        except SpecError:
            return None  # the diagnostics say why
        if after == document.text:
            return []
        return [lsp.TextEdit(_range(document, ast.Span(0, len(document.text))), after)]

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION,
        lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.SourceFixAll]),
    )
    def code_action(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = params.text_document.uri
        document = server.document(uri)
        session = server.sessions.get(uri)
        found = document.problems if session is None else session.findings
        first = document.offset(params.range.start.line, params.range.start.character)
        last = document.offset(params.range.end.line, params.range.end.character)
        actions = [
            _action(uri, document, diagnostic, diagnostic.fix)
            for diagnostic in found
            if diagnostic.fix is not None
            and diagnostic.name == document.name
            and diagnostic.start <= last
            and first <= diagnostic.end
        ]
        chosen = choose_fixes(found, document.name)
        if chosen:
            edits = [e for d in chosen if d.fix is not None for e in _edits(document, d.fix)]
            actions.append(
                lsp.CodeAction(
                    "Make all changes that certainly mend", kind=lsp.CodeActionKind.SourceFixAll,
                    edit=lsp.WorkspaceEdit({uri: edits}),
                )
            )  # fmt: skip
        return actions


def _range(document: Document, at: ast.Span | Edit | Diagnostic) -> lsp.Range:
    return lsp.Range(lsp.Position(*document.place(at.start)), lsp.Position(*document.place(at.end)))


def _diagnostic(document: Document, found: Diagnostic) -> lsp.Diagnostic:
    message = f"{found.message}\n{found.hint}" if found.hint else found.message
    # A finding in an imported file is shown at the top of this one.
    place = found if found.name == document.name else ast.NO_SPAN
    section = explanations().get(found.code)
    data = None if section is None else {"title": section.title}
    return lsp.Diagnostic(
        _range(document, place), message, severity=_SEVERITIES[found.severity],
        code=found.code, source="dcpm", data=data,
    )  # fmt: skip


def _action(uri: str, document: Document, found: Diagnostic, fix: Fix) -> lsp.CodeAction:
    title = fix.title[:1].upper() + fix.title[1:]
    return lsp.CodeAction(
        title, kind=lsp.CodeActionKind.QuickFix, diagnostics=[_diagnostic(document, found)],
        is_preferred=True, edit=lsp.WorkspaceEdit({uri: _edits(document, fix)}),
    )  # fmt: skip


def _edits(document: Document, fix: Fix) -> list[lsp.TextEdit]:
    return [lsp.TextEdit(_range(document, edit), edit.text) for edit in fix.edits]


_SYMBOLS = {
    ast.MaskDef: lsp.SymbolKind.Function,
    ast.StackDef: lsp.SymbolKind.Array,
    ast.Segment: lsp.SymbolKind.Class,
    ast.Token: lsp.SymbolKind.Field,
    ast.SampleDef: lsp.SymbolKind.Constant,
}


def _symbol(document: Document, statement: ast.Statement) -> lsp.DocumentSymbol | None:
    match statement:
        case ast.MaskDef() | ast.StackDef() | ast.Segment() | ast.Token() | ast.SampleDef():
            name = statement.name
            return lsp.DocumentSymbol(
                name.text, _SYMBOLS[type(statement)], _range(document, statement.span),
                _range(document, name.span),
            )  # fmt: skip
    return None
