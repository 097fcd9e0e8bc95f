"""Find what is wrong, or probably not meant, in a text without errors: a file for each kind."""
