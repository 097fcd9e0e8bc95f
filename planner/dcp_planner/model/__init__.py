"""Describe what is planned: cluster, shape of attention, workload, and what each part costs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
