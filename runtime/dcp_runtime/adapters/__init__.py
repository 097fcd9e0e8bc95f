"""Offer the runtime and its masks to other libraries: transformers, Megatron and FlexAttention."""
