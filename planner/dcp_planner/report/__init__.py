"""Compute figures of plans, compare them, and bound what any plan can reach."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
