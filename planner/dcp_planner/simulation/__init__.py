"""Simulate programs on a model of the cluster, and record the events as a trace."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
