"""The causes of a plan's time: reasons of its events' waits, savings, and suggested changes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
