"""The causes of a plan's time: what its events waited for, and what would save time."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
