"""Evaluate masks pair by pair, slowly and obviously: the reference for all other forms."""
