"""Neovim starts the language server with the file that the documents give."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
