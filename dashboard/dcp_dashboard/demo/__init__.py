"""`dcpm demo`: from a .dcpm file and real documents to a verified distributed run."""
