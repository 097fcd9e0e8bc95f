"""Stands in for torchtitan: where attention becomes context parallel."""

from .api import apply_cp_to_forward

__all__ = ["apply_cp_to_forward"]
