-- The language server of dcp-dsl in Neovim 0.7 or newer; from init.lua: dofile("/path/to/dcpm.lua").
-- vim.g.dcpm_command is what starts the server, if it is not { "dcpm", "lsp" }.
vim.api.nvim_create_autocmd(
  { "BufRead", "BufNewFile" }, { pattern = "*.dcpm", command = "setfiletype dcpm" }
)
vim.api.nvim_create_autocmd("FileType", {
  pattern = "dcpm",
  callback = function(event)
    local config = {
      name = "dcpm",
      cmd = vim.g.dcpm_command or { "dcpm", "lsp" },
      root_dir = vim.fn.fnamemodify(event.file, ":p:h"),
    }
    vim.bo[event.buf].commentstring = "# %s"
    if vim.lsp.start then
      vim.lsp.start(config)
    else
      vim.lsp.buf_attach_client(event.buf, vim.lsp.start_client(config))
    end
  end,
})
