"""Compute with functions of positions and with sets of pairs, never token by token."""
