"""Describe the planning problem: cluster, attention shape, workload, and the cost of each part."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
