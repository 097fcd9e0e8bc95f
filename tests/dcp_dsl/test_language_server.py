"""The language server, driven over standard input and output as editors drive it."""

import json
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import pytest
from editor_client import Editor
from lsprotocol.types import TextDocumentItem
from pygls.workspace import Workspace

from dcp_dsl import check, format_source
from dcp_dsl.language_server.server import MaskServer

pytest.importorskip("pygls", exc_type=ImportError)

TEXT = """segment part = question[question_len] answer[answer_lens]*
# Answers see the question and themselves.
mask shared(w: tokens = 4k) = causal and q - k < w and (k in question or same(answer))
sample tiny(question_len = 3, answer_lens = [4, 2])
check shared total on tiny
"""


@pytest.fixture(scope="module")
def editor(tmp_path_factory):
    client = Editor(tmp_path_factory.mktemp("work"))
    yield client
    client.close()


@pytest.fixture
def opened(editor, tmp_path):
    uri = (tmp_path / "train.dcpm").as_uri()
    assert editor.open(uri, TEXT) == []
    return uri


def cut(text, place):
    lines = text.split("\n")
    first, last = place["start"], place["end"]
    assert first["line"] == last["line"]
    line = lines[first["line"]].encode("utf-16-le")
    return line[2 * first["character"] : 2 * last["character"]].decode("utf-16-le")


def applied(text, edits):
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda e: -e["range"]["start"]["line"] * 10**6
                       - e["range"]["start"]["character"]):  # fmt: skip
        first, last = edit["range"]["start"], edit["range"]["end"]
        head = lines[first["line"]].encode("utf-16-le")[: 2 * first["character"]]
        tail = lines[last["line"]].encode("utf-16-le")[2 * last["character"] :]
        new = head.decode("utf-16-le") + edit["newText"] + tail.decode("utf-16-le")
        lines[first["line"] : last["line"] + 1] = new.split("\n")
    return "\n".join(lines)


def test_the_server_says_what_it_can(editor):
    for ability in ("hover", "definition", "documentFormatting", "completion", "codeAction",
                    "documentSymbol"):  # fmt: skip
        assert editor.abilities[f"{ability}Provider"], ability


def test_diagnostics_are_those_of_check_at_their_places(editor, tmp_path):
    text = "# 🙂 ünï\nmask a = casual  # 🙂\nmask b = a and q = k\n"
    uri = (tmp_path / "bad.dcpm").as_uri()
    found = editor.open(uri, text)
    assert [d["code"] for d in found] == [d.code for d in check(text)] == ["E101", "E004"]
    assert [cut(text, d["range"]) for d in found] == ["casual", "="]
    assert "did you mean `causal`?" in found[0]["message"]
    assert {d["source"] for d in found} == {"dcpm"}


def test_changes_are_checked_again_and_closing_clears(editor, opened):
    place = {"start": {"line": 2, "character": 30}, "end": {"line": 2, "character": 36}}
    editor.tell("textDocument/didChange", {
        "textDocument": {"uri": opened, "version": 2},
        "contentChanges": [{"range": place, "text": "casual"}],
    })  # fmt: skip
    (found,) = editor.diagnostics(opened, 2)
    assert found["code"] == "E101"
    editor.tell("textDocument/didClose", {"textDocument": {"uri": opened}})
    assert editor.diagnostics(opened) == []


def test_findings_bear_the_version_that_they_were_found_in(monkeypatch):
    """The workspace may hold the next one already, while proofs of the last one end."""
    uri, sent = "untitled:a", []
    text = TextDocumentItem(uri, "dcpm", 1, TEXT)
    workspace = Workspace(None)
    workspace.put_text_document(text)
    monkeypatch.setattr(MaskServer, "workspace", workspace)
    monkeypatch.setattr(
        MaskServer, "text_document_publish_diagnostics", lambda _, x: sent.append(x)
    )
    server = MaskServer()
    server.update(uri)
    workspace.put_text_document(TextDocumentItem(uri, "dcpm", 2, "mask a = casual"))
    server._publish(uri)
    server.update(uri)
    server._publish(uri)
    assert [(each.version, len(each.diagnostics)) for each in sent] == [(1, 0), (2, 1)]


def test_quick_fixes_mend_the_text(editor, tmp_path):
    text = "mask ä = casual and q = k  # 🙂\nmask b = full"
    text = text.replace("ä", "a")
    uri = (tmp_path / "bad.dcpm").as_uri()
    editor.open(uri, text)
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 1, "character": 0}}
    actions = editor.ask("textDocument/codeAction", {
        "textDocument": {"uri": uri}, "range": whole, "context": {"diagnostics": []},
    })  # fmt: skip
    kinds = [action["kind"] for action in actions]
    assert kinds.count("source.fixAll") == 1
    assert "quickfix" in kinds
    after = applied(text, actions[kinds.index("source.fixAll")]["edit"]["changes"][uri])
    assert after.startswith("mask a = casual and q == k  # 🙂")
    (fix,) = [a for a in actions if a["kind"] == "quickfix"]
    assert fix["diagnostics"][0]["code"] == "E004"


def test_editors_with_images_get_a_drawn_picture(tmp_path):
    client = Editor(tmp_path, initializationOptions={"pictures": "svg"})
    uri = (tmp_path / "a.dcpm").as_uri()
    client.open(uri, TEXT)
    value = client.at("hover", uri, TEXT, "sh|ared total")["contents"]["value"]
    data = value.split("data:image/svg+xml;base64,")[1].split(")")[0]
    assert ElementTree.fromstring(b64decode(data)).tag.endswith("svg")
    client.close()


def test_formatting_is_that_of_fmt(editor, tmp_path):
    text = "mask a=causal   # 🙂\n\n\n\nmask b =a"
    uri = (tmp_path / "f.dcpm").as_uri()
    editor.open(uri, text)
    asked = {"textDocument": {"uri": uri}, "options": {"tabSize": 2, "insertSpaces": True}}
    edits = editor.ask("textDocument/formatting", asked)
    assert applied(text, edits) == format_source(text)
    broken = (tmp_path / "g.dcpm").as_uri()
    editor.open(broken, "mask a = (")
    asked["textDocument"]["uri"] = broken
    assert editor.ask("textDocument/formatting", asked) is None


AT_ONCE = """
import dcp_dsl.language_server.server as server
server.PROGRESS_AFTER_S = server.SLICE_S = 0
"""


def test_typing_on_keeps_the_last_good_picture_and_tells_progress(tmp_path):
    client = Editor(tmp_path, AT_ONCE, {"window": {"workDoneProgress": True}})
    uri = (tmp_path / "typed.dcpm").as_uri()
    assert client.open(uri, TEXT) == []
    broken = TEXT.replace("causal and", "causal and (")
    for version, text, codes in (
        (2, broken, ["E006"]), (3, TEXT.replace("causal and ", ""), ["E120"]), (4, TEXT, [])
    ):  # fmt: skip
        client.put(uri, version, text)
        while [d["code"] for d in client.diagnostics(uri, version)] != codes:
            pass
        if text == broken:
            value = client.at("hover", uri, TEXT, "sh|ared(w")["contents"]["value"]
            assert "│" in value, "drawn as before the error"
    assert {value["kind"] for value in client.progress} == {"begin", "report", "end"}
    shares = [value["percentage"] for value in client.progress if value["kind"] != "end"]
    assert all(0 < share <= 100 for share in shares)
    client.close()


def test_documents_that_are_no_files_and_odd_texts_are_served(editor):
    for number, text in enumerate(["", "\r\n\tmask", "\ud83d\ude42", "mask a = q." * 50, "@" * 99]):
        uri = f"untitled:Untitled-{number}"
        editor.open(uri, text)
        for method in ("hover", "definition", "completion"):
            editor.ask(f"textDocument/{method}", {
                "textDocument": {"uri": uri}, "position": {"line": 0, "character": 10**6},
            })  # fmt: skip


@pytest.mark.parametrize("name", ["gone.dcpm", "folder", "image.dcpm"])
@pytest.mark.parametrize("method", ["hover", "definition", "completion", "documentSymbol"])
def test_questions_about_documents_that_are_not_there_are_answered(editor, tmp_path, name, method):
    (tmp_path / "folder").mkdir()
    (tmp_path / "image.dcpm").write_bytes(b"\xff\xfe\x00")
    place = {"line": 3, "character": 7}
    uri = (tmp_path / name).as_uri()
    editor.ask(f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": place})


def test_a_document_whose_name_is_no_name_of_a_file_is_empty(editor):
    document = {"textDocument": {"uri": "file:///nowhere/a%00.dcpm"}}
    assert editor.ask("textDocument/documentSymbol", document) == []


# ---- Neovim starts the language server with the file that the documents give ---------------------


ROOT = Path(__file__).parents[2]
EDITOR = ROOT / "grammar" / "editors" / "neovim" / "dcpm.lua"
DRIVE = """
local said = {}
local function found() return vim.diagnostic.get(0) end
local function ask(method, params)
  for _, reply in pairs(vim.lsp.buf_request_sync(0, method, params, 60000) or {}) do
    return reply.result
  end
end
said.failed = select(2, pcall(function()
  vim.wait(60000, function() return #found() > 0 end, 50)
  said.errors = vim.tbl_map(function(each) return each.message end, found())
  vim.api.nvim_buf_set_lines(0, 0, -1, false, { "mask   near = causal and q - k < 4" })
  vim.wait(60000, function() return #found() == 0 end, 50)
  said.left = #found()
  local document = { uri = vim.uri_from_bufnr(0) }
  local place = { textDocument = document, position = { line = 0, character = 8 } }
  said.hover = ask("textDocument/hover", place).contents.value
  local options = { tabSize = 2, insertSpaces = true }
  local edits = ask("textDocument/formatting", { textDocument = document, options = options })
  vim.lsp.util.apply_text_edits(edits, 0, "utf-16")
  said.lines = vim.api.nvim_buf_get_lines(0, 0, -1, false)
  said.kind = vim.bo.filetype
end))
vim.fn.writefile({ vim.fn.json_encode(said) }, "said.json")
vim.cmd("qall!")
"""


@pytest.mark.dist
def test_neovim_shows_errors_hovers_and_formats(tmp_path: Path):
    nvim = shutil.which("nvim")
    if nvim is None:
        pytest.skip("Neovim is missing: apt-get install neovim")
    (tmp_path / "near.dcpm").write_text("mask near = casual and q - k < 4\n")
    (tmp_path / "drive.lua").write_text(DRIVE)
    code = f"import sys; sys.path[:0] = {sys.path!r}; from dcp_dsl.cli import main; main()"
    command = json.dumps([sys.executable, "-c", code, "lsp"])
    arguments = [
        "--headless", "-u", "NONE", "-i", "NONE", "-n",
        "--cmd", f"let g:dcpm_command = {command}", "--cmd", "filetype on",
        "-c", f"luafile {EDITOR}", "-c", "edit near.dcpm", "-c", "luafile drive.lua",
    ]  # fmt: skip
    run = subprocess.run(
        [nvim, *arguments], cwd=tmp_path, timeout=250, capture_output=True, text=True, check=False
    )
    assert (tmp_path / "said.json").exists(), run.stdout + run.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    assert "failed" not in said, said
    assert said["kind"] == "dcpm"
    assert any("unknown name `casual`" in message for message in said["errors"])
    assert said["left"] == 0
    assert "near: 8 tokens, 26 of 64 pairs" in said["hover"]
    assert said["lines"] == ["mask near = causal and q - k < 4"]
