"""Worker processes: requests and answers as frames, time limits, and an end in every case."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
