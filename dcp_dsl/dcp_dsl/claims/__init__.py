"""Decide what a text claims and what every mask must hold, by proof or on small samples."""
