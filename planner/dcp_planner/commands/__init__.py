"""The commands of this package, one module each; at module level they import click alone."""
