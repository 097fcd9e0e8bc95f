"""The language server: what editors show while a .dcpm file is written.

`document` is a text with what its names mean; `hover`, `completion` and `definition` answer
questions about it; `server` speaks the protocol and is the only module that knows pygls.
"""
