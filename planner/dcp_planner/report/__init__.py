"""Compute figures of plans, compare them, and compute lower bounds for all plans."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
