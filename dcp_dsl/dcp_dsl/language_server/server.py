"""Speak the language server protocol: take documents, send diagnostics, fixes and answers."""

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

from dcp_dsl.language_server.completion import complete
from dcp_dsl.language_server.document import Document, find_definition
from dcp_dsl.language_server.hover import describe
from dcp_dsl.specs.spec import check
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostic_formats import explanations
from dcp_dsl.syntax.diagnostics import Diagnostic, Fix, SpecError, choose_fixes
from dcp_dsl.syntax.formatter import format_source

PAUSE_S = 0.15  # wait for the next key before checking
_SEVERITIES = {
    "error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning,
}  # fmt: skip
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
    """Serves .dcpm documents and remembers the findings of each."""

    def __init__(self) -> None:
        super().__init__("dcpm", version("dcp-dsl"))
        self.found: dict[str, tuple[Diagnostic, ...]] = {}
        self.has_images = False

    def document(self, uri: str) -> Document:
        """Return the present text of a document; none if it is closed and its file is gone."""
        try:
            source = self.workspace.get_text_document(uri).source
        except (OSError, UnicodeDecodeError):  # questions may come late, after the file left
            source = ""
        text = source.replace("\r\n", "\n").replace("\r", "\n")
        encoding = self.workspace.position_encoding
        shown: Any = getattr(encoding, "value", encoding or "utf-16")  # Any: one of three texts
        return Document(text, path_of(uri), shown)

    async def publish(self, uri: str) -> None:
        """Check a document and publish its findings, unless the document changed meanwhile."""
        document = self.document(uri)
        found = await asyncio.to_thread(check, document.text, document.name)
        if uri not in self.workspace.text_documents or self.document(uri).text != document.text:
            return
        self.found[uri] = found
        self.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri, [_diagnostic(document, d) for d in found])
        )


def path_of(uri: str) -> str:
    """Return the path of a file URI; other documents are called ``<untitled>``.

    >>> path_of("file:///a%20b/c.dcpm"), path_of("untitled:Untitled-1")
    ('/a b/c.dcpm', '<untitled>')
    """
    parts = urlparse(uri)
    return url2pathname(parts.path) if parts.scheme == "file" else "<untitled>"


def make_server() -> MaskServer:
    """Return a server with all its features."""
    server = MaskServer()
    _serve_texts(server)
    _serve_questions(server)
    _serve_changes(server)
    return server


def _serve_texts(server: MaskServer) -> None:
    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        options = params.initialization_options
        if isinstance(options, dict):
            server.has_images = options.get("pictures") == "svg"

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    async def did_open(params: lsp.DidOpenTextDocumentParams) -> None:
        await server.publish(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def did_change(params: lsp.DidChangeTextDocumentParams) -> None:
        uri, number = params.text_document.uri, params.text_document.version
        await asyncio.sleep(PAUSE_S)
        known = server.workspace.text_documents.get(uri)
        if known is not None and known.version == number:
            await server.publish(uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        server.found.pop(uri, None)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))


def _serve_questions(server: MaskServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document = server.document(params.text_document.uri)
        at = document.offset(params.position.line, params.position.character)
        said = describe(document, at, has_images=server.has_images)
        if said is None:
            return None
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, said))

    @server.feature(
        lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[".", "@", "[", "("])
    )
    def completion(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        document = server.document(params.text_document.uri)
        at = document.offset(params.position.line, params.position.character)
        return [
            lsp.CompletionItem(
                p.text, kind=_KINDS[p.kind], detail=p.detail or None, sort_text=f"{index:04}"
            )
            for index, p in enumerate(complete(document, at))
        ]

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        document = server.document(params.text_document.uri)
        at = document.offset(params.position.line, params.position.character)
        found = find_definition(document, at)
        if found is None:
            return None
        uri = params.text_document.uri if found.path is None else Path(found.path).as_uri()
        target = Document(found.text, "", document.encoding)
        return lsp.Location(uri, _range(target, found.span.start, found.span.end))

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def symbols(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        document = server.document(params.text_document.uri)
        return list(
            filter(None, (_symbol(document, s) for s in document.parsed.program.statements))
        )


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
        return [lsp.TextEdit(_range(document, 0, len(document.text)), after)]

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION,
        lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.SourceFixAll]),
    )
    def code_action(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = params.text_document.uri
        document = server.document(uri)
        # What was found may belong to an older text, whose edits would land in the wrong place.
        found = check(document.text, document.name)
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


# ---- from our values to the protocol's ----------------------------------------------------------


def _range(document: Document, start: int, end: int) -> lsp.Range:
    return lsp.Range(lsp.Position(*document.place(start)), lsp.Position(*document.place(end)))


def _diagnostic(document: Document, found: Diagnostic) -> lsp.Diagnostic:
    message = f"{found.message}\n{found.hint}" if found.hint else found.message
    is_here = found.name == document.name
    section = explanations().get(found.code)
    data = None if section is None else {"title": section.title}
    return lsp.Diagnostic(
        _range(document, found.start, found.end) if is_here else _range(document, 0, 0),
        message, severity=_SEVERITIES[found.severity], code=found.code, source="dcpm", data=data,
    )  # fmt: skip


def _action(uri: str, document: Document, found: Diagnostic, fix: Fix) -> lsp.CodeAction:
    title = fix.title[:1].upper() + fix.title[1:]
    return lsp.CodeAction(
        title, kind=lsp.CodeActionKind.QuickFix, diagnostics=[_diagnostic(document, found)],
        is_preferred=True, edit=lsp.WorkspaceEdit({uri: _edits(document, fix)}),
    )  # fmt: skip


def _edits(document: Document, fix: Fix) -> list[lsp.TextEdit]:
    return [lsp.TextEdit(_range(document, e.start, e.end), e.text) for e in fix.edits]


_SYMBOLS = {
    ast.MaskDef: lsp.SymbolKind.Function,
    ast.Stack: lsp.SymbolKind.Array,
    ast.Segment: lsp.SymbolKind.Class,
    ast.Token: lsp.SymbolKind.Field,
    ast.SampleDef: lsp.SymbolKind.Constant,
}


def _symbol(document: Document, statement: ast.Statement) -> lsp.DocumentSymbol | None:
    match statement:
        case ast.MaskDef() | ast.Stack() | ast.Segment() | ast.Token() | ast.SampleDef():
            name, whole = statement.name, statement.span
            return lsp.DocumentSymbol(
                name.text, _SYMBOLS[type(statement)], _range(document, whole.start, whole.end),
                _range(document, name.span.start, name.span.end),
            )  # fmt: skip
    return None
