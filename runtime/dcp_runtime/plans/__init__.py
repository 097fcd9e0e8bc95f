"""Describe a rank's part of a plan: the tiles it computes, and where their rows lie."""
