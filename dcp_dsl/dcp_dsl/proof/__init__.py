"""Prove statements about masks for every sample at once."""
