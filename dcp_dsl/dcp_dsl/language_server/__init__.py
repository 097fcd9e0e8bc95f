"""The language server: answers the questions of editors while a person writes a .dcpm file.

`document` is a text with what its names mean; `hover`, `completion` and `names` answer questions
about it; `server` speaks the protocol and is the only module that uses pygls.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
