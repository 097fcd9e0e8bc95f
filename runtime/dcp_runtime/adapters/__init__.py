"""Offer the runtime and its masks to other libraries: transformers, FSDP and FlexAttention."""
