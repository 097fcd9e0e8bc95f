"""Why a plan takes as long as it does: what its events waited for, and what would save time."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
