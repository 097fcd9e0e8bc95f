"""Decide the claims of a text, and those that every mask must meet, by proof or on samples."""
