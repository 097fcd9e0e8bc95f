"""Offer the runtime, and its masks, to other libraries: transformers and FlexAttention."""
