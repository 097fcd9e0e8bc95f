"""The commands of this room, one module each; at module level they import click alone."""
