"""Attention kernels: one protocol, several backends, and the choice between them."""
