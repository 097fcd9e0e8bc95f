"""Find wrong names, kinds and layouts in the syntax tree of a text and of its imports."""
