"""What editors are told at every place of some texts, and what the server sends about it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from lsprotocol import types as lsp
from lsprotocol.converters import get_converter
from pygls.exceptions import JsonRpcException
from pygls.workspace import Workspace
from short_texts import short

from dcp_dsl import DatasetError, Spec
from dcp_dsl.language_server.completion import complete
from dcp_dsl.language_server.document import Document, definition_at
from dcp_dsl.language_server.hover import describe, example_call
from dcp_dsl.language_server.names import (
    MODIFIERS,
    TYPES,
    RenameError,
    coloured,
    occurrences,
    references,
    rename,
    symbol_at,
)
from dcp_dsl.language_server.server import MaskServer, _Progress, make_server
from dcp_dsl.syntax.tokens import scan

DATA = """# Documents and their
# tokens.
segment doc = [doc_lens]*

# Near in a document.
mask near(w: int = 3) = sliding(w) per doc
stack two = near, causal
token evict
"""
MAIN = """import near, two, evict from "data.dcpm"
segment part = question[q_len] branch answer[a_lens]* from parents
segment turn = page(text[t_lens] image[i_lens])* others[..]
segment ids_ = ids(role_ids) as user, bot
token chosen[4] = sel
column width in page = widths

# Own mask,
#   with a comment.
mask full(w: tokens = 4k, p: pos = q, m: mask = causal, b: bool = true) =
  m and f(w) < k + 4 and half per page
  where half = same(tile), tile = every w in page, f(x) = x // 2
mask wide = causal and q.page.width < 2 and q < row.n
mask rules = { question sees self  answer sees question, self causally within 3 }
@ahead(answer) @partial mask one = near(w = 2) and q.answer.start <= k and k.evict > 1
mask two_ = (k // 2 in q.chosen) or paths or (k in first(answer, 2)) and rules
stack mixed = 2 of full(w = 8), heads { 0..1: one rest: causal }, linear
sample tiny(q_len = 2, a_lens = [1, 2], parents = [-1, 0])
check full(w = 6) lookback
check one implies full(w = 3) on tiny
for "x" having q_len, n use full(w = n) with q_len = prompt_len
"""
TORN = """segment doc = [lens]*
mask good = causal per doc
mask bad = good and same(doc
mask worse = gone and good
sample s(lens = [3, 1])
check good total on s
"""


NAMES = {
    "calls": """segment part = question[q_len] answer[a_lens]*
mask near(w: tokens = 4) = causal and q - k < w
mask shared(m: mask) = m and (k in question or same(answer)) where b(w) = w // 2
check near(w = 2) implies near(3)
sample tiny(q_len = 2, a_lens = [1, 2])
check near total on tiny
""",
    "positions": """segment start = part[m]*  segment doc = [n]*  token mark  column width in doc
mask a = f(q) and g(k) < 4 and k.doc.start.part == q.part and doc.count > 1
  and q.doc.start.part.start > 1
  where f(t) = 1 * t.doc == 1 * t.start and (t - 1).doc == 0,
    g(t) = t.mark + t.doc.width + t.doc.pos
""",
    "properties": """segment count = [n]* mask a(pos: int = 1) = causal per count and r.count > 0
  and q.r.pos < 9 where b = every 4, r = first(b)
""",
    "corners": """segment bottom_right = x[n]
@keys(bottom_right, bottom_right) mask m = k in bottom_right
@ahead mask ahead = full
segment tree = branch node[lens]* from parents
sample s(lens = [1], parents = [-1])
""",
}
"""Words that mean several things in one text: parameters, parts, properties, corners, columns."""


@pytest.fixture
def documents(tmp_path):
    (tmp_path / "data.dcpm").write_text(DATA)
    texts = {"main.dcpm": MAIN, "torn.dcpm": TORN}
    return {name: Document(text, str(tmp_path / name)) for name, text in texts.items()}


def words(document):
    """Yield every word of a text, with a place in it; words on their line are told apart."""
    for token in document.tokens:
        if token.kind == "name":
            line, column = document.place(token.span.start)
            yield f"{line + 1}:{column + 1} {token.text}", token.span.start + 1


def where(found, tmp_path):
    """Write the place of a definition: its file, unless it is the text itself, line and column."""
    if found is None:
        return ""
    line, column = Document(found.text, "").place(found.span.start)
    path = Path(found.path or "")
    file = path.name if path.is_relative_to(tmp_path) else f"library {path.name}" * bool(found.path)
    return f" at {file}:{line + 1}:{column + 1}"


def test_words_are_described_and_found(documents, snapshots, tmp_path):
    """A description is written out where it comes first; then its number is given."""
    texts = {}
    for name, document in documents.items():
        known, lines = {}, []
        for word, offset in words(document):
            said = describe(document, offset, has_images=False) or "nothing"
            number = known.setdefault(said, len(known) + 1)
            found = definition_at(document, offset)
            lines.append(f"{word}{where(found, tmp_path)}: {number}")
        texts[name] = "\n".join(lines)
        for said, number in known.items():
            texts[f"{name}, {number}"] = said
    snapshots.check("editor_words", texts)


def test_names_are_followed_and_coloured(documents, snapshots):
    texts = {}
    alike = {name: Document(text, "<text>") for name, text in NAMES.items()}
    assert all(document.is_sound for document in alike.values())
    for name, document in (documents | alike).items():
        groups = {}
        for found in occurrences(document):
            line, column = document.place(found.span.start)
            symbol = found.symbol
            place = f"{line + 1}:{column + 1}{'=' if found.is_definition else ''}"
            groups.setdefault(symbol, []).append(place)
        texts[name] = "\n".join(f"{s.space} {s.name}: {', '.join(at)}" for s, at in groups.items())
        colours = {}
        for start, end, kind, bits in coloured(document):
            said = " ".join([TYPES[kind], *(m for n, m in enumerate(MODIFIERS) if bits >> n & 1)])
            colours.setdefault(said, []).append(document.text[start:end])
        lines = [f"{said}: {', '.join(names)}" for said, names in colours.items()]
        texts[f"colours of {name}"] = "\n".join(lines)
    snapshots.check("editor_names", texts)


def test_names_are_changed_or_kept(documents, snapshots):
    """Each name that stands in two places gets a new name, one of a segment, and a local one."""
    document = documents["main.dcpm"]
    texts = {}
    seen = set()
    for word, offset in words(document):
        found = symbol_at(document, offset)
        if found is None or found.symbol in seen:
            continue
        seen.add(found.symbol)
        if len(references(document, offset)) == 1:
            continue
        told = {}
        for name in ("fresh", "answer", "w", "where"):
            try:
                spans = rename(document, offset, name)
                assert {s.text(document.text) for s in spans} == {found.symbol.name}
                what = f"lines {', '.join(f'{document.place(s.start)[0] + 1}' for s in spans)}"
            except RenameError as error:
                what = str(error).replace(f"`{name}`", "it")
            told.setdefault(what, []).append(name)
        texts[word] = "\n".join(f"{', '.join(names)}: {what}" for what, names in told.items())
    snapshots.check("editor_renames", texts)


def test_words_are_proposed_at_every_place(documents, snapshots):
    """Behind each token: kinds of what is proposed, those of the text by name."""
    texts = {}
    for name, document in documents.items():
        lines, known, parsed = [], set(), {}
        text = document.text
        ends = [0, *(token.span.end for token in scan(text))]
        for end in ends:
            gap = "" if text[end - 1 : end] in "(.[@" else " "
            at = Document(text[:end] + gap, document.name, "utf-16", parsed)
            told = proposals(at, len(at.text), known)
            if not lines or not lines[-1].endswith(f": {told}"):
                lines.append(f"{text[:end].split()[-1] if end else ''}{gap}|: {told}")
        texts[name] = "\n".join(lines)
    snapshots.check("editor_proposals", texts)


@cache
def words_of_all_texts():
    return {p.text for p in complete(Document("mask a = ", ""), 9)}


def proposals(document, offset, known):
    """Write what is proposed; lists that were written before, and words of all texts, by length."""
    groups = {}
    for proposal in complete(document, offset):
        groups.setdefault(proposal.kind, []).append(proposal)
    told = []
    for kind, found in groups.items():
        own = [p.text for p in found if p.text not in words_of_all_texts() or len(found) < 9]
        is_new = (kind, *own) not in known
        known.add((kind, *own))
        others = [f"{len(found) - len(own)} others"] * (len(own) < len(found))
        counted = [str(len(own))] * bool(own)
        told.append(" ".join([kind, *(own if is_new else counted), *others]))
    return "; ".join(told) or "nothing"


def test_proposals_say_what_they_are(documents):
    document = documents["main.dcpm"]
    said = {p.text: p.detail for p in complete(document, document.text.index("q.answer.start") + 9)}
    assert said["path"] == "tokens in front of it on its path"
    assert said["len"] == "its tokens"
    said = {p.text: p.detail for p in complete(document, len(document.text))}
    assert said["near"] == f"near(w: int), from {Path(document.name).with_name('data.dcpm')}"
    assert said["full"] == "full(w: tokens, p: pos, m: mask, b: bool)"
    assert said["causal"] == "causal, standard library"
    assert said["answer"] == "segment, part of part"
    assert said["turn"] == "segment"
    assert said["mixed"] == "a stack"


WRONG = """mask a = casual and q = k  # 🙂
# 🙂
mask b(w: tokens) = causal and q - k < w and 🙂
segment doc = [lens]*
token evict
mask c=causal per doc or same(doc)
stack s = c, causal
sample tiny(lens = [2, 1])
check c implies causal on tiny
mask d = sliding(w
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server in this process, and what it sends."""
    sent = []
    workspace = Workspace(None, position_encoding=lsp.PositionEncodingKind.Utf16)
    monkeypatch.setattr(MaskServer, "workspace", workspace)
    monkeypatch.setattr(
        MaskServer, "text_document_publish_diagnostics", lambda _, x: sent.append(x)
    )
    monkeypatch.setattr("sys.setswitchinterval", lambda seconds: None)
    made = make_server()
    made.sent = sent
    yield made
    made.prover.shutdown()


def run(coroutine):
    """Run a coroutine on a thread of its own: a browser keeps a loop running on that of tests."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def ask(server, method, params):
    """Ask the server as an editor does; return its answer as JSON."""
    answer = server.protocol.fm.features[method](params)
    if asyncio.iscoroutine(answer):
        answer = run(answer)
    return get_converter().unstructure(answer)


def test_the_server_answers(server, snapshots, tmp_path):
    uri = (tmp_path / "a.dcpm").as_uri()
    document = lsp.TextDocumentIdentifier(uri)
    item = lsp.TextDocumentItem(uri, "dcpm", 4, WRONG)
    server.workspace.put_text_document(item)
    told = {}

    def keep(title, answer):
        told[title] = short(answer).replace(uri, "URI")

    def at(word, offset=0):
        line, column = Document(WRONG, "").place(WRONG.index(word) + offset)
        return {"text_document": document, "position": lsp.Position(line, column)}

    assert ask(server, lsp.TEXT_DOCUMENT_HOVER, lsp.HoverParams(**at("mask c"))) is not None
    ask(server, lsp.TEXT_DOCUMENT_DID_OPEN, lsp.DidOpenTextDocumentParams(item))
    keep("opened", get_converter().unstructure(server.sent))
    keep("symbols", ask(server, lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL,
                        lsp.DocumentSymbolParams(document)))  # fmt: skip
    for word in ("sliding", "c=", "evict", "🙂"):
        params = at(word)
        keep(f"hover {word}", ask(server, lsp.TEXT_DOCUMENT_HOVER, lsp.HoverParams(**params)))
        found = ask(server, lsp.TEXT_DOCUMENT_DEFINITION, lsp.DefinitionParams(**params))
        if found is not None and found["uri"] != uri:
            found["uri"] = found["uri"].rpartition("/")[2]
        keep(f"definition {word}", found)
        keep(f"rename {word}", ask(server, lsp.TEXT_DOCUMENT_PREPARE_RENAME,
                                   lsp.PrepareRenameParams(**params)))  # fmt: skip
    for declared in (True, False):
        context = lsp.ReferenceContext(declared)
        params = lsp.ReferenceParams(context, **at("c="))
        keep(f"references {declared}", ask(server, lsp.TEXT_DOCUMENT_REFERENCES, params))
    keep("signature", ask(server, lsp.TEXT_DOCUMENT_SIGNATURE_HELP,
                          lsp.SignatureHelpParams(**at("sliding(w", 9))))  # fmt: skip
    found = ask(server, lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionParams(**at("on tiny", 3)))
    keep("completion", found)
    keep("colours", ask(server, lsp.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL,
                        lsp.SemanticTokensParams(document)))  # fmt: skip
    for ends in ((0, 99), (0, 22), (23, 40), (0, 21), (24, 40)):
        span = lsp.Range(*(lsp.Position(0, end) for end in ends))
        params = lsp.CodeActionParams(document, span, lsp.CodeActionContext([]))
        actions = ask(server, lsp.TEXT_DOCUMENT_CODE_ACTION, params)
        if ends == (0, 99):
            keep("actions", actions)
        keep(f"actions of {ends}", [action["title"] for action in actions])
    options = lsp.FormattingOptions(2, insert_spaces=True)
    format_ = lsp.DocumentFormattingParams(document, options)
    keep("formatted torn", ask(server, lsp.TEXT_DOCUMENT_FORMATTING, format_))
    sound = "mask c=causal or same(doc)  # 🙂\nsegment doc=[lens]*\ncheck c total\n"
    rename_ = lsp.RenameParams(document, lsp.Position(0, 5), "d")
    with pytest.raises(JsonRpcException, match="syntax errors"):
        ask(server, lsp.TEXT_DOCUMENT_RENAME, rename_)
    server.workspace.put_text_document(lsp.TextDocumentItem(uri, "dcpm", 5, sound))
    server.sent.clear()
    change = lsp.DidChangeTextDocumentParams(lsp.VersionedTextDocumentIdentifier(5, uri), [])
    ask(server, lsp.TEXT_DOCUMENT_DID_CHANGE, change)
    keep("changed", get_converter().unstructure(server.sent))
    keep("renamed", ask(server, lsp.TEXT_DOCUMENT_RENAME, rename_))
    keep("formatted", ask(server, lsp.TEXT_DOCUMENT_FORMATTING, format_))
    server.sent.clear()
    ask(server, lsp.TEXT_DOCUMENT_DID_CLOSE, lsp.DidCloseTextDocumentParams(document))
    keep("closed", get_converter().unstructure(server.sent))
    assert server.sessions == {}
    snapshots.check("editor_server", told)


@pytest.mark.parametrize(
    ("options", "window", "expected"),
    [
        (None, None, (False, False)),
        ({"pictures": "svg"}, lsp.WindowClientCapabilities(work_done_progress=True), (True, True)),
        ({"pictures": "png"}, lsp.WindowClientCapabilities(), (False, False)),
    ],
)
def test_the_server_does_what_the_editor_can_show(server, options, window, expected):
    capabilities = lsp.ClientCapabilities(window=window)
    params = lsp.InitializeParams(capabilities, initialization_options=options)
    ask(server, lsp.INITIALIZE, params)
    assert (server.has_images, server.has_progress) == expected


def test_progress_is_told_once_it_takes_long(server, monkeypatch):
    """Half a second after the start, and to editors that can show it."""
    now, told = [0.0], []

    class Bar:
        async def create_async(self, token):
            told.append("create")

        def begin(self, token, value):
            told.append((value.title, value.message, value.percentage))

        def report(self, token, value):
            told.append((value.message, value.percentage))

        def end(self, token, value):
            told.append(value.kind)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(MaskServer, "work_done_progress", Bar())
    for has_progress in (False, True):
        server.has_progress = has_progress
        progress = _Progress(server, 8)
        for seconds, taken in ((0.4, 1), (0.5, 2), (0.6, 3), (0.7, 8)):
            now[0] += seconds if not taken - 1 else 0.1
            run(progress.report(taken))
        progress.end()
        now[0] = 0.0
    assert told == ["create", ("Proving masks", "3 of 8", 37), ("8 of 8", 100), "end"]


def test_masks_are_called_with_arguments_that_can_be_seen():
    masks = {
        "a(w: tokens)": "a(w = 4)",
        "a(w: int = 8)": "a",
        "a(w: tokens = 9)": "a(w = 2)",
        "a(w: tokens = 3k)": "a(w = 3)",
        "a(w: tokens = 8k, v: int = 9k)": "a(w = 8, v = 8)",
        "a(m: mask, b: bool)": "a(m = causal, b = causal)",
        "a(m: mask = full, p: pos = q)": "a",
        "a(p: pos, w: tokens = len)": "a(p = 4)",
    }
    for head, call in masks.items():
        assert example_call(Spec.from_text(f"mask {head} = causal"), "a") == call
    checks = "check causal implies a(7) check a(6) total check a(5) total"
    assert example_call(Spec.from_text(f"mask a(w: int) = causal {checks}"), "a") == "a(6)"
    assert example_call(Spec.from_text("mask a = causal check a total"), "a") == "a"
    with pytest.raises(DatasetError, match="expected a mask of the text, got `causal`"):
        example_call(Spec.from_text("mask a = causal"), "causal")
