"""Masks evaluated from the syntax tree, token by token: neither elaborator nor engine is used."""
